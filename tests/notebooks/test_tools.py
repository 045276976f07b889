"""What makes a notebook run again; storing is quiet."""

from pathlib import Path

import bootstrap
import execute
import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from nbkit import graft
from store import WIDGET_STATE, WIDGET_VIEW, clean

READ = ("rr/config.py", "book/rrbook/explorables/kit.js", "data/published/a.csv", "constraints.txt")


@pytest.fixture
def project(tmp_path) -> Path:
    """A small stand-in for the repository, to change without touching the real one."""
    for name in (*READ, "book/intro.md"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = 1\n")
    return tmp_path


def notebook(*sources):
    return new_notebook(cells=[new_code_cell(source) for source in sources])


def key(made, root: Path) -> str:
    """The key that a tool would find which is started now."""
    execute.shared.cache_clear()
    return execute.key(made, root)


@pytest.mark.parametrize(
    ("changed", "again"),
    [
        *((name, True) for name in READ),
        ("data/published/new.csv", True),
        ("book/intro.md", False),
        ("rr/__pycache__/config.pyc", False),
    ],
)
def test_what_makes_a_notebook_run_again(project, changed, again):
    made = notebook("from rr import config")
    before = key(made, project)
    assert key(made, project) == before
    (project / changed).parent.mkdir(exist_ok=True)
    with (project / changed).open("a") as file:
        file.write("# changed\n")
    assert (key(made, project) != before) is again


def test_code_makes_a_notebook_run_again_and_prose_does_not(project):
    made = notebook("x = 1")
    before = key(made, project)
    made.cells.append(new_markdown_cell("Words."))
    made.cells[0].metadata["tags"] = ["hide-input"]
    bootstrap.refresh(made)
    assert key(made, project) == before
    made.cells.append(new_code_cell("x = 2"))
    assert key(made, project) != before


def test_outputs_are_grafted_onto_new_prose():
    executed = notebook("x = 1")
    executed.cells[0].outputs = [new_output("stream", name="stdout", text="1\n")]
    executed.cells[0].execution_count = 1
    source = new_notebook(cells=[new_markdown_cell("New."), new_code_cell("x = 1")])
    result = graft(source, executed)
    assert [cell.source for cell in result.cells] == ["New.", "x = 1"]
    assert result.cells[1].outputs[0].text == "1\n"
    with pytest.raises(SystemExit, match="other code"):
        graft(notebook("x = 2"), executed)


def test_storing_two_runs_gives_one_file():
    def run(ids: dict[str, str], start: str, pieces: list[str]):
        made = notebook("show()")
        made.metadata["papermill"] = {"start_time": start}
        made.metadata["language_info"] = {"name": "python", "version": start}
        slider, text = (f"IPY_MODEL_{ids[name]}" for name in ("slider", "text"))
        models = {"box": {"children": [slider, text]}, "slider": {"value": 3},
                  "text": {"value": "words"}, "link": {"source": [slider, "value"]}}  # fmt: skip
        # papermill stores them sorted by their random ids; nothing shows the link
        state = {ids[name]: models[name] for name in sorted(ids, key=ids.get)}
        made.metadata["widgets"] = {WIDGET_STATE: {"state": state}}
        cell = made.cells[0]
        cell.id = "show"
        cell.metadata = {"papermill": {"duration": start}, "tags": ["lab"]}
        cell.outputs = [new_output("stream", name="stdout", text=piece) for piece in pieces]
        view = {WIDGET_VIEW: {"model_id": ids["box"]}}
        cell.outputs.append(new_output("display_data", data=view))
        return clean(made, "01_made")

    def ids(letters: str) -> dict[str, str]:
        names = ("box", "slider", "text", "link")
        return {name: 32 * letter for name, letter in zip(names, letters, strict=True)}

    one = run(ids("abcd"), "1", ["first\n", "second\n"])
    two = run(ids("4321"), "2", ["first\nsecond\n"])
    assert nbformat.writes(one) == nbformat.writes(two)
    assert one.cells[0].metadata == {"tags": ["lab"]}
    state = one.metadata["widgets"][WIDGET_STATE]["state"]
    box = state[one.cells[0].outputs[1].data[WIDGET_VIEW]["model_id"]]
    shown = [state[child.removeprefix("IPY_MODEL_")]["value"] for child in box["children"]]
    assert shown == [3, "words"]
