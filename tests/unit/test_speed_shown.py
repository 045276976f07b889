"""What chapter 8 shows live: the roofline on cards, and the lab that times real steps."""

import itertools
import json
import re
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from rr.model import Model, initialise, sizes
from rr.specs import ModelConfig, Recipe
from rr.training.backend import parse_backend
from rr.training.step import OptimizerStep
from rrbook.explorables import roofline as shown_roofline
from rrbook.explorables.roofline import PATHS, RUNGS, step_data
from rrbook.roofline import Work, times

TINY = ModelConfig(64, n_layer=1, n_head=1, d_model=16, d_ff=32, seq_len=8, rule="review")
# 10¹⁴ FLOP/s, 10¹² bytes/s; by hand below
TOY = {
    "rungs": {"60M": {"tokens": 1000, "flops": 6e12, "micro": 64, "paths": {
        "reference": {"memory": 9e9, "parts": {
            "attention": [1e12, 60e9, 10e9], "mlp": [2e12, 1e9, 0], "rule": [0, 0, 50e9],
            "embedding": [0, 0, 1e9], "head": [3e12, 2e9, 100e9], "optimizer": [0, 0, 4e9],
        }},
        "eager": {"memory": 10e9, "parts": {
            "attention": [1e12, 1e9, 0], "mlp": [2e12, 1e9, 0], "rule": [0, 0, 1e9],
            "embedding": [0, 0, 0], "head": [3e12, 2e9, 0], "optimizer": [0, 0, 0],
        }},
    }}},
    "cards": {"new": [1e14, 1e12, 10e9, 1], "T4": [1e14, 1e12, 16e9, 0]}, "spare": 0.08,
}  # fmt: skip


# ---- the roofline ------------------------------------------------------------------------------


def chosen(path: str, card: str, share: float, fusion: str, rung: str = "60M") -> dict:
    return {"rung": rung, "path": path, "card": card, "share": share, "fusion": fusion}


def test_a_step_by_hand(script):
    """TF32 has half of the peak; what is fused keeps the bytes of embedding and optimiser."""
    calls = [
        [TOY, chosen("reference", "new", 50, "none")],
        [TOY, chosen("reference", "new", 50, "all")],
        [TOY, chosen("eager", "new", 100, "none")],
        [TOY, chosen("reference", "T4", 50, "none")],
    ]
    plain, fused, fast, unknown = script("roofline", "stepNumbers", *calls)
    words, _, _, refused = script("roofline", "stepSentence", *calls)
    times = {"attention": 60 + 10, "mlp": 80, "rule": 50, "embedding": 1, "head": 120 + 100,
             "optimizer": 4}  # fmt: skip
    assert plain["ms"] == pytest.approx(times)
    arithmetic = {part for part, bound in plain["bound"].items() if bound == "arithmetic"}
    assert arithmetic == {"mlp", "head"}
    assert plain["step"] == pytest.approx(425) and plain["tokens"] == pytest.approx(1000 / 0.425)
    assert plain["mfu"] == pytest.approx(6e12 / (0.425 * 1e14)) and plain["largest"] == "head"
    assert plain["fits"]  # 9 of 9.2 GB
    assert fused["step"] == pytest.approx(60 + 80 + 0 + 1 + 120 + 4)
    assert fast["step"] == pytest.approx(10 + 20 + 1 + 30) and not fast["fits"]
    assert unknown is None
    assert "not projected. The T4 has no TF32" in refused
    assert "425 ms a step" in words.replace("\u00a0", " ") and "The largest part, 51.8" in words


def test_the_page_shows_what_the_package_counts(script, monkeypatch):
    """Data and formula on the page against `roofline.work` and `roofline.times`."""
    # of the largest rung alone: all of them take a minute
    monkeypatch.setattr(shown_roofline, "RUNGS", {"1B": RUNGS["1B"]})
    data = step_data.__wrapped__()
    assert list(RUNGS) == [name for name, rung in sizes.RUNGS.items() if rung.published]
    for path, fused in itertools.product(PATHS, (False, True)):
        parts = data["rungs"]["1B"]["paths"][path]["parts"]
        peak = 989e12 * {"reference": 0.5, "eager": 1}[path]
        works = {part: Work(*counts) for part, counts in parts.items()}
        choice = chosen(path, "H100", 40, "all" if fused else "none", "1B")
        [shown] = script("roofline", "stepNumbers", [data, choice])
        expected = times(works, peak, 3.35e12, 0.4, fused)
        assert shown["ms"] == pytest.approx({part: 1000 * s for part, s in expected.items()})
        # by hand: 2 FLOPs a weight forward and 4 backward, for each token
        tokens, d = 64 * 256, 1536
        assert works["mlp"].flops == 6 * 24 * 8 * d**2 * tokens
        rows = {"reference": 50257, "eager": 50304}[path]  # chunks multiply the padding, too
        assert works["head"].flops == 6 * rows * d * tokens


