"""The book's status page: when each notebook was executed, how long, its memory and its checks.

Written when the book is rendered, from the executed copies and the records that execute.py leaves.
"""

import json
from pathlib import Path

from nbformat import NotebookNode
from nbkit import code_cells, tags

CHECKS = ("exact", "tolerance", "ordering", "recorded")
HEAD = """(status)=
# Status

What this copy of the book was built from. Each notebook is executed whole, at the smoke tier; its
checks are `assert` statements, and a failed one stops the build. What the kinds of figure checks
mean is {ref}`said here <figure-checks>`.

| chapter | executed (UTC) | seconds | peak memory | code cells | with checks | figures by check |
|---|---|---|---|---|---|---|
"""


def row(name: str, notebook: NotebookNode, executed: Path | None) -> str:
    """A chapter's line. executed: the folder of executed copies; None for the stored outputs."""
    cells = code_cells(notebook)
    kinds = [sum(f"check-{kind}" in tags(cell) for cell in cells) for kind in CHECKS]
    figures = ", ".join(f"{n} {kind}" for n, kind in zip(kinds, CHECKS, strict=True) if n)
    checked = sum("assert" in cell.source for cell in cells)
    when, seconds, peak = "stored outputs", "", ""
    if executed is not None:
        copy = json.loads((executed / f"{name}.ipynb").read_text(encoding="utf-8"))
        when = str(copy["metadata"]["papermill"]["end_time"])[:16].replace("T", " ")
        record = json.loads((executed / f"{name}.json").read_text())
        seconds = f"{record['seconds']:.0f}"
        peak = f"{record['peak_mib']:,.0f} MiB" if record.get("peak_mib") else "not measured"
    return (f"| [{name}](../notebooks/{name}.ipynb) | {when} | {seconds} | {peak} | {len(cells)} "
            f"| {checked} | {figures or 'none'} |\n")  # fmt: skip


def page(notebooks: dict[str, NotebookNode], executed: Path | None) -> str:
    """The page, as Markdown; notebooks by their file's stem, in order."""
    return HEAD + "".join(row(name, one, executed) for name, one in notebooks.items())
