"""What a notebook's outputs depend on, as one hash.

Jupyter Book's own cache looks at the cells alone: a change in `rr/` or in `data/` would leave stale
numbers on the page. The key here covers the code cells, every module of `rr` and `rrbook` that they
import (followed through imports, those inside functions and lazy names of `rr` and labs too), the
scripts and style sheets beside such a module, all files of `data/`, and the tested versions.
"""

import ast
import hashlib
import sys
from importlib.util import resolve_name
from pathlib import Path

import nbformat
from IPython.core.inputtransformer2 import TransformerManager
from nbkit import ROOT, code_cells, tags

PACKAGES = {"rr": "rr", "rrbook": "book/rrbook"}  # import name: folder below the root
EVERYTHING = "*"  # an import that cannot be followed: all modules count


def modules(root: Path) -> dict[str, Path]:
    """Every module of the packages, by its dotted name."""
    found = {}
    for package, folder in PACKAGES.items():
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root / folder).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            found[".".join((package, *parts))] = path
    return found


def _lazy(package: str, init: Path) -> tuple[dict[str, str], set[str]]:
    """The lazy names of a package, dotted, with their modules, and the names it assigns itself."""
    lazy: dict[str, str] = {}
    constants: set[str] = set()
    for node in ast.parse(init.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign):
            names = {target.id for target in node.targets if isinstance(target, ast.Name)}
            constants |= names
            if "_WHERE" in names:
                lazy = ast.literal_eval(node.value)
    found = {f"{package}.{name}": resolve_name(f".{at}", package) for name, at in lazy.items()}
    return found, constants


def _labs(explore: Path) -> dict[str, str]:
    """The lazy names of rrbook/explore.py with their modules."""
    for node in ast.parse(explore.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "_LABS":
            return {n: f"rrbook.labs.{file}" for n, file in ast.literal_eval(node.value).items()}
    return {}


class Followed:
    """Modules that a piece of Python imports, directly and through each other."""

    def __init__(self, root: Path) -> None:
        self.modules = modules(root)
        self.lazy, self.constants = _lazy("rr", self.modules["rr"])
        for package, init in self.modules.items():
            if package.startswith(("rr.", "rrbook.")) and init.name == "__init__.py":
                self.lazy |= _lazy(package, init)[0]
        self.labs = _labs(self.modules["rrbook.explore"])

    def imported(self, tree: ast.AST, package: str = "") -> set[str]:
        """The modules that a tree names; `package` is what its relative imports are relative to."""
        found: set[str] = set()
        bare: set[str] = set()  # what `import rr` binds: the rest is read off its attributes
        explore: set[str] = set()  # what `from rrbook import explore` binds, likewise for labs
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name in PACKAGES:
                        bare.add(alias.asname or alias.name)
                    elif alias.name.split(".")[0] in PACKAGES:
                        found.add(alias.name)
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    above = package.split(".")
                    above = above[: len(above) - node.level + 1]
                    base = ".".join([*above, *filter(None, [node.module])])
                if base.split(".")[0] in PACKAGES:
                    for alias in node.names:
                        found |= self._name(base, alias.name)
                        if (base, alias.name) == ("rrbook", "explore"):
                            explore.add(alias.asname or alias.name)
        for node in ast.walk(tree) if bare | explore else ():
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                if node.value.id in bare:
                    found |= self._name("rr", node.attr)
                if node.value.id in explore:
                    found |= self._name("rrbook.explore", node.attr)
        return found

    def _name(self, base: str, name: str) -> set[str]:
        """The modules behind `from base import name`."""
        if f"{base}.{name}" in self.lazy:
            return {self.lazy[f"{base}.{name}"]}
        if base == "rrbook.explore" and name in self.labs:
            return {base, self.labs[name]}
        if f"{base}.{name}" in self.modules:
            return {f"{base}.{name}"}
        if name == "*" or (base == "rr" and name not in self.constants and name[:2] != "__"):
            return {EVERYTHING}
        return {base}

    def closure(self, waiting: set[str]) -> set[str]:
        """These modules, the packages that hold them, and all that those import."""
        if EVERYTHING in waiting:
            return set(self.modules)
        seen: set[str] = set()
        waiting = set(waiting)
        while waiting:
            name = waiting.pop()
            if name in seen or name not in self.modules:
                continue
            seen.add(name)
            path = self.modules[name]
            package = name if path.name == "__init__.py" else name.rpartition(".")[0]
            if "." in name:
                waiting.add(name.rpartition(".")[0])  # Python runs the package's own file first
            found = self.imported(ast.parse(path.read_text(encoding="utf-8")), package)
            if EVERYTHING in found:
                return set(self.modules)
            waiting |= found
        return seen


def _python(notebook: nbformat.NotebookNode) -> tuple[str, bool]:
    """The notebook's code as plain Python, and whether it calls the shell or a magic."""
    cells = [cell for cell in code_cells(notebook) if "bootstrap" not in tags(cell)]
    text = "\n".join(TransformerManager().transform_cell(cell.source) for cell in cells)
    return text, "get_ipython()" in text


def reached(notebook: nbformat.NotebookNode, root: Path = ROOT) -> set[str]:
    """Dotted names of the modules that the notebook's outputs depend on."""
    text, shell = _python(notebook)
    followed = Followed(root)
    start = followed.imported(ast.parse(text))
    return followed.closure(start | ({EVERYTHING} if shell else set()))  # `!rr ladder` and the like


def _files(names: set[str], root: Path) -> list[Path]:
    """The modules' own files, and the scripts and style sheets in the same folders."""
    where = modules(root)
    files = {where["rr"]}
    for name in names:
        files.add(where[name])
        beside = where[name].parent.iterdir()
        files |= {path for path in beside if path.suffix in (".js", ".css", ".html", ".json")}
    return sorted(files)


def key(notebook: nbformat.NotebookNode, root: Path = ROOT) -> str:
    """Hash of all that the notebook's outputs depend on."""
    digest = hashlib.sha256()
    digest.update(".".join(map(str, sys.version_info[:3])).encode())
    for cell in code_cells(notebook):
        digest.update(b"\0cell\0" + cell.source.encode())
    data = sorted(p for p in (root / "data").rglob("*") if p.is_file())
    for path in [*_files(reached(notebook, root), root), *data, root / "constraints.txt"]:
        digest.update(f"\0{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes())
    return digest.hexdigest()
