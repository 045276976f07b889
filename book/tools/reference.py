"""The API reference: one page of Markdown for each package of rr, written from its docstrings.

A package's page shows the names of its `__all__`. Docstrings are Markdown, so that Sphinx's
autodoc, which reads reStructuredText, would show them wrongly.
"""

import ast
import copy
import inspect
import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, TypeVar

PACKAGES = (
    "rr", "rr.residual", "rr.model", "rr.training", "rr.analysis",
    "rr.data", "rr.ops", "rr.perf", "rr.stats", "rr.sweep",
)  # fmt: skip
WIDTH = 84  # columns of a signature before it is broken into lines
APART = r"Raises\b|Returns\b|Source:|RRError(?=,? (?:for|on|before|where))"  # begin a paragraph
CODE = re.compile(r"(`[^`]+`)")
Node = TypeVar("Node", bound=ast.AST)


def public(package: str) -> list[tuple[str, Any]]:
    """The public names of a package as (dotted name, object)."""
    face = import_module(package)
    return [(f"{package}.{name}", getattr(face, name)) for name in face.__all__]


def described(value: Any) -> bool:
    """Whether a value is a function or a class, which have a docstring of their own."""
    return inspect.isclass(value) or inspect.isfunction(value)


def split(doc: str) -> tuple[str, str]:
    """A docstring's description and its example, "" where it has none."""
    text, _, example = doc.partition("\nExample:\n")
    return text.strip(), textwrap.dedent(example).strip()


def label(name: str, value: Any) -> str:
    """The target of links to a name; Sphinx folds case, and `Fit` is not `fit`."""
    kind = "module" if isinstance(value, ModuleType) else type(value).__name__
    return "api-" + re.sub(r"[^a-z0-9]+", "-", f"{kind}-{name}".lower()).strip("-")


def doc_of(value: object) -> str:
    """A docstring without its indentation; ValueError where there is none."""
    doc = inspect.getdoc(value)
    if doc is None:
        raise ValueError(f"{value!r} has no docstring: the reference shows one for every name")
    return doc


def tree_of(value: type | FunctionType, kind: type[Node]) -> Node:
    """The syntax tree of a class's or function's source, which is of this kind."""
    node = ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]
    assert isinstance(node, kind)
    return node


def signature(name: str, node: ast.FunctionDef, width: float = WIDTH) -> str:
    """`name(parameters) -> result` as in the source, one parameter per line where it is long."""
    arguments = copy.deepcopy(node.args)
    for group in (arguments.posonlyargs, arguments.args):
        if group and group[0].arg in ("self", "cls"):
            del group[0]
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    flat = arguments.posonlyargs + arguments.args
    defaults = [None] * (len(flat) - len(arguments.defaults)) + arguments.defaults
    shown = [_parameter(*pair) for pair in zip(flat, defaults, strict=True)]
    if arguments.vararg:
        shown.append(f"*{ast.unparse(arguments.vararg)}")
    elif arguments.kwonlyargs:
        shown.append("*")
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    shown += [_parameter(*pair) for pair in pairs]
    if arguments.kwarg:
        shown.append(f"**{ast.unparse(arguments.kwarg)}")
    one = f"{name}({', '.join(shown)}){result}"
    if len(one) <= width:
        return one
    return "\n".join([f"{name}(", *(f"    {line}," for line in shown), f"){result}"])


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    return ast.unparse(argument) + (f" = {ast.unparse(default)}" if default is not None else "")


def fields(cls: type) -> list[str]:
    """The source lines of a class's annotated fields, whose comments give meaning and unit."""
    lines = textwrap.dedent(inspect.getsource(cls)).splitlines()
    nodes = [node for node in tree_of(cls, ast.ClassDef).body if isinstance(node, ast.AnnAssign)]
    return lines[nodes[0].lineno - 1 : nodes[-1].end_lineno] if nodes else []


def methods(cls: type) -> Iterator[tuple[str, ast.FunctionDef, str]]:
    """Public methods and properties that a class defines itself, with their docstrings."""
    for node in tree_of(cls, ast.ClassDef).body:
        if isinstance(node, ast.FunctionDef) and node.name[0] != "_":
            doc = ast.get_docstring(node)
            if doc:
                yield node.name, node, doc


def escaped(text: str, links: dict[str, str]) -> str:
    """Text in which only what stands between backticks is Markdown; public names become links."""
    parts = CODE.split(text)
    for at, part in enumerate(parts):
        if at % 2 == 0:
            parts[at] = re.sub(r"([\\*_$<>\[\]{}|~])", r"\\\1", part)
        elif part[1:-1] in links:
            parts[at] = f"[{part}](#{links[part[1:-1]]})"
    return "".join(parts)


def prose(text: str, parameters: list[str], links: dict[str, str]) -> str:
    """A docstring's description as Markdown: parameters as a list, errors and source apart."""
    return "\n\n".join(
        _paragraph(block, parameters, links) for block in re.split(r"\n\s*\n", text.strip("\n"))
    )