# ---- the lab -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def speed_lab():
    pytest.importorskip("ipywidgets")
    from rrbook.labs import speed

    return speed


@pytest.mark.parametrize("path", ["reference", "eager"])
def test_the_clock_follows_a_step_through_its_parts(speed_lab, monkeypatch, path):
    """The order of a step of one block: its parts upwards, downwards, then the update."""
    seen = []

    class Listening(speed_lab.Clock):
        def switch(self, part):
            super().switch(part)
            seen.append(part)

    ticks = itertools.count()
    monkeypatch.setattr(speed_lab.time, "perf_counter", lambda: next(ticks))
    model, backend = initialise(Model(TINY), 0), parse_backend(path)
    step = OptimizerStep(model, Recipe(1, 2, 1e-3, 1), backend, torch.device("cpu"), 2)
    ids = torch.arange(16).view(2, 8)
    before, clock = step.model(ids, ids).item(), Listening()
    clock.watch(step.model)
    taken, loss = speed_lab.timed_step(step, clock, ids, ids)
    up = ["embedding", "rule", "attention", "rule", "mlp", "rule", "head"]
    assert seen == ["optimizer", *up, *up[-2::-1], "optimizer", None]
    assert taken == {"optimizer": 2, "embedding": 2, "rule": 6, "attention": 2, "mlp": 2, "head": 1}
    assert sum(taken.values()) == len(seen) - 1  # nothing is lost, nothing counted twice
    assert loss == pytest.approx(before, abs=0.01)


def test_what_a_forward_pass_keeps_by_hand(speed_lab):
    weight = torch.nn.Linear(4, 4, bias=False)
    x = torch.randn(10, 4)

    def run():
        y = F.gelu(weight(x))  # x for the product's weight, the product itself for GELU
        return (y.exp() * x).sum()  # exp's result once, for itself and the product; x is there

    assert speed_lab.saved_bytes(run, weight) == 3 * x.nbytes


def test_the_lab_takes_real_steps(speed_lab):
    plain, fast, again = speed_lab.side_by_side(
        "review", ["reference", "eager:precision=fp32", "reference"], 64, 4, 256, steps=1
    )
    assert plain.loss == again.loss and fast.loss == pytest.approx(plain.loss, abs=1e-5)
    assert plain.kept == again.kept > fast.kept > 0
    assert all(seconds > 0 for seconds in plain.parts.values())
    made = speed_lab.lab_speed(1)
    for name, value in (("width", 64), ("micro", 4), ("path", "the reference path again")):
        made.controls[name].value = value
    sentence = re.search(r"<p[^>]*>(.*)</p>", made.picture.value)[1]
    assert sentence.endswith("The losses before the first step differ by 0 nats.")
    kept, against = re.search(r"4 windows: ([\d.]+) MB against ([\d.]+)\.", sentence).groups()
    assert kept == against


def test_the_front_page_says_what_was_measured():
    """Seconds and the share of memory in README.md, from the records it names."""
    records = Path(__file__).parents[2] / "data" / "measured" / "08_make_it_fast"
    steps = json.loads((records / "waterfall.json").read_text())["rows"]
    large = json.loads((records / "large.json").read_text())["over_the_reference"]
    best, first = (steps[i]["step_ms_median"] / 1000 for i in (-1, 0))
    (memory,) = [r["memory"] for r in large if r["path"] == "compiled"]
    page = " ".join((records.parents[2] / "README.md").read_text().split())
    assert f"{best:.2f} s on the `compiled` path and {first:.2f} s on the reference path" in page
    assert f"With 32 windows at once, `compiled` needed {memory:.2f} of the reference" in page
