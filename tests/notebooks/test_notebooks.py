"""Every notebook obeys the rules of CONTRIBUTING.md; nbval then runs them (`make test`)."""

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
