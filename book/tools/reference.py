"""The API reference: one page of Markdown for each package of rr, written from its docstrings.

A package's page shows the names of its `__all__`; one that several packages have is printed once,
and the others lead to it. Docstrings are Markdown (docstrings.py), so that Sphinx's autodoc, which
reads reStructuredText, would show them wrongly.
"""

import ast
import copy
import dataclasses
import inspect
import math
import pprint
import re
import textwrap
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, TypeVar

import home
from docstrings import aligned, code, escaped, example, prose, split
from nbkit import ROOT

from rr.options import written
from rr.residual import REGISTRY, RULES, Described
from rr.residual.table import describe
from rrbook.markdown import table_row

PACKAGES = (
    "rr", "rr.residual", "rr.model", "rr.training", "rr.analysis",
    "rr.data", "rr.ops", "rrstudy", "rrstudy.stats", "rrstudy.sweep",
)  # fmt: skip
FIRST = {"rr.residual.Residuals"}  # what a reader of its page comes for
WIDTH = 84  # columns of a signature before it is broken into lines
ABOUT_RULES = """\
Each rule with its equation, its options and its costs. Parameters and FLOPs (of matrix products,
forward, per token) are what it adds to block 2 of 4, of width d, with one head and the default
options; the gains of norms are not counted. The coefficient on u is that at the start of training,
in a network of 12 blocks. The [poster](#rule-poster) has a picture of every rule, and the
[field guide](#ch-field-guide) compares them."""
Node = TypeVar("Node", bound=ast.AST)


def public(package: str) -> list[tuple[str, Any]]:
    """The public names of a package as (dotted name, object)."""
    face = import_module(package)
    return [(f"{package}.{name}", getattr(face, name)) for name in face.__all__]


def described(value: Any) -> bool:
    """Whether a value is a function or a class, which have a docstring of their own."""
    return inspect.isclass(value) or inspect.isfunction(value)


def label(name: str, value: Any) -> str:
    """The target of links to a name; Sphinx folds case, and `Fit` is not `fit`."""
    kind = "module" if isinstance(value, ModuleType) else type(value).__name__
    return "api-" + re.sub(r"[^a-z0-9]+", "-", f"{kind}-{name}".lower()).strip("-")


@cache
def owners() -> dict[Any, str]:
    """The name under which each function and class is printed: that of its own package first."""
    named: dict[Any, str] = {}
    tops = ("rr", "rrstudy")
    for package in sorted(PACKAGES, key=tops.__contains__):
        for name, value in public(package):
            if described(value):
                own = value.__module__.startswith(f"{package}.") and package not in tops
                named[value] = name if own else named.get(value, name)
    return named


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


def _names(node: ast.FunctionDef) -> dict[str, str]:
    arguments = node.args
    return {
        one.arg: one.arg for one in arguments.posonlyargs + arguments.args + arguments.kwonlyargs
    }


def fields(cls: type) -> dict[str, tuple[str, str]]:
    """A class's annotated fields: declaration, and the comment with meaning and unit."""
    lines = textwrap.dedent(inspect.getsource(cls)).splitlines()
    named = {}
    for node in tree_of(cls, ast.ClassDef).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            declared = f"{node.target.id}: {ast.unparse(node.annotation)}"
            if node.value and not ast.unparse(node.value).startswith("field("):
                declared += f" = {ast.unparse(node.value)}"
            comment = lines[(node.end_lineno or 1) - 1].partition("  # ")[2]
            named[node.target.id] = declared, comment
    return named


def methods(cls: type) -> Iterator[tuple[str, ast.FunctionDef, str]]:
    """Public methods and properties that a class defines itself, with their docstrings."""
    for node in tree_of(cls, ast.ClassDef).body:
        if isinstance(node, ast.FunctionDef) and node.name[0] != "_":
            doc = ast.get_docstring(node)
            if doc:
                yield node.name, node, doc


