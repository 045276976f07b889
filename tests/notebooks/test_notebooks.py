"""Every notebook obeys the rules of CONTRIBUTING.md; nbval then runs them (`make test`)."""

import ast
from pathlib import Path

import pytest
import yaml
from nbkit import ROOT, read, sources
from rules import problems

from rrbook.plain import glued

PATHS = sources()


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_rules(path: Path):
    found = list(problems(path))
    assert not found, "\n".join(["", *found])
    # `{glue:text}` with a format needs a number's plain text: np.float64(3.1) is none
    values = glued(read(path))
    assert values, "it glues nothing, so this test would see nothing"
    for name, text in values.items():
        assert not text.startswith(("np.", "tensor(", "array(")), f"{name} is glued as {text}"


def test_the_book_lists_every_notebook_once():
    toc = yaml.safe_load((ROOT / "book" / "_toc.yml").read_text(encoding="utf-8"))
    listed = [chapter["file"] for part in toc["parts"] for chapter in part["chapters"]]
    notebooks = [name for name in listed if name.startswith("notebooks/")]
    assert sorted(notebooks) == [f"notebooks/{path.stem}" for path in PATHS]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_the_cells_of_the_page_need_none_that_it_leaves_out(path: Path):
    """So whoever copies them in their order can run them."""
    shown, left_out, used = set(), set(), set()
    for cell in read(path).cells:
        if cell.cell_type == "code":
            removed = "remove-cell" in cell.metadata.get("tags", [])
            for node in ast.walk(ast.parse(cell.source)):
                match node:
                    case ast.Name(id=name, ctx=ast.Load()) if not removed:
                        used.add(name)
                    case (
                        ast.Name(id=name, ctx=ast.Store())
                        | ast.arg(arg=name)
                        | ast.FunctionDef(name=name)
                        | ast.ClassDef(name=name)
                        | ast.alias(asname=None, name=name)
                        | ast.alias(asname=str(name))
                    ):
                        (left_out if removed else shown).add(name.partition(".")[0])
    assert not sorted(used & (left_out - shown))
