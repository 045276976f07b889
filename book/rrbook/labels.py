"""What the labels of the book name: figures, equations, exercises and sections, numbered."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import nbformat

from .markdown import Directive, walk

ROOT = Path(__file__).resolve().parents[2]
CHAPTER = re.compile(r"(?P<number>\d\d)_\w+")
CHECKS = {  # how a figure is checked, by its cell's tag: the words of its badge
    "check-exact": "checked: exact",
    "check-tolerance": "checked: within a tolerance",
    "check-ordering": "checked: the order",
    "check-recorded": "drawn from a record",
    "check-published": "drawn from published data",
}


@dataclass(frozen=True)
class Label:
    """What a label of the book names: where it is, and what a sentence calls it."""

    kind: str  # figure, equation, exercise or section
    number: str
    title: str
    page: str  # path below the site, without its suffix


def numbered(chapter: str | None, count: int) -> str:
    """`6.3`, the third of chapter 6; `3` in a notebook that is no chapter."""
    match = CHAPTER.fullmatch(chapter or "")
    return f"{int(match['number'])}.{count}" if match else str(count)


def labels(notebook: nbformat.NotebookNode, chapter: str | None) -> dict[str, Label]:
    """Every label of a notebook, its things counted in their order."""
    by_label: dict[str, Label] = {}
    counts = {"figure": 0, "equation": 0, "exercise": 0}
    page = f"notebooks/{chapter}"

    def add(kind: str, label: str, title: str = "") -> None:
        counts[kind] += 1
        by_label[label] = Label(kind, numbered(chapter, counts[kind]), title, page)

    for cell in notebook.cells:
        if figure := cell.metadata.get("mystnb", {}).get("figure"):
            add("figure", figure["name"], figure["caption"])
        waiting: list[str] = []
        heading = False
        for token in walk(cell.source) if cell.cell_type == "markdown" else ():
            directive = Directive.of(token)
            if token.type == "math_block_label":
                add("equation", token.info)
            elif directive and directive.name == "exercise":
                add("exercise", directive.options.get("label", ""), directive.argument)
            elif token.type == "myst_target":
                waiting.append(token.content)
            elif token.type == "heading_open":
                heading = True
            elif token.type == "inline" and heading:
                by_label |= {label: Label("section", "", token.content, page) for label in waiting}
                waiting, heading = [], False
    return by_label


@cache
def elsewhere() -> dict[str, Label]:
    """The labels of every chapter as this checkout stores it."""
    by_label: dict[str, Label] = {}
    for path in sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb")):
        by_label |= labels(nbformat.read(path, as_version=4), path.stem)
    return by_label
