"""How often a run saves: Young's interval by hand, its bound, and no number that knows of it."""

import math

import pytest
from tiny import result_of, train

import rr
from rr.errors import RRError
from rr.training import checkpoint, run_folder, trainer
from rr.training.step import OptimizerStep
from rrstudy import cli

pytestmark = pytest.mark.usefixtures("kept_threads")


@pytest.fixture
def run(planned):
    return planned(steps=16, eval_batches=1)


@pytest.mark.parametrize("save", [0.01, 23, 200, 3000])
def test_saving_never_takes_more_than_its_share(save):
    """Save time over the whole cycle. (Young's interval, by hand: test_running.py.)"""
    assert checkpoint.young(10, 8 * 3600) == pytest.approx(math.sqrt(2 * 10 * 8 * 3600))
    assert save / (checkpoint.young(save) + save) <= 0.05 * (1 + 1e-12)


def test_what_was_measured_decides_and_a_change_is_said():
    said = []
    interval = checkpoint.Interval(None, 1_000_000, said.append)
    assert interval.seconds == 60 and not said  # early, so that there is something to measure
    interval.saved(2.0)
    assert interval.seconds == pytest.approx(math.sqrt(2 * 2 * 4 * 3600))
    assert len(said) == 1 and "takes 2 s" in said[0] and "240 s" in said[0] and "4 h" in said[0]
    interval.saved(2.2)  # about the same: nothing to say
    assert len(said) == 1 and interval.seconds > 240
    interval.saved(60.0)
    mean = 64.2 / 3
    assert len(said) == 2 and interval.seconds == pytest.approx(math.sqrt(2 * mean * 4 * 3600))
    fixed = checkpoint.Interval(7.0, 10**9, said.append)
    fixed.saved(100.0)
    assert fixed.seconds == 7 and len(said) == 2
    # 12 bytes for each of 984 million parameters: a minute of writing, 5 % of twenty
    first = checkpoint.Interval(None, 984_038_400, print).seconds
    assert 12 * 984_038_400 / checkpoint.DISK_RATE / first < 0.06 and 600 < first < 3600


@pytest.mark.parametrize("every", [0, -1, math.nan])
def test_a_bad_interval_is_refused_before_anything_is_made(run, tmp_path, every):
    with pytest.raises(RRError, match="save-every must be"):
        train(run, tmp_path / "out", save_every=every)
    assert not (tmp_path / "out").exists()


class Clock:
    """Time that passes in steps and in saves alone."""

    def __init__(self, step, save, monkeypatch):
        self.now, self.saves = 0.0, []
        update, write = OptimizerStep.__call__, checkpoint.Checkpoints.save

        def a_step(optimizer_step, x, y):
            self.now += step
            return update(optimizer_step, x, y)

        def a_save(checkpoints, number, state):
            self.saves.append((number, self.now))
            self.now += save
            write(checkpoints, number, state)

        monkeypatch.setattr(OptimizerStep, "__call__", a_step)
        monkeypatch.setattr(checkpoint.Checkpoints, "save", a_save)
        monkeypatch.setattr(trainer.time, "monotonic", lambda: self.now)


def test_a_run_saves_by_what_its_own_saves_take(run, tmp_path, monkeypatch):
    """Steps of 25 s, saves of 2 s: after 75 s, 250 s after that (240 at least), at the end."""
    said, plain = [], train(run, tmp_path / "plain")
    clock = Clock(25.0, 2.0, monkeypatch)
    folder = trainer.train(run, tmp_path / "auto", rr.Request(threads=1), log=said.append)
    assert clock.saves == [(3, 75.0), (13, 327.0), (16, 404.0)]
    assert len([line for line in said if "a save takes 2 s" in line]) == 1
    monkeypatch.undo()
    auto, usual = result_of(folder), result_of(plain)
    assert all(auto[name] == usual[name] for name in ("weights_sha256", "val_loss"))


def test_auto_is_the_default_and_a_number_is_taken(tmp_path, monkeypatch, refuses):
    seen, of_trainer = [], lambda run, out, request: seen.append(request.save_every) or 1
    monkeypatch.setattr(trainer, "train", of_trainer)
    monkeypatch.setattr(run_folder, "finished", lambda folder: {"status": "finished"})
    for words in ([], ["--save-every", "auto"], ["--save-every", "60"]):
        assert cli.main(["train", *words, "--out", str(tmp_path)]) == 0
    assert seen == [None, None, 60.0]
    assert "save-every must be" in refuses("train", "--save-every", "often", "--out", tmp_path)
