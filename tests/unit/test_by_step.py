"""The gap by step against a second reading of the same records, and against hand arithmetic."""

import json

import numpy as np
import pandas as pd
import pytest

import rr
from rrbook.stats.by_step import gap_by_step, read_curves
from rrstudy.stats.frames import as_rows
from rrstudy.stats.recording import export
from rrstudy.stats.records import read_table
from rrstudy.stats.results import read_results

MINI = rr.DATA / "measured" / "mini_arms"
E2 = rr.DATA / "measured" / "e2_training"  # its reported runs have three budgets each
T_4 = 2.7764451051977987  # 97.5 % point of t with 4 degrees of freedom, from a printed table
REVIEW = [{1: 5.0}, {1: 6.0}]  # two seeds of one step


def row(rule, seed, curve):
    return {"rule": rule, "values": "own", "seed": seed, "curve": curve}


def made(**curves):
    """Rows of two seeds, e.g. made(review=[{1: 3.0}, {1: 2.0}])."""
    return [
        row(rule, seed, curve) for rule, both in curves.items() for seed, curve in enumerate(both)
    ]


def test_by_hand():
    rows = made(
        review=[{1: 5.0, 2: 4.0, 9: 1.0}, {1: 6.0, 2: 4.0, 9: 1.0}],
        constant=[{1: 4.0, 2: 4.0, 8: 7.0}, {1: 4.0, 2: 4.0, 8: 7.0}],
    )
    (band,) = gap_by_step(rows, "review", "constant", [(1, 10)])  # steps 8, 9: one arm alone
    half = 12.706204736174694 * 0.25  # t(0.975, 1) · s/√2, with gaps ½ and 1: s/√2 = ¼
    assert (band["first"], band["last"], band["steps"], band["n"]) == (1, 10, 2, 2)
    assert band["mean"] == pytest.approx(0.75)
    assert (band["lo"], band["hi"]) == pytest.approx((0.75 - half, 0.75 + half))


def test_recorded_gap_by_a_second_method():
    """A table of pandas over all curves, pivoted: no function of rr reads or averages."""
    runs = pd.read_parquet(MINI / "runs.parquet", columns=["id", "rule", "seed"])
    lines = pd.read_parquet(MINI / "curves.parquet", columns=["id", "step", "loss"])
    table = lines.dropna(subset="loss").merge(runs, on="id").query("seed < 100")
    wide = table.pivot_table("loss", "step", ["rule", "seed"])
    difference = wide["review"] - wide["constant"]
    records = [r for r in read_curves(MINI) if r["seed"] < 100]
    bands = [(1, 30), (31, 75), (76, 150), (151, 225), (226, 270), (271, 300)]
    found = gap_by_step(records, "review", "constant", bands)
    for (first, last), band in zip(bands, found, strict=True):
        per_seed = difference.loc[first:last].mean()
        error = per_seed.std() / np.sqrt(5)
        assert band["mean"] == pytest.approx(per_seed.mean(), abs=1e-12)
        assert band["hi"] - band["mean"] == pytest.approx(T_4 * error, rel=1e-9)
    # a referee's own reading of these records, to the digits in which it was reported
    told = [round(band["mean"], 3) for band in found]
    assert told == [0.035, 0.020, -0.009, -0.034, -0.051, -0.057]


@pytest.mark.parametrize(
    ("rows", "arm", "says"),
    [
        (made(review=REVIEW, constant=[{2: 4.5}, {1: 4.0}]), "review", "share none"),
        (made(review=REVIEW, constant=[{1: 4.5}]), "review", "at least two"),
        (made(review=[{1: None}, {1: 6.0}], constant=REVIEW), "review", "not finite"),
        (made(review=REVIEW, constant=REVIEW), "reviw", "review"),
        (2 * made(review=REVIEW, constant=REVIEW), "review", "two runs"),
    ],
)
def test_what_cannot_be_compared_is_refused(rows, arm, says):
    with pytest.raises(rr.RRError, match=says):
        gap_by_step(rows, arm, "constant", [(1, 10)])


def test_of_a_run_with_budgets_the_longest_is_read():
    ended = as_rows(read_results(E2))
    for row in read_curves(E2):
        ends = [one for one in ended if one["id"].split("/")[0] == row["id"]]
        assert row["steps"] == max(one["steps"] for one in ends) == max(row["curve"])


def test_a_damaged_curve_is_refused(tmp_path):
    (home,) = export(MINI, tmp_path, [read_table(MINI)[0].place.name])
    (row,) = read_curves(tmp_path)
    lines = map(json.loads, (home / "metrics.jsonl").read_text().splitlines())
    assert row["curve"] == {line["step"]: line["loss"] for line in lines if "loss" in line}
    (home / "metrics.jsonl").write_text("{")
    with pytest.raises(rr.RRError, match="metrics.jsonl is corrupt"):
        read_curves(tmp_path)
    with pytest.raises(rr.RRError, match="no result.json"):
        read_curves(rr.DATA / "published")
