"""Size against training: the contrast by a second method, records by hand, the toy in JS."""

import itertools
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest
import scipy.stats
from test_readme_results import e2, e3, held, loss, minus, p_of, window

from rr.errors import RRError
from rr.io import write_record
from rrbook.explorables.emergence import DESIGNS, FALLS, WINDOW, toy_gap
from rrbook.plain import glued
from rrbook.stats.emergence import at_fixed_ratio, measured
from rrstudy import stats

CHAPTER = nbformat.read(
    Path(__file__).parents[2] / "notebooks" / "14_emergence.ipynb", as_version=4
)
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


def lead(rows, arm="review"):
    """arm − constant by seed, below 0 where the arm leads."""
    return rows[arm] - rows["constant"]


def test_the_numbers_that_the_chapter_tells_by_a_second_method():
    """Chapter 14's stored numbers of E2 and E3 against pandas and scipy; some of them post hoc."""
    stored = {name: text.strip("'") for name, text in glued(CHAPTER).items()}
    recomputed = " ".join([*e2(), *e3()])  # and written as the records' own texts have them
    for name in ("slope_said", "last_said", "change_said", "big_said", "big_state", "late_review"):
        assert stored[name].removesuffix(")") in recomputed, name
    for name in ("fade_review", "fade_state"):
        p = float(stored[f"{name}_p"])
        assert f"{stored[name].removesuffix(')')}, p = {p:.3f}" in recomputed
    assert minus(f"{float(stored['together']):.2f}") in recomputed
    gap = pd.DataFrame({n: lead(loss("e2_training", steps=n)) for n in (300, 1200, 4800)})
    slopes = [scipy.stats.linregress(np.log10(gap.columns), row).slope for row in gap.values]
    assert float(stored["slope_p"]) == pytest.approx(p_of(slopes), 1e-4)
    assert stored["rise_said"] == held(gap[4800] - gap[1200])
    early, late = (window("e2_training", *span) for span in ((601, 1200), (2401, 3400)))
    assert stored["late_state"] == held(lead(late, "state-gate"))
    for name, arm in (("early_review", "review"), ("early_state", "state-gate")):
        assert float(stored[name]) == pytest.approx(lead(early, arm).mean(), abs=1e-6)


@pytest.mark.parametrize(
    "cells, words",
    [
        (([1, 2, 4], [4, 2, 1], [0, 0, 0]), "cannot separate"),
        (([1, 2, 4], [4, 2, 1], [0, 0]), "equal length"),
        (([1, -2, 4], [4, 2, 1], [0, 0, 0]), "must be > 0"),
    ],
)
def test_contrast_refuses_what_holds_no_answer(cells, words):
    with pytest.raises(RRError, match=words):
        at_fixed_ratio(*cells)


DESIGN = {
    "values": "own", "loops": 1, "flavour": "gpt2", "protocol": "clean", "corpus": "fables",
    "tokenizer": "bpe:1024", "precision": "fp32", "batch": 8, "steps": 40, "status": "finished",
    "eval_shortened": False,
}  # fmt: skip


def record(root, rule, seed, loss, lr=1e-3, budgets=(), rung="nano", params=1000, **changes):
    """A record as the trainer leaves it, as far as it is read."""
    name = f"{rule}-{seed}-{lr}-{rung.replace(':', '-')}"
    folder = root / name
    folder.mkdir(parents=True)
    row = {"id": name, "rule": rule, "seed": seed, "lr": lr, "rung": rung, "params": params}
    row |= DESIGN | {"val_loss": loss} | changes
    if budgets:
        row["budgets"] = [
            {"steps": s, "val_loss": loss - s / 1e3, "status": "finished"} for s in budgets
        ]
    write_record(folder / "result.json", row)
    run = {"corpus": "fables", "model": {"seq_len": 64}, "recipe": {"warmup": 2}}
    write_record(folder / "run.json", {"id": folder.name, "run": run})


def test_whole_stories_and_the_time_are_of_the_last_budget(tmp_path):
    record(tmp_path, "review", 0, 3.0, budgets=[20, 40], story_loss=2.5, seconds=9.0, floor=1.0)
    early, late = stats.as_rows(stats.read_results(tmp_path))
    assert (early["story_loss"], early["seconds"], early["floor"]) == (None, None, 1.0)
    assert (late["story_loss"], late["seconds"]) == (2.5, 9.0)


