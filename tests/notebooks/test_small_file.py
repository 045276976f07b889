"""The cells of chapters 0 to 2 that build rr/small.py are its code, and mark what is new."""

import ast
import re

import pytest
from nbkit import ROOT, code_cells, read, sources, tags

MARK = re.compile(r"\s+# NEW$")
CHAPTERS = sources("00_", "01_", "02_")
BESIDE = {"main"}  # reads the command line: chapter 2 says so


def parts(source: str) -> dict[str, list[str]]:
    """name -> lines of each class, function and constant, without docstrings and blank lines."""
    lines, found = source.splitlines(), {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            name = node.name
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
        else:
            continue
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        said = set()
        for inner in ast.walk(node):
            if isinstance(inner, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(inner):
                said |= {*range(inner.body[0].lineno, inner.body[0].end_lineno + 1)}
        own = (lines[i - 1] for i in range(first, node.end_lineno + 1) if i not in said)
        found[name] = [line for line in own if line.strip()]
    return found


FILE = parts((ROOT / "rr" / "small.py").read_text(encoding="utf-8"))


def shown() -> list[tuple[str, str, list[str]]]:
    """Chapter, name and lines of each part, in the order in which a reader meets them."""
    return [
        (path.stem, name, lines)
        for path in CHAPTERS
        for cell in code_cells(read(path))
        if "small" in tags(cell)
        for name, lines in parts(cell.source).items()
    ]


def in_order(lines: list[str], whole: list[str]) -> bool:
    """Whether the lines stand in the whole, in this order, others left out."""
    rest = iter(whole)
    return all(line in rest for line in lines)


def test_every_line_is_one_of_the_file_and_in_its_order():
    for chapter, name, lines in shown():
        plain = [MARK.sub("", line) for line in lines]
        assert name in FILE, f"{chapter}: rr/small.py has no {name}"
        assert in_order(plain, FILE[name]), f"{chapter}: {name} is not as in rr/small.py"


def test_after_chapter_2_the_reader_has_the_whole_file():
    last = {name: [MARK.sub("", line) for line in lines] for _, name, lines in shown()}
    assert last.keys() == FILE.keys() - BESIDE
    assert {name for name, lines in last.items() if lines != FILE[name]} == set()


def test_what_is_marked_is_what_the_part_did_not_have_before():
    before: dict[str, list[str]] = {}
    grown = set()
    for chapter, name, lines in shown():
        had = before.get(name)
        for line in lines:
            new = had is not None and MARK.sub("", line) not in had
            assert bool(MARK.search(line)) == new, f"{chapter}, {name}: {line}"
        grown |= {name} if had is not None else set()
        before[name] = [MARK.sub("", line) for line in lines]
    assert grown == {"Rule", "Model"}


@pytest.mark.parametrize(
    ("lines", "holds"), [(["a", "c"], True), (["c", "a"], False), (["a", "d"], False)]
)
def test_an_order_is_told(lines, holds):
    assert in_order(lines, ["a", "b", "c"]) == holds
