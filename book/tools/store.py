"""Put the outputs of the executed copies back into notebooks/, cleaned so that re-storing is quiet.

    python book/tools/store.py [NAME ...]

What changes with every run and says nothing goes: papermill's timestamps and paths, execution
times, the Python version, random widget ids. The state of widgets stays, because the page shows it.
An explorable that has changed is drawn by Chromium: see drawings.py. The numbers of the book's run
go to book/values/ too, from where every copy of a chapter reads them (rrbook.yours).
"""

import ast
import hashlib
import json
import re
import sys

import drawings
import nbformat
from execute import current
from nbkit import EXECUTED, code_cells, graft, is_report, read, sources, tags, write

from rrbook import yours
from rrbook.plain import glued

NOISE = ("papermill", "execution", "ExecuteTime", "collapsed", "scrolled")
WIDGET_STATE = "application/vnd.jupyter.widget-state+json"
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def clean(notebook: nbformat.NotebookNode, name: str) -> nbformat.NotebookNode:
    """The notebook without what differs from run to run."""
    notebook.metadata.pop("papermill", None)
    notebook.metadata["kernelspec"] = {
        "display_name": "Python 3",
        "language": "python",
        "name": "python3",
    }
    notebook.metadata["language_info"] = {"name": "python"}
    for cell in notebook.cells:
        for word in NOISE:
            cell.metadata.pop(word, None)
    for cell in code_cells(notebook):
        cell.outputs = _merged(cell.outputs)
    return _stable_widgets(notebook, name)


def _merged(outputs: list) -> list:
    """Adjacent pieces of one stream as one: where they were cut depends on timing alone."""
    merged: list = []
    for output in outputs:
        last = merged[-1] if merged else None
        if last and output.output_type == last.output_type == "stream" and output.name == last.name:
            last.text += output.text
        else:
            merged.append(output)
    return merged


REFERENCE = re.compile(r"IPY_MODEL_(\w+)")


def _in_order(notebook: nbformat.NotebookNode, state: dict) -> list[str]:
    """The widgets' ids in an order that does not depend on the ids: as the page meets them.

    First what the cells show, each followed by what it refers to; then what nothing shows (links
    between widgets), by content.
    """
    order: list[str] = []

    def visit(model: str) -> None:
        if model in state and model not in order:
            order.append(model)
            for below in REFERENCE.findall(json.dumps(state[model], sort_keys=True)):
                visit(below)

    for cell in code_cells(notebook):
        for output in cell.outputs:
            visit(output.get("data", {}).get(WIDGET_VIEW, {}).get("model_id", ""))

    def content(model: str) -> str:
        place = {known: str(i) for i, known in enumerate(order)}
        text = json.dumps(state[model], sort_keys=True)
        return REFERENCE.sub(lambda match: place.get(match[1], "unseen"), text)

    while rest := [model for model in state if model not in order]:
        visit(min(rest, key=content))
    return order


def _stable_widgets(notebook: nbformat.NotebookNode, name: str) -> nbformat.NotebookNode:
    """Rename the random model ids by their order in this notebook."""
    state = notebook.metadata.get("widgets", {}).get(WIDGET_STATE, {}).get("state", {})
    renamed = {
        old: hashlib.sha256(f"{name} widget {i}".encode()).hexdigest()[:32]
        for i, old in enumerate(_in_order(notebook, state))
    }
    if not renamed:
        return notebook
    pattern = re.compile("|".join(map(re.escape, renamed)))
    text = pattern.sub(lambda match: renamed[match.group()], nbformat.writes(notebook))
    return nbformat.reads(text, as_version=4)


def book_values(notebook: nbformat.NotebookNode) -> str:
    """The book's run of a chapter as book/values/ holds it: parameters and glued values."""
    cell = next(cell for cell in notebook.cells if "parameters" in tags(cell))
    parameters = {
        line.targets[0].id: ast.literal_eval(line.value) for line in ast.parse(cell.source).body
    }
    held = {"parameters": parameters, "values": glued(notebook)}
    return json.dumps(held, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    if drawings.chromium() and not sys.argv[1:]:
        drawings.store_pages()
    for path in sources(*sys.argv[1:]):
        if not current(path):
            raise SystemExit(f"store: {path.name} is not executed as it stands; execute it first")
        before = read(path)
        stored = clean(graft(before, read(EXECUTED / path.name)), path.stem)
        drawings.add(stored, drawings.keep(stored, before))
        changed = write(stored, path)
        if not is_report(stored):  # which speaks of its own run
            yours.FOLDER.mkdir(exist_ok=True)
            values = yours.FOLDER / f"{path.stem}.json"
            values.write_text(book_values(stored), encoding="utf-8")
        print(f"store: {path.name} {'refreshed' if changed else 'unchanged'}")


if __name__ == "__main__":
    main()
