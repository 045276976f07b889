"""Size against training: the contrast by a second method, records by hand, the toy in JS."""

import itertools
import json
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest
import scipy.stats

import rr
from rr import stats
from rr.config import RRError
from rrbook.explorables.emergence import DESIGNS, FALLS, WINDOW, toy_gap
from rrbook.plain import glued
from rrbook.stats.emergence import at_fixed_ratio, measured

ROOT = Path(__file__).parents[2]
SIZES = np.array([60e6, 150e6, 320e6])
RUNGS = [["60M", 60e6, 8000, 0.01], ["320M", 320e6, 8000, 0.0], ["1B", 1e9, 6000, -0.02]]
N, D = np.repeat(SIZES, 3), np.tile([2000, 4000, 8000], 3) * 16384.0


def test_contrast_finds_the_slopes_that_made_the_gaps():
    gap = 0.1 + 0.02 * np.log10(N) - 0.03 * np.log10(D)
    value, factor = at_fixed_ratio(N, D, gap)
    assert value == pytest.approx(-0.01, abs=1e-12)
    # a whole grid is orthogonal, so the two variances add
    sxx = [((x - x.mean()) ** 2).sum() for x in (np.log10(N), np.log10(D))]
    assert factor == pytest.approx(np.sqrt(1 / sxx[0] + 1 / sxx[1]))
    # what only training makes, gap = g(D/N), has none at all
    assert at_fixed_ratio(N, D, np.log10(D / N))[0] == pytest.approx(0, abs=1e-12)


def told() -> dict[str, str]:
    """The numbers in chapter 14's stored outputs, by name."""
    notebook = nbformat.read(ROOT / "notebooks" / "14_emergence.ipynb", as_version=4)
    return {name: text.strip("'") for name, text in glued(notebook).items()}


def gaps(folder: str, arm: str, base: str) -> pd.DataFrame:
    """Seeds × budgets: arm − base in a folder of records, without the runs that chose a rate."""
    rows = []
    for text in pd.read_parquet(rr.DATA / "measured" / folder / "runs.parquet").result:
        run = json.loads(text)
        rows += [run | budget for budget in run.get("budgets") or [run] if run["seed"] < 100]
    loss = pd.DataFrame(rows).pivot(index=["seed", "steps"], columns="rule", values="val_loss")
    return (loss[arm] - loss[base]).unstack()


def said(values, test) -> str:
    """Mean and interval as the chapter writes them."""
    low, high = test.confidence_interval(0.95)
    return f"{values:+.3f} ({low:+.3f} to {high:+.3f})".replace("-", "−")


def test_the_slope_that_the_chapter_tells_by_a_second_method():
    """Chapter 14's stored numbers of E2 against tables of pandas, and lines drawn by scipy."""
    gap = gaps("e2_training", "review", "constant")  # below 0 where Review leads
    slopes = [scipy.stats.linregress(np.log10(gap.columns), row).slope for row in gap.values]
    for name, values in (
        ("slope_said", slopes),
        ("last_said", gap[4800]),
        ("rise_said", gap[4800] - gap[1200]),
    ):
        assert told()[name] == said(np.mean(values), scipy.stats.ttest_1samp(values, 0))
    chance = scipy.stats.ttest_1samp(slopes, 0).pvalue
    assert float(told()["slope_p"]) == pytest.approx(chance, 1e-4)


def test_the_change_with_size_that_the_chapter_tells_by_a_second_method():
    """E3's planned question: Welch's test of the large net's gaps against the small net's."""
    large = gaps("e3_size", "review", "constant")[3973]
    small = gaps("e2_training", "review", "constant")[1200]
    assert len(large) == len(small) == 3
    test = scipy.stats.ttest_ind(large, small, equal_var=False)
    assert told()["change_said"] == said(large.mean() - small.mean(), test)
    assert told()["big_said"] == said(large.mean(), scipy.stats.ttest_1samp(large, 0))
    v = np.array([large.var(), small.var()]) / 3  # Welch's degrees of freedom, by the equation
    df = v.sum() ** 2 / (v**2 / 2).sum()
    t = abs(large.mean() - small.mean()) / v.sum() ** 0.5
    assert test.pvalue == pytest.approx(2 * scipy.stats.t.sf(t, df), rel=1e-9)


