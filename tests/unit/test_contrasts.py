"""One family per experiment, and what another rate costs: against plain numpy, scipy and JSON."""

import json
import math

import numpy as np
import pandas as pd
import pytest
import scipy.stats as scipy_stats

import rr
from rr.stats import contrasts, rate_costs, read_results

MINI = rr.DATA / "measured" / "mini_arms"
GATES = [
    ("update-gate", "state-gate"),
    ("update-gate", "review:groups=2"),
    ("state-gate", "review:groups=2"),
]
ARMS = [
    "constant",
    "state-gate",
    "update-gate",
    "review:groups=2",
    "review",
    "highway",
    "layerscale",
]
PAIRS = [
    *((arm, "standard") for arm in ARMS),
    *((arm, "constant") for arm in ARMS[1:]),
    *GATES,
    ("review", "state-gate"),
]


def by_hand(value="val_loss"):
    """(arm, seed) -> value and (arm, rate) -> loss on seed 100, from the JSON itself."""
    final, rates = {}, {}
    for text in pd.read_parquet(MINI / "runs.parquet").result:
        told = json.loads(text)
        if told["seed"] == 100:
            rates[told["rule"], told["lr"]] = told["val_loss"]
        else:
            final.setdefault(told["rule"], {})[told["seed"]] = told[value]
    return final, rates


@pytest.mark.parametrize("value", ["val_loss", "ece"])
def test_the_family_of_chapter_4_by_a_second_method(value):
    final, _ = by_hand(value)
    wide = {arm: np.array([seeds[s] for s in sorted(seeds)]) for arm, seeds in final.items()}
    p = np.array([scipy_stats.ttest_rel(wide[a], wide[b]).pvalue for a, b in PAIRS])
    order = np.argsort(p)
    stepped = np.maximum.accumulate(np.minimum(1, p[order] * np.arange(len(p), 0, -1)))
    holm = np.empty_like(p)
    holm[order] = stepped
    rows = [row for row in read_results(MINI) if row["seed"] < 100]
    found = contrasts(rows, PAIRS, value=value)
    assert len(found) == 17 and [(r["arm"], r["baseline"]) for r in found] == PAIRS
    for row, (a, b), chance, corrected in zip(found, PAIRS, p, holm, strict=True):
        gap = wide[a] - wide[b]
        assert row["n"] == 5 and row["difference"] == pytest.approx(gap.mean(), abs=1e-12)
        assert row["sd"] == pytest.approx(gap.std(ddof=1), rel=1e-6)
        assert row["p"] == pytest.approx(chance, rel=1e-6)
        assert row["holm"] == pytest.approx(corrected, rel=1e-6)
        half = scipy_stats.t.ppf(0.975, 4) * gap.std(ddof=1) / math.sqrt(5)
        assert row["hi"] - row["difference"] == pytest.approx(half, rel=1e-6)


def test_what_the_loss_contrasts_keep_and_lose():
    """A referee's reading of the same records: layerscale − standard 0.094, two gates 0.111."""
    rows = [row for row in read_results(MINI) if row["seed"] < 100]
    holm = {(r["arm"], r["baseline"]): r["holm"] for r in contrasts(rows, PAIRS)}
    assert round(holm["layerscale", "standard"], 3) == 0.094
    assert round(holm["state-gate", "review:groups=2"], 3) == 0.111
    for base in ("standard", "constant"):
        for arm in ("review", "state-gate", "review:groups=2", "highway"):
            assert holm[arm, base] < 0.05


def test_the_detectable_difference_is_found_that_often():
    rows = [row for row in read_results(MINI) if row["seed"] < 100]
    (row,) = contrasts(rows, [("review", "constant")])
    draw = np.random.default_rng(0).normal(row["detectable"], row["sd"], (40_000, 5))
    share = (scipy_stats.ttest_1samp(draw, 0, axis=1).pvalue < 0.05).mean()
    assert share == pytest.approx(0.8, abs=0.01)
    assert row["detectable_corrected"] == row["detectable"]  # one comparison: nothing to correct
    both = contrasts(rows, [("review", "constant"), ("review", "standard")])
    draw = np.random.default_rng(1).normal(both[0]["detectable_corrected"], row["sd"], (40_000, 5))
    share = (scipy_stats.ttest_1samp(draw, 0, axis=1).pvalue < 0.025).mean()
    assert share == pytest.approx(0.8, abs=0.01)


def result(rule, seed, loss, lr=1e-3):
    return {"rule": rule, "values": "own", "seed": seed, "lr": lr, "val_loss": loss}


def test_a_pair_that_cannot_be_tested_counts_as_one():
    rows = [
        result("a", 0, 1.0),
        result("a", 1, 2.0),
        result("b", 0, 1.5),
        result("b", 1, 2.7),
        result("c", 0, 1.0),
        result("c", 1, None),
    ]
    first, lost = contrasts(rows, [("a", "b"), ("c", "b")])
    assert (lost["n"], lost["p"], lost["holm"], lost["detectable"]) == (1, None, None, None)
    assert first["holm"] == pytest.approx(2 * first["p"])


@pytest.mark.parametrize(
    ("pairs", "says"),
    [
        ([("a", "x")], "no arm 'x'"),
        ([("a", "b"), ("b", "a")], "give each pair once"),
        ([("a", "a")], "give each pair once"),
    ],
)
def test_a_family_without_sense_is_refused(pairs, says):
    rows = [result(arm, seed, seed + 1.0) for arm in "ab" for seed in range(2)]
    with pytest.raises(rr.RRError, match=says):
        contrasts(rows, pairs)
    with pytest.raises(rr.RRError, match="two runs of seed"):
        contrasts(rows * 2, [("a", "b")])


def test_what_a_rate_costs_by_a_second_method():
    _, rates = by_hand()
    found = rate_costs([row for row in read_results(MINI) if row["seed"] == 100])
    assert {row["arm"] for row in found} == {arm for arm, _ in rates}
    for row in found:
        losses = {lr: loss for (arm, lr), loss in rates.items() if arm == row["arm"]}
        best = min(losses.values())
        assert row["loss"] == best and losses[row["best"]] == best
        assert row["cost"] == {lr: losses[lr] - best for lr in sorted(losses)}
        assert row["inner"] and row["seeds"] == 1


def test_rates_by_hand_and_what_is_refused():
    rows = [
        result("a", 0, 3.0, 1e-3),
        result("a", 1, 4.0, 1e-3),
        result("a", 0, 5.0, 3e-3),
        result("a", 1, None, 3e-3),
    ]
    (row,) = rate_costs(rows)
    assert row["cost"] == {1e-3: 0.0, 3e-3: math.inf}
    assert (row["loss"], row["seeds"], row["inner"]) == (3.5, 2, False)
    for wrong, says in (
        (rows[:2], "one learning rate"),
        ([*rows, result("b", 0, 1.0, 1e-3), result("b", 0, 1.0, 9e-3)], "b has other rates"),
        (rows[:3], "other rates or seeds"),
        ([result("a", 0, None, 1e-3), result("a", 0, None, 3e-3)], "diverged at every"),
    ):
        with pytest.raises(rr.RRError, match=says):
            rate_costs(wrong)
