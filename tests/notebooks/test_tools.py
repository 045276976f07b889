"""The cache knows what a notebook depends on; storing is quiet; there is one home address."""

import shutil
from pathlib import Path

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
        "rr/__init__.py": "DATA = 'data'\n_WHERE = {'train': 'training.trainer'}\n",
        "rr/config.py": "x = 1\n",
        "rr/model/__init__.py": "from .transformer import Model\n",
        "rr/model/transformer.py": "from ..config import x\nModel = x\n",
        "rr/model/ladder.py": "y = 1\n",
        "rr/training/__init__.py": "",
        "rr/training/trainer.py": "def train():\n    from rr.late import y\n    return y\n",
        "rr/late.py": "y = 2\n",
        "rr/apart.py": "z = 3\n",
        "book/rrbook/__init__.py": "",
        "book/rrbook/explore.py": "from .explorables.kit import draw\n"
        "_LABS = {'lab_late': 'late'}\n",
        "book/rrbook/labs/__init__.py": "",
        "book/rrbook/labs/late.py": "def lab_late():\n    from rr.late import y\n",
        "book/rrbook/explorables/__init__.py": "",
        "book/rrbook/explorables/kit.py": "from rr.config import x\ndraw = x\n",
        "book/rrbook/explorables/kit.js": "draw()\n",
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


MODEL = {"rr", "rr.model", "rr.model.transformer", "rr.config"}
EXPLORE = {
    "rr",
    "rr.config",
    "rrbook",
    "rrbook.explore",
    "rrbook.explorables",
    "rrbook.explorables.kit",
}
LATE = {"rrbook.labs", "rrbook.labs.late", "rr.late"}
TRAINER = {"rr", "rr.training", "rr.training.trainer", "rr.late"}


@pytest.mark.parametrize(
    ("source", "reached"),
    [
        ("import numpy", set()),
        ("from rr import DATA", {"rr"}),
        ("from rr.model import Model", MODEL),
        ("from rr import model", MODEL),
        ("import rr.model.transformer as m", MODEL),
        ("from rr.model import ladder", MODEL | {"rr.model.ladder"}),
        ("import rr.training.trainer", TRAINER),  # an import inside a function counts
        ("from rr import train", TRAINER),  # a lazy name is followed to its module
        ("import rr\nrr.train()", TRAINER),
        ("import rr as r\nr.train()", TRAINER),
        ("def later():\n    from rr import apart\n", {"rr", "rr.apart"}),
        ("from rrbook.explore import draw", EXPLORE),
        ("from rrbook import explore\nexplore.draw()", EXPLORE),
        ("from rrbook import explore as e\ne.lab_late()", EXPLORE | LATE),
        ("from rrbook.explore import lab_late", EXPLORE | LATE),
        ("import rr\nrr.config.x", {"rr", "rr.config"}),
        ("import rr\nrr.DATA", {"rr"}),
    ],
)
def test_modules_that_a_notebook_reaches(project, source, reached):
    assert dependencies.reached(notebook(source), project) == reached


@pytest.mark.parametrize(
    "source",
    [
        "from rr import *",
        "import rr\nrr.unheard_of()",
        "!rr ladder",
        "%run something.py",
    ],
)
def test_what_cannot_be_followed_counts_everything(project, source):
    everything = set(dependencies.modules(project))
    assert dependencies.reached(notebook(source), project) == everything


@pytest.mark.parametrize(
    ("changed", "again"),
    [
        ("rr/model/transformer.py", True),
        ("rr/config.py", True),  # through model
        ("rr/__init__.py", True),
        ("data/published/a.csv", True),
        ("constraints.txt", True),
        ("rr/model/ladder.py", False),  # in the same package, and not imported
        ("rr/apart.py", False),
    ],
)
def test_what_makes_a_notebook_run_again(project, changed, again):
    made = notebook("from rr import model")
    before = dependencies.key(made, project)
    with (project / changed).open("a") as file:
        file.write("# changed\n")
    assert (dependencies.key(made, project) != before) is again


def test_a_script_beside_the_code_counts(project):
    made = notebook("from rrbook.explore import draw")
    before = dependencies.key(made, project)
    (project / "book/rrbook/explorables/kit.js").write_text("draw(2)\n")
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
        cell.metadata = {
            "papermill": {"duration": start},
            "execution": {"started": start},
            "tags": ["lab"],
        }
        cell.outputs = [new_output("stream", name="stdout", text=piece) for piece in pieces]
        view = {WIDGET_VIEW: {"model_id": ids["box"]}}
        cell.outputs.append(new_output("display_data", data=view))
        return clean(made, "01_made")

    names = ["box", "slider", "text", "link"]
    one = run(
        dict(zip(names, ["a" * 32, "b" * 32, "c" * 32, "d" * 32], strict=True)),
        "1",
        ["first\n", "second\n"],
    )
    two = run(
        dict(zip(names, ["4" * 32, "3" * 32, "2" * 32, "1" * 32], strict=True)),
        "2",
        ["first\nsecond\n"],
    )
    assert nbformat.writes(one) == nbformat.writes(two)
    assert one.cells[0].metadata == {"tags": ["lab"]}
    state = one.metadata["widgets"][WIDGET_STATE]["state"]
    box = state[one.cells[0].outputs[1].data[WIDGET_VIEW]["model_id"]]
    assert [state[child.removeprefix("IPY_MODEL_")]["value"] for child in box["children"]] == [
        3,
        "words",
    ]