def entry(name: str, value: Any, links: dict[str, str]) -> str:
    """What a page says about one name."""
    short = name.rpartition(".")[2]
    title = f"({label(name, value)})=\n## `{short}`"
    if not described(value):
        return f"{title}\n\n{_constant(value, links)}"
    text, shown = split(doc_of(value))
    if (other := owners()[value]) != name:
        first = " ".join(text.split("\n\n")[0].split())
        return f"{title}\n\n{escaped(first, links)} See [`{other}`](#{links[other]})."
    if inspect.isclass(value):
        body = _class(short, value, text, links)
    else:
        node = tree_of(value, ast.FunctionDef)
        body = [code(signature(short, node), "python"), prose(text, _names(node), links)]
    return "\n\n".join([title, *body, *example(shown), f"[{_place(value)}]{{.rr-soft}}"])


def _class(short: str, cls: type, text: str, links: dict[str, str]) -> list[str]:
    """The line that makes an instance, the description, the fields and the methods."""
    tree, known = tree_of(cls, ast.ClassDef), fields(cls)
    bases = ", ".join(map(ast.unparse, tree.bases))
    head = f"class {short}({bases})" if bases else f"class {short}"
    names = {name: declared for name, (declared, _) in known.items()}
    init = next((n for n in tree.body if getattr(n, "name", "") == "__init__"), None)
    if isinstance(init, ast.FunctionDef):
        head += "\n\n" + signature(short, init).removesuffix(" -> None")
        names = _names(init)
    in_text = {name for block in re.split(r"\n\s*\n", text) for name, _ in aligned(block)}
    items = [
        f"* `{declared}`" + (f": {escaped(comment, links)}" if comment else "")
        for name, (declared, comment) in known.items()
        if name not in in_text
    ]
    shown = [code(head, "python"), prose(text, names, links)]
    shown += ["**Fields**\n\n" + "\n".join(items)] if items else []
    for method, node, doc in methods(cls):
        bare = any(ast.unparse(one) == "property" for one in node.decorator_list)
        words, used = split(doc)
        body = "\n\n".join([prose(words, _names(node), links), *example(used)])
        call = method if bare else signature(method, node, math.inf)
        shown.append(f"`.{call}`\n: {textwrap.indent(body, '  ').lstrip()}")
    return shown


def _place(value: Any) -> str:
    """The file and line of a name; a link where the project has an address."""
    path = Path(inspect.getfile(inspect.unwrap(value))).relative_to(ROOT).as_posix()
    line = inspect.getsourcelines(value)[1]
    url = _blob()
    return f"[{path}, line {line}]({url}/{path}#L{line})" if url else f"{path}, line {line}"


@cache
def _blob() -> str:
    """Where the project's files are on the web, "" where it has no address."""
    place = home.address()
    return f"{place}/blob/{home.version()}" if place else ""


def _constant(value: Any, links: dict[str, str]) -> str:
    """A constant's value; of a table of rules their names, of a path nothing but its kind."""
    if isinstance(value, Path):
        return f"A folder of the checkout: `{value.name}/`."
    if not isinstance(value, dict):
        return code(pprint.pformat(value, width=WIDTH, compact=True), "python")
    items = []
    for key, held in value.items():
        if isinstance(held, str):
            items.append(f"* `{key}`: {escaped(held, links)}")
        elif isinstance(held, dict):  # of the registry
            items.append(f"* `{key}`: " + ", ".join(_to_rule(one, key) for one in held))
        else:
            items.append(_to_rule(key, held.kind))
    return ("\n" if items[0].startswith("* ") else ", ").join(items)


def _to_rule(name: str, kind: str) -> str:
    return f"[`{written(name, kind)}`](#api-rule-{kind}-{name})"


def rules(modules: list[tuple[str, ModuleType]], links: dict[str, str]) -> list[str]:
    """Every registered rule, below the module that defines it."""
    parts, described_rules = [f"## Rules\n\n{ABOUT_RULES}"], describe()
    for name, module in modules:
        title = f"({label(name, module)})=\n### `{name.rpartition('.')[2]}`"
        parts.append(f"{title}\n\n{prose(doc_of(module), {}, links)}")
        for row in described_rules:
            cls = REGISTRY[row["kind"]][row["name"]]
            if cls.__module__ == module.__name__:
                parts += _rule(row, cls, links)
    return parts


