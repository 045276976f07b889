"""A real `rr sweep` that is stopped, or dies: what its processes do, and how it goes on."""

import signal
import subprocess
import sys
import time

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from workers import only, outcome, started

from rr.io import try_lock

LIMIT = 300.0  # seconds that anything here may take
WORDS = ("rung", "rule", "protocol", "corpus", "tokenizer", "out")
NUMBERS = {"seed": 0, "steps": 0, "batch": 0, "threads": 0, "save_every": 60.0}
DEFAULTS = dict.fromkeys(WORDS, "") | NUMBERS
PARAMETERS = "\n".join(f"{name} = {value!r}" for name, value in DEFAULTS.items())
TRAIN = """import rr
run = rr.plan(rung, rule, seed=seed, protocol=protocol, corpus=corpus, tokenizer=tokenizer,
              steps=steps, batch=batch)
rr.train(run, out, rr.Request(threads=threads, save_every=save_every), log=lambda line: None)"""


@pytest.fixture
def notebook(tmp_path):
    """A notebook of two cells: its parameters, and a run."""
    pytest.importorskip("papermill")

    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    parameters = new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]})
    cells = [parameters, new_code_cell(TRAIN)]
    path = tmp_path / "run.ipynb"
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": kernel}), path)
    return path


@pytest.fixture
def start(workers, command, tmp_path):
    """start(out, *words, **options) -> a sweep of one cell, begun; killed at the end."""
    begun = []

    def go(out, *words, **options):
        options = {"save-every": 1000, "eval-batches": None} | options
        given = command(out, **{k: v for k, v in options.items() if v is not None})[1:]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        line = ["-m", "rrstudy.cli", "sweep", *given, *words]
        begun.append(started(line, tmp_path / "cache", **pipes))
        return begun[-1]

    yield go
    for process in begun:
        process.kill()
        process.communicate()


def wait_for(condition) -> None:
    until = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def training(out):
    """Whether the cell has taken steps; it has saved none."""
    return any(path.stat().st_size for path in out.glob("*/metrics.jsonl"))


def free(out) -> bool:
    """Whether no process holds the run."""
    lock = try_lock(next(out.glob("*/lock")))
    if lock is not None:
        lock.release()
    return lock is not None


@pytest.mark.skipif(sys.platform != "linux", reason="a process is told of its parent's death")
@pytest.mark.parametrize(
    "runner, number",
    [
        ("papermill", signal.SIGTERM),
        ("direct", signal.SIGKILL),
        pytest.param("papermill", signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param("direct", signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_a_sweep_that_ends_leaves_nobody_writing(
    start, workers, command, notebook, tmp_path, number, runner
):
    # the signal may come seconds late, on a machine with much to do: the run still trains then
    steps = 600 if runner == "direct" else 50_000  # the first goes on to its end
    out = tmp_path / "out"
    words = ["--runner", runner, *(["--notebook", notebook] if runner == "papermill" else [])]
    process = start(out, *words, steps=steps)
    wait_for(lambda: training(out) or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    folder = next(out.glob("*/metrics.jsonl")).parent
    process.send_signal(number)
    _, err = process.communicate(timeout=LIMIT)
    if number == signal.SIGTERM:
        assert process.returncode == 130, err
        assert err.splitlines()[-1].startswith("rr: 0 of 1 cells done; checkpoints are")
        assert free(out) and not list((out / ".claims").iterdir())
    wait_for(lambda: free(out))  # asked by the system, where the sweep could not
    if number == signal.SIGTERM or runner == "direct":  # it was asked to save, and it has
        assert [p for p in (folder / "checkpoint").iterdir() if p.name.isdecimal()]
    assert not (folder / "result.json").exists()
    if runner == "direct":
        again = start(out, *words, steps=steps)
        _, err = again.communicate(timeout=LIMIT)
        assert again.returncode == 0, err
        assert workers.rr(*command(tmp_path / "alone", steps=steps)).code == 0
        assert outcome(folder) == outcome(only(tmp_path / "alone"))