def _paragraph(block: str, parameters: list[str], links: dict[str, str]) -> str:
    lines = block.splitlines()
    if all(line.startswith("    ") for line in lines) or any(
        re.search(r"\S {3,}\S", line) and "|" not in line for line in lines
    ):
        return "```text\n" + textwrap.dedent(block) + "\n```"
    if lines[0].startswith("|"):  # a table
        return block
    if lines[0].startswith("* "):
        items = re.split(r"(?m)^\* ", block)[1:]
        return "\n".join("* " + escaped(" ".join(item.split()), links) for item in items)
    text = " ".join(block.split())
    names = "|".join(map(re.escape, sorted(parameters, key=len, reverse=True))) or r"(?!)"
    starts = re.compile(
        rf"(?:^|(?<=[.;:),] ))(?:(?P<names>(?:{names})(?:, (?:{names}))*): |(?P<word>{APART}))"
    )
    cuts = list(starts.finditer(text))
    edges = [match.start() for match in cuts] + [len(text)]
    shown = [escaped(text[: edges[0]].strip(), links)] if edges[0] else []
    for match, end in zip(cuts, edges[1:], strict=True):
        if match["names"]:
            given = ", ".join(f"`{name}`" for name in match["names"].split(", "))
            shown.append(f"* {given}: {escaped(text[match.end() : end].strip(' ;,'), links)}")
        else:
            rest = escaped(text[match.end() : end].strip(), links)
            shown.append(f"\n**{match['word']}** {rest}\n")
    return "\n".join(
        "\n" + line if line.startswith("* ") and at and not shown[at - 1].startswith("* ") else line
        for at, line in enumerate(shown)
    )


def _names(node: ast.FunctionDef) -> list[str]:
    arguments = node.args
    return [one.arg for one in arguments.posonlyargs + arguments.args + arguments.kwonlyargs]


def _python(text: str) -> str:
    return f"```python\n{text}\n```"


def entry(name: str, value: Any, links: dict[str, str]) -> str:
    """What a page says about one name."""
    title = f"({label(name, value)})=\n## {_title(name, value)}"
    if isinstance(value, ModuleType):
        return f"{title}\n\n{prose(doc_of(value), [], links)}"
    if not described(value):
        return f"{title}\n\n{_constant(value)}"
    text, example = split(doc_of(value))
    short = name.rpartition(".")[2]
    if inspect.isclass(value):
        body = [_class(short, value)]
        parameters = list(vars(value).get("__annotations__", {}))
        init = vars(value).get("__init__")
        if inspect.isfunction(init) and not fields(value):
            parameters = _names(tree_of(init, ast.FunctionDef))
    else:
        node = tree_of(value, ast.FunctionDef)
        body, parameters = [_python(signature(short, node))], _names(node)
    body.append(prose(text, parameters, links))
    if inspect.isclass(value):
        for method, node, doc in methods(value):
            bare = any(
                isinstance(one, ast.Name) and one.id == "property" for one in node.decorator_list
            )
            shown = method if bare else signature(method, node, math.inf)
            first = " ".join(split(doc)[0].split("\n\n")[0].split())
            body.append(f"`.{shown}`\n: {escaped(first, links)}")
    if example:
        body.append("**Example**\n\n" + f"```pycon\n{example}\n```")
    return "\n\n".join([title, *body])


def _title(name: str, value: Any) -> str:
    return f"`{name}`" + (" (module)" if isinstance(value, ModuleType) else "")


def _class(short: str, cls: type) -> str:
    """The line that makes an instance, or a data class's fields."""
    lines = fields(cls)
    init = vars(cls).get("__init__")
    source = inspect.getsource(cls)
    if inspect.isfunction(init) and "def __init__" in source:
        node = tree_of(init, ast.FunctionDef)
        return _python("class " + signature(short, node).removesuffix(" -> None"))
    bases = ", ".join(base.__name__ for base in cls.__bases__ if base is not object)
    head = f"class {short}({bases}):" if bases else f"class {short}:"
    return _python("\n".join([head, *(f"    {line.strip()}" for line in lines or ["..."])]))


def _constant(value: Any) -> str:
    """A constant's value; of a table its keys, of a path nothing but its kind."""
    if isinstance(value, dict):
        keys = ", ".join(f"`{key}`" for key in value)
        return f"A table with the keys {keys}."
    if isinstance(value, Path):
        return f"A folder of the checkout: `{value.name}/`."
    return _python(repr(value))


def page(package: str, links: dict[str, str]) -> str:
    """One package's page as Markdown."""
    face = import_module(package)
    parts = [f"({label(package, face)})=\n# `{package}`"]
    if package == "rr":
        parts.append("The names that `import rr` gives; each package of `rr` has its own page.")
    parts.append(prose(doc_of(face), [], links))
    names = public(package)
    short = {known.rpartition(".")[2]: label(known, it) for known, it in names}
    parts += [entry(name, value, links | short) for name, value in names]
    return "\n\n".join(parts) + "\n"


def write_pages(folder: Path, packages: Sequence[str] = PACKAGES) -> None:
    """Write the reference into `folder`, a file for each of these packages."""
    if not packages:
        return
    folder.mkdir(parents=True, exist_ok=True)
    links = {package: label(package, import_module(package)) for package in PACKAGES[1:]}
    links |= {name: label(name, it) for package in PACKAGES for name, it in public(package)}
    for package in packages:
        text = page(package, links)
        (folder / f"{package}.md").write_text(text, encoding="utf-8")