def along(folder: str, arm: str, base: str, first: int, last: int) -> pd.Series:
    """arm − base in mean logged training loss over some steps, by seed, by pandas."""
    at = rr.DATA / "measured" / folder
    lines = pd.read_parquet(at / "curves.parquet")
    lines = lines[lines.loss.notna() & lines.budget.isna() & lines.step.between(first, last)]
    runs = pd.DataFrame([json.loads(x) for x in pd.read_parquet(at / "runs.parquet").result])
    runs = runs[runs.seed < 100][["id", "rule", "seed"]]
    loss = lines.merge(runs, on="id").groupby(["seed", "rule"]).loss.mean().unstack()
    return loss[arm] - loss[base]


def test_the_lead_that_fades_by_a_second_method():
    """Post hoc: training loss at the constant rate, early less late, for both gates."""
    for name, arm in (("review", "review"), ("state", "state-gate")):
        early, late = (along("e2_training", arm, "constant", *span)
                       for span in ((601, 1200), (2401, 3400)))  # fmt: skip
        test = scipy.stats.ttest_1samp(late - early, 0)
        assert told()[f"fade_{name}"] == said((late - early).mean(), test)
        assert float(told()[f"fade_{name}_p"]) == pytest.approx(test.pvalue, rel=1e-3)
        assert float(told()[f"early_{name}"]) == pytest.approx(early.mean(), abs=1e-6)
        assert told()[f"late_{name}"] == said(late.mean(), scipy.stats.ttest_1samp(late, 0))
    table = pd.read_parquet(rr.DATA / "measured" / "e2_training" / "runs.parquet")
    ends = [json.loads(text) for text in table.result]
    ends = {(r["rule"], r["seed"]): r["budgets"][-1]["val_loss"] for r in ends if r["seed"] < 100}
    both = [[ends[arm, seed] for seed in (0, 1, 2)] for arm in ("review", "constant")]
    r = scipy.stats.pearsonr(*both).statistic
    assert float(told()["together"]) == pytest.approx(r, rel=1e-3)
    state = along("e3_size", "state-gate", "constant", 2001, 3178)
    assert told()["big_state"] == said(state.mean(), scipy.stats.ttest_1samp(state, 0))


def test_contrast_factor_is_what_a_simulation_finds():
    draws = np.random.default_rng(0).normal(0, 0.01, (4000, 9))
    found = [at_fixed_ratio(N, D, y)[0] for y in draws]
    assert np.std(found) == pytest.approx(0.01 * at_fixed_ratio(N, D, draws[0])[1], rel=0.04)


@pytest.mark.parametrize(
    "cells, words",
    [
        (([1, 2], [1, 2], [0, 0]), "cannot separate"),
        (([1, 2, 4], [8, 8, 8], [0, 0, 0]), "cannot separate"),
        (([1, 2, 4], [4, 2, 1], [0, 0, 0]), "cannot separate"),
        (([1, 2, 4], [4, 2, 1], [0, 0]), "equal length"),
        (([1, -2, 4], [4, 2, 1], [0, 0, 0]), "must be > 0"),
    ],
)
def test_contrast_refuses_what_holds_no_answer(cells, words):
    with pytest.raises(RRError, match=words) as caught:
        at_fixed_ratio(*cells)
    assert "\n" not in str(caught.value)


def record(root, rule, seed, loss, lr=1e-3, budgets=None, **changes):
    """A record as the trainer leaves it, as far as it is read."""
    name = f"{rule}-{seed}-{lr}-{changes.get('rung', 'nano').replace(':', '-')}"
    folder = root / name
    folder.mkdir(parents=True)
    row = {
        "id": name,
        "rung": "nano",
        "rule": rule,
        "values": "own",
        "loops": 1,
        "flavour": "gpt2",
        "seed": seed,
        "protocol": "clean",
        "corpus": "fables",
        "tokenizer": "bpe:1024",
        "precision": "fp32",
        "lr": lr,
        "batch": 8,
        "steps": 40,
        "status": "finished",
        "val_loss": loss,
        "eval_shortened": False,
        "params": 1000,
        **changes,
    }
    if budgets:
        row["budgets"] = [
            {"steps": s, "val_loss": loss - s / 1e3, "status": "finished"} for s in budgets
        ]
    (folder / "result.json").write_text(json.dumps(row))
    run = {"corpus": "fables", "model": {"seq_len": 64}, "recipe": {"warmup": 2}}
    (folder / "run.json").write_text(json.dumps({"run": run}))


