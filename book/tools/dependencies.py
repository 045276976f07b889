"""What a notebook's outputs depend on, as one hash.

Jupyter Book's own cache looks at the cells alone: a change in `rr/` or in `data/` would leave stale
numbers on the page. The key here covers the code cells, the sources of every part of `rr` that they
import (followed through imports, those inside functions too), all files of `data/`, and the tested
versions. A part is a module or a whole subpackage: rules register themselves and explorables read
files beside them, which no import statement shows.
"""

import ast
import hashlib
import sys
from pathlib import Path

import nbformat
from IPython.core.inputtransformer2 import TransformerManager
from nbkit import ROOT, code_cells, tags

PACKAGE = ROOT / "rr"
EVERYTHING = "*"  # an import that cannot be followed: count all of rr


def _constants(package: Path) -> set[str]:
    """Names that rr/__init__.py itself assigns: importing them reaches no other module."""
    tree = ast.parse((package / "__init__.py").read_text(encoding="utf-8"))
    targets = [t for node in tree.body if isinstance(node, ast.Assign) for t in node.targets]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _part(name: str, package: Path) -> str | None:
    """The part of the package that `rr.<name>` is, if it is one."""
    if (package / f"{name}.py").exists() or (package / name).is_dir():
        return name
    return None


def imported(tree: ast.AST, package: Path = PACKAGE, inside: tuple[str, ...] = ()) -> set[str]:
    """The parts of rr that a piece of Python imports; `inside` is its own package, below rr."""
    found: set[str] = set()

    def reach(name: str) -> None:
        part = _part(name, package)
        if part:
            found.add(part)
        elif name not in _constants(package) and not name.startswith("__"):
            found.add(EVERYTHING)  # a lazy re-export, or a star

    whole = False  # `import rr`: what is reached is read off the attributes
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                path = alias.name.split(".")
                if path[0] == "rr":
                    whole = whole or len(path) == 1
                    found.update(path[1:2])
                    if len(path) == 1 and alias.asname not in (None, "rr"):
                        found.add(EVERYTHING)
        elif isinstance(node, ast.ImportFrom):
            path = (node.module or "").split(".") if node.module else []
            if node.level:  # relative: `inside` says where this file stands
                above = inside[: len(inside) - (node.level - 1)]
                path = ["rr", *above, *path]
            if path[:1] != ["rr"]:
                continue
            if len(path) > 1:
                found.add(path[1])
            else:
                for alias in node.names:
                    reach(alias.name)
    for node in ast.walk(tree) if whole else ():
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "rr":
                reach(node.attr)
    return found


def _python(notebook: nbformat.NotebookNode) -> tuple[str, bool]:
    """The notebook's code as plain Python, and whether it calls the shell or a magic."""
    cells = [cell for cell in code_cells(notebook) if "bootstrap" not in tags(cell)]
    text = "\n".join(TransformerManager().transform_cell(cell.source) for cell in cells)
    return text, "get_ipython()" in text


def parts(notebook: nbformat.NotebookNode, package: Path = PACKAGE) -> set[str]:
    """The transitive closure of what the notebook imports, as parts of rr."""
    text, shell = _python(notebook)
    waiting = imported(ast.parse(text), package)
    if shell:
        waiting.add(EVERYTHING)  # `!rr ladder` and the like
    seen: set[str] = set()
    while waiting:
        part = waiting.pop()
        if part == EVERYTHING:
            names = {path.stem for path in package.iterdir()}
            waiting |= {name for name in names if not name.startswith(("_", "."))} - seen
            continue
        if part in seen:
            continue
        seen.add(part)
        folder = package / part
        files = sorted(folder.rglob("*.py")) if folder.is_dir() else [package / f"{part}.py"]
        for path in files:
            if path.exists():
                inside = path.relative_to(package).parts[:-1]
                waiting |= imported(ast.parse(path.read_text(encoding="utf-8")), package, inside)
    return seen


def _files(found: set[str], package: Path) -> list[Path]:
    files = [package / "__init__.py"]
    for part in found:
        folder = package / part
        files += [p for p in folder.rglob("*") if p.is_file()] if folder.is_dir() else []
        files += [p for p in [package / f"{part}.py"] if p.exists()]
    return sorted(p for p in files if "__pycache__" not in p.parts)


def key(notebook: nbformat.NotebookNode, root: Path = ROOT) -> str:
    """Hash of all that the notebook's outputs depend on."""
    package = root / "rr"
    digest = hashlib.sha256()
    digest.update(".".join(map(str, sys.version_info[:3])).encode())
    for cell in code_cells(notebook):
        digest.update(b"\0cell\0" + cell.source.encode())
    data = sorted(p for p in (root / "data").rglob("*") if p.is_file())
    for path in [*_files(parts(notebook, package), package), *data, root / "constraints.txt"]:
        digest.update(f"\0{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes())
    return digest.hexdigest()
