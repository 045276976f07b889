"""Which code cells a page folds, so that it shows the idea and one click shows the plumbing.

A cell stays open that is short, narrow and about the subject. Folded are: parameters, the imports
that begin a notebook, what only calls an explorable or a lab, cells that put numbers into the text,
and every cell that is longer or wider than a page shows well. An author folds any other by the tag
`hide-input`. What a cell shows stays in sight, and in the plain edition,
where the code is there to be run and changed, these cells stay open.
"""

import re
from collections.abc import Iterator

from nbformat import NotebookNode
from nbkit import tags

# that an open cell has at most: lines that are not blank, and columns that do not scroll at 1280 px
LINES, COLUMNS = 12, 79
CELLS = 10  # that are open in a chapter at most
CLOSED = {"hide-input", "remove-input", "remove-cell"}
ANSWER = "your answer, and its check"
BEFORE = ("parameters", "imports and set-up", "code of the figure")  # what a notebook begins with
IMPORT = re.compile(r"(import|from) \w")


def kind(cell: NotebookNode, first: bool) -> str | None:
    """What a folded cell holds, in the words of its button; None for a cell that stays open.

    first: whether the notebook has shown nothing but figures, imports and parameters so far.
    """
    lines, given = [*filter(str.strip, cell.source.splitlines())], set(tags(cell))
    if "parameters" in given:
        return "parameters"
    if "small" in given and not given & CLOSED:  # a part of the file that chapters 0 to 2 build
        return None
    if given & {"explorable", "lab"}:
        return f"code of the {'lab' if 'lab' in given else 'explorable'}"
    if re.search(r"^(def|print\(|assert) ?\(?check[_(]", cell.source, re.MULTILINE):
        return ANSWER
    if "mystnb" in cell.metadata and "figure" in cell.metadata["mystnb"]:
        return "code of the figure"
    if first and sum(bool(IMPORT.match(line)) for line in lines) >= 2:
        return "imports and set-up"
    if re.search(r"^\s*(_ = \[)?(glue|tell|verdict)\(", cell.source, re.MULTILINE):
        return "code, with the numbers for the text"
    if given & CLOSED or len(lines) > LINES or max(map(len, lines), default=0) > COLUMNS:
        made = re.findall(r"^(?:def|class) (\w+)", cell.source, re.MULTILINE)
        return f"code of {', '.join(made)}" if made else "code"
    return None


def folds(notebook: NotebookNode) -> Iterator[tuple[NotebookNode, str | None]]:
    """Each code cell that the page shows with the words of its button; None: it stays open.

    Cells of a solution are left out: the solution is folded as a whole.
    """
    solution, first = False, True
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            for word in re.findall(r"\{solution-(start|end)\}", cell.source):
                solution = word == "start"
        elif cell.cell_type == "code" and not solution:
            if not {"remove-cell", "remove-input"} & set(tags(cell)):
                what = kind(cell, first)
                first = first and what in BEFORE
                yield cell, what


def fold(notebook: NotebookNode) -> None:
    """Tag the cells that the page folds, each with the words of its button.

    What the check of an exercise says of no answer is for those who can give one: not for a page.
    """
    for cell, what in folds(notebook):
        if what == ANSWER:  # a stub is there to be seen
            cell.metadata["tags"] = sorted({*tags(cell), "remove-output"})
        elif what is not None:
            cell.metadata["tags"] = sorted({*tags(cell), "hide-input"})
            shown = cell.metadata.setdefault("mystnb", {})
            shown["code_prompt_show"] = f"Show {what}"
            shown["code_prompt_hide"] = f"Hide {what}"


def open_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """The code cells that the page shows open, without the parts of rr/small.py."""
    return [cell for cell, what in folds(notebook) if what is None and "small" not in tags(cell)]
