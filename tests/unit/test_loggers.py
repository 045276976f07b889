"""Curves beside metrics.jsonl: what TensorBoard reads back, what Weights & Biases is told."""

import json
import sys
from types import SimpleNamespace

import pytest
from tiny import result_of, train

import rr
from rr.errors import RRError
from rr.training import checkpoint, loggers, trainer

pytestmark = pytest.mark.usefixtures("kept_threads")


@pytest.fixture
def run(planned):
    return planned(steps=None, budgets=[8, 16], warmup=2)


def drawn(folder):
    """TensorBoard's own reading of a run: name -> [(step, value)]."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = reader.EventAccumulator(str(folder / "tensorboard"))
    found.Reload()
    names = found.Tags()["scalars"]
    return {name: [(event.step, event.value) for event in found.Scalars(name)] for name in names}


def recorded(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_tensorboard_reads_the_curve_that_metrics_holds(run, tmp_path, monkeypatch, cut_off):
    """Cut off five steps after a checkpoint: no point is missing and none is there twice."""
    plain = result_of(train(run, tmp_path / "plain"))
    save = checkpoint.Checkpoints.save

    def few(self, done, state):
        if done in (5, 6, 8, 18):
            save(self, done, state)

    monkeypatch.setattr(checkpoint.Checkpoints, "save", few)
    with cut_off(14):  # on the plateau again, after the branch; saved at its end, 8
        train(run, tmp_path, save_every=1e-9, charts="tensorboard")
    folder = train(run, tmp_path, save_every=1e-9, charts="tensorboard")
    assert result_of(folder)["weights_sha256"] == plain["weights_sha256"]
    found, lines = drawn(folder), recorded(folder)
    plateau = [line for line in lines if "loss" in line and "budget" not in line]
    branch = [line for line in lines if "loss" in line and line.get("budget") == 8]
    last = [line for line in lines if line.get("budget") == 16]
    assert len(plateau) + len(branch) + len(last) == len([x for x in lines if "loss" in x])
    for name in ("loss", "lr", "grad_norm"):
        assert [v for _, v in found[name]] == pytest.approx([x[name] for x in plateau], rel=1e-6)
        assert [v for _, v in found[f"budget_8/{name}"]] == pytest.approx(
            [x[name] for x in branch], rel=1e-6
        )
    steps = [step for step, _ in found["loss"]]
    assert steps == sorted(set(steps)) and [s for s, _ in found["budget_8/loss"]] == [7, 8]
    (ended,) = [line for line in lines if "budget_ended" in line]
    assert found["budget_8/val_loss"] == [(9, pytest.approx(ended["val_loss"], rel=1e-6))]
    assert found["val_loss"] == [(19, pytest.approx(plain["val_loss"], rel=1e-6))]
    assert all(rate > 0 for _, rate in found["tokens_per_second"])


def test_weights_and_biases_is_told_who_the_run_is(run, tmp_path, monkeypatch):
    """Against the calls that wandb documents: init(project, id, resume …), log(dict, step)."""
    told, ended = [], []
    there = SimpleNamespace(
        log=lambda found, step: told.append((step, found)), finish=lambda: ended.append(True)
    )
    given = {}
    package = SimpleNamespace(init=lambda **words: given.update(words) or there, __spec__=True)
    monkeypatch.setitem(sys.modules, "wandb", package)
    folder = train(run, tmp_path, charts="wandb")
    assert given["project"] == "review-residuals" and given["resume"] == "allow"
    assert given["id"] == run.id and given["dir"] == folder
    assert given["config"]["recipe"]["lr"] == run.recipe.lr
    steps = [step for step, _ in told]
    assert steps == sorted(steps) and ended == [True]  # wandb drops a step that falls back
    assert told[-1] == (19, {"val_loss": result_of(folder)["val_loss"]})
    losses = [found["loss"] for _, found in told if "loss" in found]
    assert losses == [x["loss"] for x in recorded(folder) if "loss" in x and "budget" not in x]


@pytest.mark.parametrize("when", ["init", "log", "finish"])
def test_a_failing_log_is_said_once_and_the_run_goes_on(run, tmp_path, monkeypatch, when):
    def fails(*args, **words):
        raise OSError("no network\nat all")

    there = SimpleNamespace(log=lambda found, step: None, finish=lambda: None)
    package = SimpleNamespace(init=lambda **words: there, __spec__=True)
    setattr(package if when == "init" else there, when, fails)
    monkeypatch.setitem(sys.modules, "wandb", package)
    said = []
    folder = trainer.train(run, tmp_path, rr.Request(threads=1, charts="wandb"), log=said.append)
    (line,) = [line for line in said if "wandb" in line]
    assert "failed" in line and line.endswith("OSError: no network at all")
    assert result_of(folder)["status"] == "finished"


def test_what_is_not_there_is_refused_before_anything_is_made(run, tmp_path, monkeypatch):
    monkeypatch.setattr(loggers.importlib.util, "find_spec", lambda name: None)
    for name, words in (("tensorbord", "mean tensorboard"), ("wandb", "pip install wandb")):
        with pytest.raises(RRError, match=words):
            train(run, tmp_path / "out", charts=name)
    assert not (tmp_path / "out").exists()
