"""One family per experiment, and the rate of each arm: against plain numpy, scipy and JSON."""

import json
import math

import numpy as np
import pandas as pd
import pytest
import scipy.stats as scipy_stats

import rr
from rrstudy.stats import as_rows, compare, detectable_gap

E1 = rr.DATA / "measured" / "e1_rates"
HALF = "constant:unwidened"
E1_ARMS = ["standard", "constant", HALF, "highway", "state-gate", "state-gate:groups=2",
           "update-gate", "review:groups=2", "review"]  # fmt: skip
E1_PAIRS = [
    *((arm, "standard") for arm in E1_ARMS[1:]),
    *((arm, "constant") for arm in E1_ARMS[2:]),
    *(("state-gate", arm) for arm in E1_ARMS[5:]),
    ("review:groups=2", "update-gate"),
    ("review:groups=2", "state-gate:groups=2"),
]


def results():
    """E1 at `mini` from the JSON itself, the unwidened constant under a name of its own."""
    told = [json.loads(text) for text in pd.read_parquet(E1 / "runs.parquet").result]
    for row in told:
        if row["rung"] == "mini:d_ff=768":
            row |= {"rule": HALF, "rung": "mini"}
    return [row for row in told if row["rung"] == "mini"]


@pytest.mark.parametrize("value", ["val_loss", "ece"])
def test_the_family_of_a_campaign_by_a_second_method(value):
    """A gate's plan: the controls, and the gates among themselves; Holm as stepped by numpy."""
    rows = [row for row in results() if row["seed"] < 100]
    wide = pd.DataFrame(rows).pivot(index="seed", columns="rule", values=value)
    p = np.array([scipy_stats.ttest_rel(wide[a], wide[b]).pvalue for a, b in E1_PAIRS])
    order = np.argsort(p)
    stepped = np.empty_like(p)
    stepped[order] = np.maximum.accumulate(np.minimum(1, p[order] * np.arange(len(p), 0, -1)))
    found = as_rows(compare(rows, pairs=E1_PAIRS, value=value))
    assert [(row["arm"], row["baseline"]) for row in found] == E1_PAIRS
    for row, (a, b), chance, corrected in zip(found, E1_PAIRS, p, stepped, strict=True):
        gap = wide[a] - wide[b]
        assert len(row["pairs"]) == 5 and row["difference"] == pytest.approx(gap.mean(), abs=1e-12)
        assert (row["p"], row["holm"]) == pytest.approx((chance, corrected), rel=1e-6)
        span = scipy_stats.ttest_1samp(gap, 0).confidence_interval(0.95)
        assert (row["lo"], row["hi"]) == pytest.approx(tuple(span), rel=1e-6)
        assert row["sd"] == pytest.approx(gap.std(ddof=1), rel=1e-6)
    a, b = E1_PAIRS[-1]
    (alone,) = as_rows(compare(rows, pairs=[(a, b)], value=value))
    gap = detectable_gap(5, alone["sd"])
    assert alone["detectable"] == alone["detectable_corrected"] == pytest.approx(gap)
    gap = detectable_gap(5, alone["sd"], alpha=0.05 / len(p))
    assert found[-1]["detectable_corrected"] == pytest.approx(gap)


def test_each_arm_of_e1_was_run_at_the_vertex_of_its_own_parabola():
    """Cramer's rule on the normal equations, against the rates in the records of seeds 10 to 14."""
    rates, reported = {}, {}
    for row in results():
        if row["seed"] < 100:
            reported.setdefault(row["rule"], set()).add(row["lr"])
        else:
            rates.setdefault((row["rule"], row["lr"]), []).append(row["val_loss"])
    assert set(reported) == set(E1_ARMS)
    for arm in E1_ARMS:
        mine = sorted((lr, np.mean(loss)) for (name, lr), loss in rates.items() if name == arm)
        lowest = min(range(len(mine)), key=lambda i: mine[i][1])
        start = min(max(lowest - 2, 0), len(mine) - 5)
        x = np.log([lr for lr, _ in mine[start : start + 5]])
        y = np.array([loss for _, loss in mine[start : start + 5]])
        design = np.stack([np.ones(5), x, x * x], axis=1)
        normal, right = design.T @ design, design.T @ y
        b, c = (np.linalg.det(np.where(np.arange(3) == k, right[:, None], normal)) for k in (1, 2))
        assert reported[arm] == {float(f"{math.exp(-b / (2 * c)):.3g}")}