def test_measured_cells_by_hand(tmp_path):
    losses = {"standard": (3.0, 3.1, 3.2), "constant": (3.0, 3.0, 3.1), "review": (2.9, 3.0, 3.0)}
    for rule, values in losses.items():
        for seed, value in enumerate(values):
            record(tmp_path / "a", rule, seed, value, budgets=[20, 40])
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
        for slope, rule in enumerate(("standard", "constant", "review")):
            for seed in (first, first + 1, 100, 101):
                record(tmp_path / campaign, rule, seed, 3.0 + slope * seed / 1e3, lr=lr)
    cells, left = measured(tmp_path)
    assert [(c.campaign, c.rates["review"]) for c in cells] == [("one", 1e-3), ("two", 2e-3)]
    assert [c.gaps["review", "constant"].n for c in cells] == [2, 2] and left == []
    (alone,), _ = measured(tmp_path / "two")
    assert alone.campaign == "." and alone.gaps == cells[1].gaps


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


def test_measured_names_what_it_leaves_out(tmp_path):
    for rule in ("standard", "constant", "review"):
        record(tmp_path, rule, 0, 3.0)
        record(tmp_path, rule, 1, None, status="diverged")
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "result.json").write_text("{")
    cells, left = measured(tmp_path)
    assert cells == [] and "nano, fables, 40 steps: 1 seeds in both constant and review" in left
    assert sum("diverged" in line for line in left) == 3 and any("x: " in line for line in left)


# ---- the explorable and the lab ----------------------------------------------------------------


def test_each_design_shows_what_it_should(script):
    def curve(x):
        return 1.7 + x**-0.3

    assert toy_gap(0.5, 0, 1.2, 0, 0.3) == pytest.approx(curve(1.2 * 0.5) - curve(0.5))
    assert toy_gap(0.5, 2, 1.0, 0.01, 0.3, cost=0.005) == pytest.approx(-0.015)

    def change(speed, size, design, falls):
        chosen = {"speed": speed, "size": size, "design": design, "falls": falls}
        chosen |= {"alpha": 0.3, "cost": 0.025}
        return script("emergence", "toyNumbers", [RUNGS, chosen])[0]["change"]

    assert change(1.1, 0, "steps", "ratio") < -0.01  # training alone, and it looks like size
    assert change(1.1, 0, "ratio", "ratio") == 0
    assert change(1.1, 0, "tokens", "tokens") == 0
    assert change(1.1, 0, "ratio", "tokens") > 0  # more tokens, less left to gain
    for design in DESIGNS:  # size's own effect shows under every design
        assert change(1.0, 0.01, design, "ratio") == pytest.approx(-0.01 * np.log10(1e9 / 60e6))


def test_the_explorable_draws_the_gap_at_each_size(script):
    """By `toy_gap`, at the tokens per parameter that the design gives."""
    for design, falls in itertools.product(DESIGNS, FALLS):
        chosen = {"speed": 1.13, "size": 0.014, "alpha": 0.6, "cost": 0.025}
        chosen |= {"design": design, "falls": falls}
        [shown] = script("emergence", "toyNumbers", [RUNGS, chosen])
        _, first, steps, _ = RUNGS[0]
        for row, ratio, gap in zip(RUNGS, shown["ratios"], shown["gaps"], strict=True):
            _, size, own_steps, _ = row
            by_design = {"steps": own_steps, "tokens": steps, "ratio": steps * size / first}
            tokens = by_design[design] * WINDOW
            assert ratio == pytest.approx(tokens / size)
            x = ratio if falls == "ratio" else tokens / first
            expected = toy_gap(x, np.log10(size / first), 1.13, 0.014, 0.6, 0.025)
            assert gap == pytest.approx(expected)
        assert shown["change"] == pytest.approx(shown["gaps"][-1] - shown["gaps"][0])


def test_the_explorable_marks_round_gaps(script):
    for low, high in ((-0.0565, 0.00915), (-0.02, 0.02), (-0.9, 0.05), (-0.0201, 0)):
        ticks = script("emergence", "toyTicks", [low, high])[0]
        assert 0 in ticks and 3 <= len(ticks) <= 7 and low <= ticks[0] and ticks[-1] <= high
        assert all(round(tick, 3) == pytest.approx(tick, abs=1e-12) for tick in ticks)
        assert np.ptp(np.diff(ticks)) < 1e-12


def test_lab_power_says_what_stats_say():
    pytest.importorskip("ipywidgets")
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
