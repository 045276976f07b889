"""Labs on the page: their recorded grid in place of widgets that no kernel answers."""

import nbformat
from nbkit import code_cells
from store import REFERENCE, WIDGET_STATE, WIDGET_VIEW

from rrbook.labs.recorded import FIGURE


def show(notebook: nbformat.NotebookNode) -> None:
    """Show each lab's recorded grid; SystemExit where a widget has none."""
    state = notebook.metadata.get("widgets", {}).get(WIDGET_STATE, {}).get("state", {})
    for cell in code_cells(notebook):
        for output in cell.outputs:
            shown = output.get("data", {}).get(WIDGET_VIEW)
            if shown is None:
                continue
            parts = state.get(shown["model_id"], {}).get("state", {}).get("children", ())
            models = [state[name]["state"] for name in REFERENCE.findall(" ".join(parts))]
            grids = [one["value"] for one in models if str(one.get("value")).startswith(FIGURE)]
            if not grids:
                raise SystemExit(
                    f"render: cell {cell.id!r} shows a widget without a recorded grid, and a page "
                    "has no kernel: give its lab a `grid`, execute and store the notebook again"
                )
            output.data = nbformat.from_dict({"text/html": grids[0]})
    notebook.metadata.pop("widgets", None)