def test_measured_cells_by_hand(tmp_path):
    losses = {"standard": (3.0, 3.1, 3.2), "constant": (3.0, 3.0, 3.1), "review": (2.9, 3.0, 3.0)}
    for rule, values in losses.items():
        for seed, loss in enumerate(values):
            record(tmp_path / "a", rule, seed, loss, budgets=[20, 40])
        record(tmp_path / "a", rule, 100, 1.0)  # chose the learning rate: counts nowhere
        record(tmp_path / "a", rule, 0, 2.0, lr=3e-3)  # fewer seeds than at 1e-3
    record(tmp_path / "b", "review", 0, 2.9, budgets=[20, 40])  # the same run in a second folder
    for seed in (0, 1):
        record(tmp_path / "c", "review", seed, 2.0, rung="mini")  # without its controls
    cells, left = measured(tmp_path)
    assert [(c.rung, c.steps, c.tokens) for c in cells] == [
        ("nano", 20, 20 * 8 * 64),
        ("nano", 40, 40 * 8 * 64),
    ]
    assert cells[1].ratio == pytest.approx(40 * 8 * 64 / 1000)
    gap = cells[0].gaps["review", "standard"]
    d = np.array([-0.1, -0.1, -0.2])
    half = 4.302653 * d.std(ddof=1) / np.sqrt(3)  # t of 2 degrees of freedom
    assert (gap.n, gap.mean, gap.hi) == (3, pytest.approx(d.mean()), pytest.approx(d.mean() + half))
    assert cells[0].gaps["review", "constant"].mean == pytest.approx(np.mean([-0.1, 0, -0.1]))
    alone = [f"nano, fables, {steps} steps: no constant" for steps in (20, 40)]
    words = [*alone, "mini, fables, 40 steps: no constant"]
    assert left == [f"{where} at one learning rate" for where in words]


def test_cells_of_two_campaigns_stay_apart_and_no_tuning_seed_counts(tmp_path):
    for campaign, lr, first in (("one", 1e-3, 0), ("two", 2e-3, 10)):
        for rule in ("standard", "constant", "review"):
            for seed in (first, first + 1, 100, 101):
                record(tmp_path / campaign, rule, seed, 3.0 + seed / 1e3, lr=lr)
    cells, left = measured(tmp_path)
    assert [(c.campaign, c.rates["review"]) for c in cells] == [("one", 1e-3), ("two", 2e-3)]
    assert [c.gaps["review", "constant"].n for c in cells] == [2, 2] and left == []
    (alone,), _ = measured(tmp_path / "two")
    assert alone.campaign == "." and alone.gaps == cells[1].gaps
    for rule in ("standard", "constant", "review"):  # the second once more, and one seed beyond it
        for seed in (10, 11, 12):
            record(tmp_path / "three", rule, seed, 3.0 + seed / 1e3, lr=2e-3)
    cells, _ = measured(tmp_path)
    assert [(c.campaign, len(c.runs)) for c in cells] == [("three", 9), ("one", 6)]


def test_arms_whose_size_the_width_of_the_mlp_makes_equal_are_one_cell(tmp_path):
    for seed in (0, 1):
        record(tmp_path, "review", seed, 2.9, rung="mini:n_layer=8,d_ff=128", params=1000)
        record(tmp_path, "constant", seed, 3.0, rung="mini:d_ff=192,n_layer=8", params=1009)
        record(tmp_path, "constant", seed, 3.5, lr=2e-3, rung="mini:n_layer=8,d_ff=96", params=900)
        record(tmp_path, "standard", seed, 3.2, rung="mini:n_layer=6,d_ff=192", params=1000)
    (cell,), left = measured(tmp_path)
    assert cell.gaps.keys() == {("review", "constant")} and left == []
    assert cell.gaps["review", "constant"].mean == pytest.approx(-0.1)
    for seed in (0, 1):  # of one rung, but of two sizes
        record(tmp_path / "loose", "review", seed, 2.9, params=1200)
        record(tmp_path / "loose", "constant", seed, 3.0, params=900)
        record(tmp_path / "loose", "standard", seed, 3.0, params=1200)
    (_,), left = measured(tmp_path)
    assert left == ["nano, fables, 40 steps: constant has 900 parameters, review 1,200"]
    assert (cell.rung, cell.size, cell.rates["constant"]) == ("mini:n_layer=8,d_ff=128", 1000, 1e-3)


def test_standard_is_compared_where_it_has_the_seeds_of_both(tmp_path):
    for rule in ("constant", "review"):
        for seed in (0, 1, 2):
            record(tmp_path, rule, seed, 3.0)
    for seed, loss in enumerate((3.0, 3.0, 3.5)):
        (cell,), left = measured(tmp_path)
        assert list(cell.gaps) == [("review", "constant")] and not left
        assert (cell.rates.keys(), len(cell.runs)) == ({"constant", "review"}, 6)
        record(tmp_path, "standard", seed, loss)
    (cell,), _ = measured(tmp_path)
    assert len(cell.gaps) == 3 and len(cell.runs) == 9
    assert cell.gaps["review", "standard"].mean == pytest.approx(-0.5 / 3)


