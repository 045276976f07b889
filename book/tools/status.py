"""The book's status page: when each notebook was executed, how long, its memory and its checks.

Written when the book is rendered, from the executed copies and the records that execute.py leaves.
"""

import json
from pathlib import Path

from nbformat import NotebookNode
from nbkit import code_cells, named, tags

from rrbook.labels import CHECKS
from rrbook.markdown import table_row

EXECUTED = """This copy of the book executed each notebook whole, at the smoke tier. Its checks are
`assert` statements, and a failed one stops the build."""
STORED = """This copy of the book shows the outputs that are stored in the notebooks; it executed
nothing. The checks are `assert` statements, which ran when the outputs were stored."""
HEAD = """(status)=
# Status

{built} What the kinds of figure checks mean is {{ref}}`said here <figure-checks>`.

"""
RUN = ("executed (UTC)", "seconds", "peak memory")  # columns that a copy from stored outputs lacks


def row(name: str, notebook: NotebookNode, executed: Path | None) -> str:
    """A chapter's line. executed: the folder of executed copies; None for the stored outputs."""
    cells = code_cells(notebook)
    kinds = {tag.partition("-")[2]: sum(tag in tags(cell) for cell in cells) for tag in CHECKS}
    figures = ", ".join(f"{n} {kind}" for kind, n in kinds.items() if n)
    checked = sum("assert" in cell.source for cell in cells)
    run = []
    if executed is not None:
        copy = json.loads((executed / f"{name}.ipynb").read_text(encoding="utf-8"))
        when = str(copy["metadata"]["papermill"]["end_time"])[:16].replace("T", " ")
        record = json.loads((executed / f"{name}.json").read_text())
        seconds = f"{record['seconds']:.0f}"
        peak = f"{record['peak_mib']:,.0f} MiB" if record.get("peak_mib") else "not measured"
        run = [when, seconds, peak]
    title = f"{int(name[:2])}. {named(notebook)[1]}"
    return table_row(
        [
            f"[{title}](../notebooks/{name}.ipynb)",
            *run,
            str(len(cells)),
            str(checked),
            figures or "none",
        ]
    )


def page(notebooks: dict[str, NotebookNode], executed: Path | None) -> str:
    """The page, as Markdown; notebooks by their file's stem, in order."""
    columns = [
        "chapter",
        *(RUN if executed else ()),
        "code cells",
        "with checks",
        "figures by check",
    ]
    head = HEAD.format(built=STORED if executed is None else EXECUTED)
    rows = [table_row(columns), table_row(["---"] * len(columns))]
    rows += [row(name, one, executed) for name, one in notebooks.items()]
    return head + "\n".join(rows) + "\n"