def _rule(row: dict, cls: type[Described], links: dict[str, str]) -> list[str]:
    kind = row["kind"]
    name = written(row["name"], kind)
    own = [key for key in cls.options if key != "per_pass"]
    spec = f"{name}:{own[0]}={cls.options[own[0]].default}" if own else name
    keyword = "rule" if kind == "residual" else kind
    facts = [f'Use: `rr.plan({keyword}="{spec}")`', f"Source: {escaped(cls.source, links)}"]
    params, flops = (cost.replace("-", "−") for cost in row["cost"].values())
    facts.append(f"Costs per block: {params} parameters, {flops} FLOPs per token")
    if kind == "residual":
        start = row["coefficient"]
        on_u = "no single number" if start is None else f"{start:g}"
        facts += [f"Coefficient on u at the start: {on_u}", f"State: `{RULES[name].state}`"]
    facts.append(f"Class: `{cls.__name__}`, {_place(cls)}")
    table = [table_row(("option", "default", "meaning", "accepts")), table_row(["---"] * 4)]
    for key, option in cls.options.items():
        words = escaped(option.meaning, links), escaped(option.accepts, links)
        table.append(table_row((f"`{key}`", f"`{option.default}`", *words)))
    return [
        f"(api-rule-{kind}-{row['name']})=\n#### `{name}`",
        f"$$\n{cls.equation}\n$$",
        prose(split(doc_of(cls))[0], {}, links),
        "\n".join(table) if cls.options else "It has no options.",
        "\n".join(f"* {fact}" for fact in facts),
    ]


def ordered(names: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """The names of a page, each result's class after the first function that returns it."""
    results = {
        value.__name__: (name, value)
        for name, value in names
        if inspect.isclass(value) and (dataclasses.is_dataclass(value) or issubclass(value, tuple))
    }
    makers: dict[str, str] = {}
    for name, value in names:
        if inspect.isfunction(value):
            for word in re.findall(r"\w+", str(value.__annotations__.get("return"))):
                if word in results:
                    makers.setdefault(word, name)
    out: list[tuple[str, Any]] = []
    for name, value in names:
        if not (inspect.isclass(value) and value.__name__ in makers):
            out.append((name, value))
            out += [results[word] for word, maker in makers.items() if maker == name]
    return out


def page(package: str, links: dict[str, str]) -> str:
    """One package's page as Markdown."""
    face = import_module(package)
    names = sorted(public(package), key=lambda pair: pair[0] not in FIRST)
    links = links | {name.rpartition(".")[2]: links[name] for name, _ in names}
    text, use = split(doc_of(face))
    parts = [f"({label(package, face)})=\n# `{package}`", prose(text, {}, links), *example(use)]
    modules = [(name, value) for name, value in names if isinstance(value, ModuleType)]
    parts += [entry(name, value, links) for name, value in ordered(names)
              if not isinstance(value, ModuleType)]  # fmt: skip
    parts += rules(modules, links) if modules else []
    return "\n\n".join(parts) + "\n"


def targets() -> dict[str, str]:
    """Where a link to each public name leads."""
    named = {package: label(package, import_module(package)) for package in PACKAGES}
    for package in PACKAGES:
        for name, value in public(package):
            shown = owners()[value] if described(value) else name
            named[name] = label(shown, value)
    return named


def write_pages(folder: Path, packages: Sequence[str] = PACKAGES) -> None:
    """Write the reference into `folder`, a file for each of these packages."""
    if not packages:
        return
    folder.mkdir(parents=True, exist_ok=True)
    links = targets()
    for package in packages:
        text = page(package, links)
        (folder / f"{package}.md").write_text(text, encoding="utf-8")
