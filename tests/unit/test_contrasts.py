"""One family per experiment, and what another rate costs: against plain numpy, scipy and JSON."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.stats as scipy_stats

import rr
from rr.stats import as_rows, compare, read_results


def contrasts(rows, pairs, value="val_loss"):
    return as_rows(compare(rows, pairs=pairs, value=value))


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


# E1: the same and the controls that its plan adds, the gates compared among themselves
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


def results(folder):
    """Results at `mini` from the JSON itself, the unwidened constant under a name of its own."""
    told = [json.loads(text) for text in pd.read_parquet(folder / "runs.parquet").result]
    for row in told:
        if row["rung"] == "mini:d_ff=768":
            row |= {"rule": HALF, "rung": "mini"}
    return [row for row in told if row["rung"] == "mini"]


def by_hand(folder=MINI, value="val_loss"):
    """(arm, seed) -> value and (arm, rate) -> mean loss on the seeds that chose the rates."""
    final, rates = {}, {}
    for row in results(folder):
        if row["seed"] >= 100:
            rates.setdefault((row["rule"], row["lr"]), []).append(row["val_loss"])
        else:
            final.setdefault(row["rule"], {})[row["seed"]] = row[value]
    return final, {key: sum(losses) / len(losses) for key, losses in rates.items()}


@pytest.mark.parametrize("folder, pairs", [(MINI, PAIRS), (E1, E1_PAIRS)], ids=["first", "e1"])
@pytest.mark.parametrize("value", ["val_loss", "ece"])
def test_the_family_of_a_campaign_by_a_second_method(value, folder, pairs):
    final, _ = by_hand(folder, value)
    wide = {arm: np.array([seeds[s] for s in sorted(seeds)]) for arm, seeds in final.items()}
    p = np.array([scipy_stats.ttest_rel(wide[a], wide[b]).pvalue for a, b in pairs])
    order = np.argsort(p)
    stepped = np.maximum.accumulate(np.minimum(1, p[order] * np.arange(len(p), 0, -1)))
    holm = np.empty_like(p)
    holm[order] = stepped
    found = contrasts([row for row in results(folder) if row["seed"] < 100], pairs, value=value)
    assert len(found) in (17, 21) and [(r["arm"], r["baseline"]) for r in found] == pairs
    for row, (a, b), chance, corrected in zip(found, pairs, p, holm, strict=True):
        gap = wide[a] - wide[b]
        assert len(row["pairs"]) == 5 and row["difference"] == pytest.approx(gap.mean(), abs=1e-12)
        assert row["sd"] == pytest.approx(gap.std(ddof=1), rel=1e-6)
        assert row["p"] == pytest.approx(chance, rel=1e-6)
        assert row["holm"] == pytest.approx(corrected, rel=1e-6)
        half = scipy_stats.t.ppf(0.975, 4) * gap.std(ddof=1) / math.sqrt(5)
        assert row["hi"] - row["difference"] == pytest.approx(half, rel=1e-6)


@pytest.mark.parametrize(
    ("chapter", "base", "arms"),
    [
        ("02_gate_equation", "standard", 4),
        ("02_gate_equation", "constant", 4),
        ("04_field_guide", "standard", 30),
        ("05_value_residual", "standard", 13),
        ("07_depth_attention", "standard", 11),
        ("15_your_own_rule", "limiter", 3),
    ],
)
def test_the_table_of_a_chapter_by_a_second_method(chapter, base, arms):
    folder = rr.DATA / "measured" / chapter
    told = pd.DataFrame(map(json.loads, pd.read_parquet(folder / "runs.parquet").result))
    told = told[told.seed < 100]
    told["arm"] = [
        f"{one.rule} + {one['values']}" if one["values"] != "own" else one.rule
        for _, one in told.iterrows()
    ]
    wide = told.pivot(index="seed", columns="arm", values="val_loss")
    found = {
        row["arm"]: row for row in as_rows(compare(read_results(folder).query("seed < 100"), base))
    }
    assert set(found) == set(wide) and len(wide.columns) == arms
    p = {}
    for arm in wide.columns.drop(base):
        gap = (wide[arm] - wide[base]).dropna()
        row = found[arm]
        assert row["n"] == wide[arm].count() and len(row["pairs"]) == len(gap)
        if len(gap) < 2:
            assert row["difference"] is None  # no spread, no test
        else:
            assert row["difference"] == pytest.approx(gap.mean(), abs=1e-12)
            test = scipy_stats.ttest_1samp(gap, 0)
            low, high = test.confidence_interval(0.95)
            assert (row["lo"], row["hi"]) == pytest.approx((low, high), rel=1e-6)
            assert row["p"] == pytest.approx(test.pvalue, rel=1e-6)
            p[arm] = test.pvalue
    least, tests = min(p, key=p.get), sum(row["p"] is not None for row in found.values())
    assert found[least]["holm"] == pytest.approx(min(1, tests * p[least]), rel=1e-6)


def test_the_twelve_of_value_residuals_are_what_their_chapter_shows():
    """Differences, intervals and Holm p of E4 by scipy, against the table that the page holds."""
    told = pd.read_parquet(rr.DATA / "measured" / "e4_values" / "runs.parquet").result
    loss = {}
    for row in map(json.loads, told):
        if row["seed"] < 100:
            assert row["budgets"][-1]["steps"] == 4800
            place = (512 // row["batch"], row["values"].removeprefix("constant:lam=0.0,")[:7])
            loss.setdefault(place, {})[row["seed"]] = row["budgets"][-1]["val_loss"]
    pairs = [("identit", "own=0.7"), ("constan", "own=2.2"), ("svforme", "own"),
             ("neutren", "own"), ("own=0.7", "own"), ("own=2.2", "own")]  # fmt: skip
    tests = {
        (window, arm): scipy_stats.ttest_rel(
            *([loss[window, name][seed] for seed in (0, 1, 2)] for name in (arm, base))
        )
        for window in (64, 256)
        for arm, base in pairs
    }
    p = np.array([test.pvalue for test in tests.values()])
    order = np.argsort(p)
    holm = np.empty_like(p)
    holm[order] = np.maximum.accumulate(np.minimum(1, p[order] * np.arange(12, 0, -1)))
    book = Path(__file__).parents[2] / "notebooks" / "05_value_residual.ipynb"
    (cell,) = [c for c in json.loads(book.read_text())["cells"] if c["id"] == "e4-table"]
    tables = (out["data"].get("text/html") for out in cell["outputs"])  # the others are glued
    (shown,) = ["".join(table) for table in tables if table]
    found = re.findall(r"<td>([^<]+)</td>", shown)
    assert len(found) == 24
    expected = []
    for at in range(6):
        for window in (0, 6):
            test, chance = list(tests.values())[window + at], holm[window + at]
            low, high = test.confidence_interval(0.95)
            mean = (low + high) / 2
            expected += [
                f"{mean:+.3f} ({low:+.3f} to {high:+.3f})".replace("-", "−"),
                f"{chance:.3f}",
            ]
    assert found == expected


def test_the_detectable_difference_is_found_that_often():
    rows = read_results(MINI).query("seed < 100")
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


def test_each_arm_of_e1_was_run_at_the_vertex_of_its_own_parabola():
    """Cramer's rule on the normal equations, against the rates in the records of seeds 10 to 14."""
    _, rates = by_hand(E1)
    reported = {}
    for row in results(E1):
        if row["seed"] < 100:
            reported.setdefault(row["rule"], set()).add(row["lr"])
    assert set(reported) == set(E1_ARMS)
    for arm in E1_ARMS:
        mine = sorted((lr, loss) for (name, lr), loss in rates.items() if name == arm)
        lowest = min(range(len(mine)), key=lambda i: mine[i][1])
        start = min(max(lowest - 2, 0), len(mine) - 5)
        x = np.log([lr for lr, _ in mine[start : start + 5]])
        y = np.array([loss for _, loss in mine[start : start + 5]])
        design = np.stack([np.ones(5), x, x * x], axis=1)
        normal, right = design.T @ design, design.T @ y
        b, c = (np.linalg.det(np.where(np.arange(3) == k, right[:, None], normal)) for k in (1, 2))
        assert reported[arm] == {float(f"{math.exp(-b / (2 * c)):.3g}")}
