"""What the book's tools share: where things are, how notebooks are read, picked and written."""

import copy
import os
import re
import sys
from pathlib import Path

import nbformat

from rr.errors import RRError

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"
BUILD = ROOT / "_build"
EXECUTED = BUILD / "notebooks"

# rr and rrbook are read from this checkout, whatever else the environment holds
for place in (str(ROOT / "book"), str(ROOT)):
    if place not in sys.path:
        sys.path.insert(0, place)


def environment() -> dict[str, str]:
    """The environment for what the tools start: this checkout's packages come first there too."""
    paths = [str(ROOT), str(ROOT / "book"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "RR_EDITION": "1",  # recorded sentences are asserted: rrbook.glue.assert_recorded
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # no debugger's warnings at each kernel's start
    }


def sources(*picks: str) -> list[Path]:
    """The chapters in order; with `picks`, those whose name contains one of them."""
    notebooks = sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))
    if not picks:
        return notebooks
    chosen = [path for path in notebooks if any(Path(pick).stem in path.stem for pick in picks)]
    if not chosen:
        names = ", ".join(path.stem for path in notebooks) or "none yet"
        raise SystemExit(f"no notebook is called like {' or '.join(picks)}; there are: {names}")
    return chosen


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def write(notebook: nbformat.NotebookNode, path: Path) -> bool:
    """Write if the content differs, one way of formatting for all; say whether it did."""
    nbformat.validate(notebook)
    text = nbformat.writes(notebook).rstrip("\n") + "\n"
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return True


def tags(cell: nbformat.NotebookNode) -> list[str]:
    return list(cell.metadata.get("tags", []))


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def is_report(notebook: nbformat.NotebookNode) -> bool:
    """Reports (metadata `rr.kind = "report"`) need not follow the chapter template."""
    return notebook.metadata.get("rr", {}).get("kind") == "report"


def graft(source: nbformat.NotebookNode, executed: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The source notebook with the outputs of its executed copy.

    So a change in prose, alternative text or tags shows without executing anything again. The code
    must be the same cell by cell, which the key of the executed copy guarantees.
    """
    result, donors = copy.deepcopy(source), code_cells(executed)
    takers = code_cells(result)
    # the bootstrap cell outputs nothing, and its address may change without a new execution
    code = [
        [cell.source for cell in cells if "bootstrap" not in tags(cell)]
        for cells in (takers, donors)
    ]
    if code[0] != code[1]:
        raise SystemExit("the executed copy holds other code: run book/tools/execute.py first")
    for taker, donor in zip(takers, donors, strict=True):
        taker.outputs = copy.deepcopy(donor.outputs)
        taker.execution_count = donor.execution_count
    result.metadata.pop("widgets", None)
    if "widgets" in executed.metadata:
        result.metadata["widgets"] = copy.deepcopy(executed.metadata["widgets"])
    return result


def named(notebook: nbformat.NotebookNode) -> tuple[str, str]:
    """Label and title of a chapter, without the number that chapter 0 says itself."""
    match = re.match(r"\((?P<label>[\w-]+)\)=\n# (?:0\. )?(?P<title>.+)", notebook.cells[0].source)
    if match is None:
        raise RRError(f"a chapter begins with `(label)=` and `# Title`, got {notebook.cells[0].id}")
    return match["label"], match["title"]
