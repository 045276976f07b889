"""The recorded grid of a lab: what is kept, what is refused, and how a page comes to show it."""

import base64
import json
import random
import re
import zlib
from html import unescape

import ipywidgets as widgets
import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from rr.errors import RRError
from rrbook import figures
from rrbook.labs.lab import RECORD, Lab
from rrbook.labs.recorded import FIGURE, MOST, record


def controls():
    return {
        "k": widgets.IntSlider(2, 0, 9, description="factor"),
        "law": widgets.Dropdown(options={"a line": "line", "a curve": "curve"}, value="line"),
        "end": widgets.FloatSlider(1.0, min=0, max=3, description="end"),
    }


def draw(k, law, end):
    figure, ax = figures.canvas(height=2)
    ax.plot([0, end / 2, end], [0, k / 2 if law == "line" else k / 4, k])
    return figure, f"{law}, factor {k}, to {end:g}"


GRID = {"k": [1, 2, 4], "law": ["line", "curve"]}


def parts(html):
    """Axes, and each state's picture and sentence, as the page's script unpacks them."""
    data = json.loads(unescape(re.findall(r'data-values="([^"]*)"', html)[0]))
    kept = json.loads(zlib.decompress(base64.b64decode(data["packed"])))
    states = [
        ("\n".join(kept["lines"][i] for i in one["lines"]), one["said"]) for one in kept["states"]
    ]
    return data["axes"], states


@pytest.fixture(scope="module")
def made():
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(RECORD, "1")
        return Lab("mine", controls(), draw, "Move it.", GRID)


def test_every_combination_is_what_the_real_code_draws_and_says(made):
    axes, states = parts(made.children[-1].value)
    words = [["1", "2", "4"], ["a line", "a curve"]]
    assert [axis["words"] for axis in axes] == words
    assert [said for _, said in states] == [
        f"{law}, factor {k}, to 1" for k in (1, 2, 4) for law in ("line", "curve")
    ]
    assert len({picture for picture, _ in states}) > 4
    assert all(p.startswith("<svg ") and p.endswith("</svg>") for p, _ in states)
    assert states[2][0] in made.children[-1].value  # the first state, for a page without scripts
    assert len(made.children[-1].value) < MOST


def test_only_the_book_records_and_a_live_lab_shows_none_of_it(made, monkeypatch):
    assert made.children[-1].layout.display == "none"
    monkeypatch.delenv(RECORD, raising=False)
    live = Lab("mine", controls(), draw, "Move it.", GRID)
    assert not any(FIGURE in getattr(child, "value", "") for child in live.children)


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        ({"k": [1, 4]}, "k starts at 2, which is not recorded"),
        ({"k": [2], "end": [1.0 + i / 400 for i in range(400)]}, "at most 44000 are allowed"),
    ],
)
def test_a_grid_that_cannot_be_shown_is_refused(monkeypatch, grid, said):
    noise = random.Random(0)
    monkeypatch.setattr("rrbook.labs.recorded.drawn", lambda figure: noise.randbytes(200).hex())
    with pytest.raises(RRError, match=said):
        record("mine", controls(), lambda **values: (None, str(values)), "", grid)


def notebook(*shown):
    """A notebook whose cells show these widgets, as an executed one holds them."""
    state = widgets.Widget.get_manager_state()
    view = "application/vnd.jupyter.widget-view+json"
    cells = [
        new_code_cell(outputs=[new_output("display_data", {view: {"model_id": one.model_id}})])
        for one in shown
    ]
    book = new_notebook(cells=cells)
    book.metadata["widgets"] = nbformat.from_dict(
        {"application/vnd.jupyter.widget-state+json": state}
    )
    return book


def test_the_page_shows_the_grid_in_place_of_the_widgets(made):
    labs = pytest.importorskip("labs")
    book = notebook(made)
    labs.show(book)
    (output,) = book.cells[0].outputs
    assert output.data == {"text/html": made.children[-1].value} and "widgets" not in book.metadata
    with pytest.raises(SystemExit, match="without a recorded grid, and a page has no kernel"):
        labs.show(notebook(made, widgets.IntSlider()))
