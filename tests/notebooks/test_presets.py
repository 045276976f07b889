"""Buttons in the text that set an explorable: what they set exists."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from rules import problems

from rr.errors import RRError
from rrbook import explore
from rrbook.markdown import preset


def shown(text):
    """A notebook with the text and the explorable of chapter 1."""
    html = explore.stream_share().html
    cell = new_code_cell("explore.stream_share()", id="explorable")
    cell.outputs = [new_output("display_data", data={"text/html": html})]
    return new_notebook(cells=[new_markdown_cell(text, id="text"), cell])


def test_what_a_preset_says():
    text = "64 sublayers <stream-share sublayers=64 rule=sum>"
    assert preset(text) == ("64 sublayers", "stream-share", {"sublayers": "64", "rule": "sum"})
    with pytest.raises(RRError, match="role {preset} needs"):
        preset("stream-share")


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("stream-share sublayers=64 rule=convex", None),
        ("stream-share sublayers=65", "no control 'sublayers' that takes '65'"),
        ("stream-share rule=cubic", "no control 'rule' that takes 'cubic'"),
        ("stream-share depth=4", "no control 'depth'"),
        ("stream", "shows no explorable 'stream'"),
    ],
)
def test_a_preset_sets_what_its_explorable_has(target, said, tmp_path):
    path = tmp_path / "01_made.ipynb"
    nbformat.write(shown(f"Try {{preset}}`this <{target}>`."), path)
    found = [problem for problem in problems(path) if "preset: " in problem]
    assert len(found) == (said is not None) and all(said in problem for problem in found)
