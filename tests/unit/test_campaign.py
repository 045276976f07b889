"""The studies of data/measured/ as lists of runs, and the search of a rate before them."""

from pathlib import Path

import campaign
import pandas as pd
from campaign import STUDIES, Campaign, Study
from tiny import TINY, result_of

import rr


def of(out: Path, dry: bool = False) -> Campaign:
    return Campaign("fables", None, out, 1, {"threads": 1}, dry)


def test_a_study_s_runs_are_those_on_record(tmp_path):
    study = STUDIES["e5"]()
    ids = {
        of(tmp_path).cell({**study.common, **arm, "lr": rate, "seed": seed}).id
        for arm in study.arms.values()
        for rate in study.rates
        for seed in study.rate_seeds
    }
    recorded = pd.read_parquet(rr.DATA / "measured" / "e5_loops" / "runs.parquet")
    assert len(ids) == 165 and ids <= set(recorded.id)


def test_a_search_goes_beyond_an_edge_that_wins_and_chooses_the_rate_of_the_seed(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(campaign, "EXTENSIONS", 1)
    study = Study(
        {"fixed": {"rule": "standard", "lr": 1e-3}, "searched": {"rule": "constant"}},
        {"rung": TINY, "steps": 4, "batch": 1, "eval_batches": 1},
        seeds=(0,),
        rates=(1e-5, 2e-5),
        rate_seeds=(100,),
        vertex=False,
    )
    first = of(tmp_path)
    first.study(study)
    assert first.missing == 0
    results = [result_of(path.parent) for path in tmp_path.glob("*/result.json")]
    searched = {r["lr"]: r["val_loss"] for r in results if r["seed"] == 100}
    assert sorted(searched) == [1e-5, 2e-5, 4e-5]
    best = min(searched, key=searched.__getitem__)
    reported = {(r["rule"], r["lr"]) for r in results if r["seed"] != 100}
    rates = {"standard": 1e-3, "constant": best}
    assert reported == set(rates.items())
    capsys.readouterr()
    of(tmp_path, dry=True).study(study)
    assert capsys.readouterr().out.count("rr train") == 3  # the rates given, then the fixed arm