def test_measured_names_what_it_leaves_out(tmp_path):
    for rule in ("standard", "constant", "review"):
        record(tmp_path, rule, 0, 3.0)
        record(tmp_path, rule, 1, None, status="diverged")
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "result.json").write_text("{")
    cells, left = measured(tmp_path)
    assert cells == []
    assert "nano, fables, 40 steps: 1 seeds in both constant and review" in left
    assert sum("diverged" in line for line in left) == 3 and any("x: " in line for line in left)
    with pytest.raises(RRError, match="no folder"):
        measured(tmp_path / "none")


# ---- the explorable and the lab ----------------------------------------------------------------


def test_toy_gap_is_the_difference_of_two_loss_curves():
    def loss(x):
        return 1.7 + x**-0.3

    assert toy_gap(0.5, 0, 1.2, 0, 0.3) == pytest.approx(loss(1.2 * 0.5) - loss(0.5))  # arm − base
    assert toy_gap(0.5, 2, 1.0, 0.01, 0.3) == pytest.approx(-0.02)
    assert toy_gap(0.5, 2, 1.0, 0.01, 0.3, cost=0.005) == pytest.approx(-0.015)


def toy(speed, size, alpha, cost, design, falls):
    return {"speed": speed, "size": size, "alpha": alpha, "cost": cost, "design": design,
            "falls": falls}  # fmt: skip


def test_each_design_shows_what_it_should(script):
    def change(speed, size, design, falls):
        chosen = toy(speed, size, 0.3, 0.025, design, falls)
        return script("emergence", "toyNumbers", [RUNGS, chosen])[0]["change"]

    assert change(1.1, 0, "steps", "ratio") < -0.01  # training alone, and it looks like size
    assert change(1.1, 0, "ratio", "ratio") == 0
    assert change(1.1, 0, "tokens", "tokens") == 0
    assert change(1.1, 0, "ratio", "tokens") > 0  # more tokens, less left to gain
    for design in DESIGNS:  # size's own effect shows under every design
        assert change(1.0, 0.01, design, "ratio") == pytest.approx(-0.01 * np.log10(1e9 / 60e6))


def test_the_explorable_draws_the_gap_at_each_size(script):
    """By `toy_gap`, at the tokens per parameter that the design gives; words with what it did."""
    for design, falls in itertools.product(DESIGNS, FALLS):
        chosen = toy(1.13, 0.014, 0.6, 0.025, design, falls)
        [found] = script("emergence", "toyNumbers", [RUNGS, chosen])
        first, steps = RUNGS[0][1], RUNGS[0][2]
        start = steps * WINDOW / first
        for row, ratio, gap in zip(RUNGS, found["ratios"], found["gaps"], strict=True):
            _, size, own_steps, _ = row
            taken = {"steps": own_steps * WINDOW, "tokens": steps * WINDOW, "ratio": start * size}
            tokens = taken[design]
            assert ratio == pytest.approx(tokens / size)
            x = ratio if falls == "ratio" else tokens / first
            expected = toy_gap(x, np.log10(size / first), 1.13, 0.014, 0.6, 0.025)
            assert gap == pytest.approx(expected)
        assert found["change"] == pytest.approx(found["gaps"][-1] - found["gaps"][0])
        [said] = script("emergence", "toySentence", [RUNGS, chosen])
        assert DESIGNS[design] in said and f"falls with {FALLS[falls]}, exponent 0.6." in said


def test_lab_power_says_what_stats_say():
    for name in ("torch", "matplotlib", "ipywidgets"):
        pytest.importorskip(name)
    import matplotlib

    matplotlib.use("Agg")
    from rrbook.explorables.kit import number
    from rrbook.explore import lab_power

    made = lab_power(dict(zip(("60M", "150M", "320M"), SIZES, strict=True)))
    made.controls["seeds"].value = 6
    spread = 0.005 * at_fixed_ratio(N, D, np.zeros(9))[1]
    chance = stats.power(0.015, spread, 6)
    assert f"with probability {number(chance)}" in made.picture.value
    made.controls["slope"].value = 0
    assert "take no number of seeds" in made.picture.value
    assert "probability 0.05," in made.picture.value
