"""The cache knows what a notebook depends on; storing is quiet; there is one home address."""

import shutil
from pathlib import Path

import bootstrap
import dependencies
import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from nbkit import graft
from store import WIDGET_STATE, WIDGET_VIEW, clean


@pytest.fixture
def project(tmp_path) -> Path:
    """A small stand-in for the repository, to change without touching the real one."""
    files = {
        "rr/__init__.py": "DATA = 'data'\n_WHERE = {'train': 'trainer'}\n",
        "rr/config.py": "x = 1\n",
        "rr/model.py": "from .config import x\n",
        "rr/trainer.py": "def train():\n    from rr.late import y\n    return y\n",
        "rr/late.py": "y = 2\n",
        "rr/apart.py": "z = 3\n",
        "rr/explore/__init__.py": "from .kit import draw\n",
        "rr/explore/kit.py": "from ..config import x\ndraw = x\n",
        "rr/explore/kit.js": "draw()\n",
        "data/published/a.csv": "1\n",
        "constraints.txt": "torch==1\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def notebook(*sources):
    return new_notebook(cells=[new_code_cell(source) for source in sources])


@pytest.mark.parametrize(("source", "parts"), [
    ("import numpy", set()),
    ("from rr import DATA", set()),
    ("from rr.model import Model", {"model", "config"}),
    ("from rr import model", {"model", "config"}),
    ("import rr.model as m", {"model", "config"}),
    ("import rr.trainer", {"trainer", "late"}),  # an import inside a function counts
    ("def later():\n    from rr import apart\n", {"apart"}),
    ("from rr.explore import draw", {"explore", "config"}),
    ("import rr\nrr.config.x", {"config"}),
    ("import rr\nrr.DATA", set()),
])
def test_parts_that_a_notebook_imports(project, source, parts):
    assert dependencies.parts(notebook(source), project / "rr") == parts


@pytest.mark.parametrize("source", [
    "from rr import train",  # a lazy name: where it leads, no import statement says
    "from rr import *",
    "import rr as r\nr.train()",
    "import rr\nrr.train()",
    "!rr ladder",
    "%run something.py",
])
def test_what_cannot_be_followed_counts_everything(project, source):
    whole = {"config", "model", "trainer", "late", "apart", "explore"}
    assert dependencies.parts(notebook(source), project / "rr") == whole


@pytest.mark.parametrize(("changed", "again"), [
    ("rr/model.py", True),
    ("rr/config.py", True),  # through model
    ("rr/__init__.py", True),
    ("data/published/a.csv", True),
    ("constraints.txt", True),
    ("rr/apart.py", False),
])
def test_what_makes_a_notebook_run_again(project, changed, again):
    made = notebook("from rr import model")
    before = dependencies.key(made, project)
    with (project / changed).open("a") as file:
        file.write("# changed\n")
    assert (dependencies.key(made, project) != before) is again


def test_a_script_beside_the_code_counts(project):
    made = notebook("from rr.explore import draw")
    before = dependencies.key(made, project)
    (project / "rr/explore/kit.js").write_text("draw(2)\n")
    assert dependencies.key(made, project) != before


def test_a_new_data_file_counts_and_prose_does_not(project):
    made = notebook("x = 1")
    before = dependencies.key(made, project)
    made.cells.append(new_markdown_cell("Words."))
    made.cells[0].metadata["tags"] = ["hide-input"]
    assert dependencies.key(made, project) == before
    shutil.copy(project / "data/published/a.csv", project / "data/published/b.csv")
    assert dependencies.key(made, project) != before


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
        models = {
            "box": {"children": [f"IPY_MODEL_{ids['slider']}", f"IPY_MODEL_{ids['text']}"]},
            "slider": {"value": 3},
            "text": {"value": "words"},
            "link": {"source": [f"IPY_MODEL_{ids['slider']}", "value"]},  # nothing shows it
        }
        # papermill stores them sorted by their random ids
        state = {ids[name]: models[name] for name in sorted(ids, key=ids.get)}
        made.metadata["widgets"] = {WIDGET_STATE: {"state": state}}
        cell = made.cells[0]
        cell.id = "show"
        cell.metadata = {"papermill": {"duration": start}, "execution": {"started": start},
                         "tags": ["lab"]}
        cell.outputs = [new_output("stream", name="stdout", text=piece) for piece in pieces]
        view = {WIDGET_VIEW: {"model_id": ids["box"]}}
        cell.outputs.append(new_output("display_data", data=view))
        return clean(made, "01_made")

    names = ["box", "slider", "text", "link"]
    one = run(dict(zip(names, ["a" * 32, "b" * 32, "c" * 32, "d" * 32], strict=True)),
              "1", ["first\n", "second\n"])
    two = run(dict(zip(names, ["4" * 32, "3" * 32, "2" * 32, "1" * 32], strict=True)),
              "2", ["first\nsecond\n"])
    assert nbformat.writes(one) == nbformat.writes(two)
    assert one.cells[0].metadata == {"tags": ["lab"]}
    state = one.metadata["widgets"][WIDGET_STATE]["state"]
    box = state[one.cells[0].outputs[1].data[WIDGET_VIEW]["model_id"]]
    assert [state[child.removeprefix("IPY_MODEL_")]["value"] for child in box["children"]] == [
        3, "words"]


def test_the_bootstrap_cell_is_inserted_once_and_refreshed():
    made = new_notebook(cells=[new_markdown_cell("# Title"), new_code_cell("x = 1", id="x")])
    for _ in range(2):
        bootstrap.refresh(made)
        assert [cell.get("id") for cell in made.cells][1:] == [bootstrap.CELL_ID, "x"]
    made.cells[1].source = "old"
    bootstrap.refresh(made)
    assert made.cells[1].source == bootstrap.source()


def test_the_bootstrap_cell_does_nothing_where_rr_can_be_imported(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("something was run")

    monkeypatch.setattr("subprocess.run", refuse)
    exec(compile(bootstrap.source(), "bootstrap", "exec"), {})


def test_the_bootstrap_cell_clones_home_and_installs_with_lower_bounds(monkeypatch, tmp_path):
    import rr

    ran = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("subprocess.run", lambda command, check: ran.append(command))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("sys.path", [])
    exec(compile(bootstrap.source(), "bootstrap", "exec"), {})
    clone, install = ran
    assert clone[:2] == ["git", "clone"] and rr.HOME in clone
    assert install[-1].endswith("[notebooks,hub]") and not any("==" in word for word in install)
