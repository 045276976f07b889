"""What a notebook is told, checked before it trains: in a shell, and by papermill itself."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rr
from rr.errors import RRError
from rrbook import parameters

ROOT = Path(__file__).resolve().parents[2]
CELL = """\
tier = "smoke"        # smoke, colab or paper
depths = [4, 16, 32]  # sublayers
seeds = []            # seeds; [] takes the tier's own
lr = 3e-3             # peak learning rate
steps = 0             # optimiser steps; 0: the rung's own
corpus = "fables"     # the text
decay = False         # whether the rate falls
"""
CHECK = 'steps = parameters.check(tier, {"smoke": 80, "colab": 1500})'


@pytest.fixture
def shell():
    """Run cells as a kernel does; the error that the last one ended with, or None."""
    InteractiveShell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell
    made = InteractiveShell.instance()
    made.user_ns["parameters"] = parameters

    def run(*cells):
        for cell in cells:
            done = made.run_cell(cell, store_history=True)
        return done.error_in_exec

    run.space = made.user_ns
    run.shell = made
    yield run
    InteractiveShell.clear_instance()


def test_a_notebook_as_it_is_stored_passes(shell):
    assert shell(CELL, CHECK) is None and shell.space["steps"] == 80
    assert shell(CHECK) is None  # the cell alone, again: steps is derived by now


def test_what_is_accepted(shell):
    for line in ('tier = "colab"', "lr = 1", "steps = 12", "depths = []", "decay = True"):
        assert shell(CELL, f"# Parameters\n{line}\n", CHECK) is None, line
    # numbers that YAML takes for text
    given = "# Parameters\nlr = '1e-3'\nsteps = '1e2'\ndepths = ['4', 8]\n"
    assert shell(CELL, given, CHECK) is None
    assert [shell.space[name] for name in ("lr", "depths")] == [1e-3, [4, 8]]


BAD = {
    'tier = "smok"': "unknown tier 'smok': did you mean smoke? expected one of: colab, smoke",
    "tier = 3": 'parameter tier must be text, got 3; papermill takes text as it is by -r tier "3"',
    'depths = "[4, 16]"': "parameter depths must be a list of integers, got '[4, 16]'; papermill "
    'takes a list by -y "depths: [4, 16]"',
    "depths = [4, True]": "parameter depths must be a list of integers, got [4, True]",
    'lr = "1e-3x"': "parameter lr must be a number, got '1e-3x'",
    "steps = 1.5": "parameter steps must be an integer, got 1.5",
    'decay = "true"': "parameter decay must be True or False, got 'true'",
    "depth = [4]": "unknown parameter 'depth': did you mean depths? expected one of: corpus, "
    "decay, depths, lr, seeds, steps, tier",
    # out of range
    "depths = [4, 7]": "parameter depths must be a list of at least 2 different values, each a "
    "multiple of 2 from 2 to 64, got [4, 7]",
    "depths = [4, 4]": "parameter depths must be a list of at least 2 different values, each a "
    "multiple of 2 from 2 to 64, got [4, 4]",
    "lr = float('nan')": "parameter lr must be a number from 1e-06 to 1, got nan",
    'corpus = "poems"': "parameter corpus must be one of fables, tales, got 'poems'",
}
RANGES = (
    "depths=parameters.whole(2, 64, step=2, least=2), lr=parameters.number(1e-6, 1), "
    'corpus=parameters.one_of("fables", "tales"))'
)


@pytest.mark.parametrize(("line", "said"), BAD.items(), ids=BAD)
def test_what_is_refused_in_one_line(shell, capsys, line, said):
    error = shell(CELL, f"# Parameters\n{line}\n", f"{CHECK[:-1]}, {RANGES}")
    assert isinstance(error, RRError) and str(error) == said
    shown = capsys.readouterr().out.splitlines()
    assert [text for text in shown if text and not text.startswith("Out")] == [
        f"BadParameter: {said}"
    ]


def test_an_edited_cell_counts_and_an_old_injection_does_not(shell):
    assert shell(CELL, "# Parameters\nnone_such = 1\n", CHECK) is not None
    assert shell(CELL.replace("[4, 16, 32]", "[8]"), CHECK) is None
    assert shell('depths = "[4]"', CHECK) is not None  # from whatever cell it comes


def test_an_expression_of_a_reader_s_own_is_taken_for_what_it_came_to(shell):
    assert shell(CELL.replace("seeds = []", "seeds = list(range(3))"), CHECK) is None
    for old, new, said in (
        ("seeds = []", "seeds = 5", "parameter seeds must be a list of at least 2 different"),
        ("seeds = []", "seeds = list(range(1))", "parameter seeds must be a list of at least 2"),
        ("lr = 3e-3", "lr = None", "parameter lr must be a number from 1e-06 to 1, got None"),
        ("lr = 3e-3", 'lr = "3e-3"', "parameter lr must be a number from 1e-06 to 1, got '3e-3'"),
    ):
        allowed = "seeds=parameters.SEEDS" if "seeds" in old else "lr=parameters.number(1e-6, 1)"
        error = shell(CELL.replace(old, new), f"{CHECK[:-1]}, {allowed})")
        assert isinstance(error, RRError) and str(error).startswith(said), new


def test_without_a_kernel_the_tier_is_checked():
    assert parameters.check("colab", {"smoke": 1, "colab": 2}) == 2
    with pytest.raises(RRError, match="unknown tier 'colob': did you mean colab"):
        parameters.check("colob", {"smoke": 1, "colab": 2})


# ---- papermill ---------------------------------------------------------------------------------


def test_papermill_ends_with_that_line(tmp_path):
    """Of a copy without the figure before the parameters and without what follows the check."""
    pytest.importorskip("papermill")
    notebook = json.loads((ROOT / "notebooks" / "03_depth_stability.ipynb").read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    (at,) = [i for i, c in enumerate(cells) if "parameters.check(tier, " in "".join(c["source"])]
    kept = [c for c in cells[: at + 1] if "check-recorded" not in c["metadata"].get("tags", [])]
    notebook["cells"] = kept
    (tmp_path / "in.ipynb").write_text(json.dumps(notebook))
    command = [sys.executable, "-m", "papermill", "in.ipynb", "out.ipynb", "-p", "seeds", "[0, 1]"]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'book'}"}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=env)
    assert done.returncode != 0
    assert done.stderr.strip().splitlines()[-1] == (
        "BadParameter: parameter seeds must be a list of integers, got '[0, 1]'; papermill takes "
        'a list by -y "seeds: [0, 1]"'
    )


# ---- the text and the machine of a chapter's runs ------------------------------------------------


def test_papermills_own_paths_are_no_parameters(shell):
    """As `papermill --inject-paths` gives them."""
    given = "# Parameters\nPAPERMILL_INPUT_PATH = 'a'\nPAPERMILL_OUTPUT_PATH = 'b'\nsteps = 3\n"
    assert shell(CELL, given, CHECK) is None
    error = shell(CELL, "# Parameters\nPAPERWEIGHT = 'a'\n", CHECK)
    assert "unknown parameter 'PAPERWEIGHT'" in str(error)


def test_a_list_that_is_too_long_is_refused_in_words():
    assert not parameters.SEEDS.refuses(list(range(100)))  # as many as there are
    allowed = parameters.number(1e-5, 0.1, least=2, most=4)
    assert not allowed.refuses([0.1, 0.01, 0.001, 1e-4])
    assert allowed.refuses([0.1, 0.01, 0.001, 1e-4, 1e-5]) == (
        "a list of 2 to 4 different values, each a number from 1e-05 to 0.1"
    )


def test_a_text_of_ones_own_and_its_tokenizer_reach_the_plan(tmp_path, tiny_corpus):
    tokens, reads, machine = parameters.opened(tiny_corpus, "bpe:300", "cpu", 2)
    assert tokens.vocab_size == 300 and machine == {"device": "cpu", "threads": 2}
    run = rr.plan("nano:d_model=16,n_layer=1,n_head=1", **reads)
    assert run.model.vocab_size == 300 and run.corpus == tokens.identity["corpus"]
    usual = parameters.opened("fables", "", "auto", 1)
    assert usual[1] == {"corpus": "fables", "tokenizer": "bpe:1024"}
    assert usual[2]["device"] in ("cpu", "cuda")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("file:/none.txt", "bpe:300", "cpu", 1), "/none.txt"),
        (("fables", "gpt3", "cpu", 1), "gpt3"),
        (("fables", "", "tpu", 1), "device must be one of auto, cpu, cuda, mps, got 'tpu'"),
        (("fables", "", "cpu", 0), "threads must be an integer from 1 to 1024, got 0"),
        (("fables", "", "cpu", 1, 10**9), "need at least 1000000000"),
    ],
)
def test_a_text_or_a_machine_that_is_not_there_is_one_line(given, said):
    with pytest.raises(parameters.BadParameter) as refused:
        parameters.opened(*given)
    assert said in str(refused.value)
    assert refused.value._render_traceback_() == [f"BadParameter: {refused.value}"]
