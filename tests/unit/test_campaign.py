"""The studies of data/measured/ as lists of runs, and the search of a rate before them."""

import re
import runpy
import sys
from pathlib import Path

import campaign
import pandas as pd
import pytest
import torch
from campaign import STUDIES, Campaign, Study
from tiny import TINY, result_of

import rr
from rr.errors import Interrupted
from rr.model.costs import count
from rr.ops import rms_norm
from rr.residual import Residuals, canonical
from rrbook.stats import basin, before_cliff


def of(out: Path, dry: bool = False) -> Campaign:
    return Campaign("fables", None, out, 1, {"threads": 1}, dry)


@pytest.mark.parametrize(
    "script", sorted((rr.DATA / "measured").glob("*/*.py")), ids=lambda path: path.parent.name
)
def test_the_scripts_beside_the_records_find_what_they_import(script):
    runpy.run_path(str(script), run_name="imported")


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
        path="eager",
    )
    monkeypatch.setitem(STUDIES, "tiny", lambda: study)
    monkeypatch.setattr(
        sys, "argv", ["campaign.py", "tiny", "--corpus", "fables", "--out", str(tmp_path)]
    )
    assert campaign.main() == 0 and "campaign: 0 runs missing" in capsys.readouterr().out
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


@pytest.mark.parametrize("stopped", [False, True])
def test_bad_input_and_a_stop_are_one_line(stopped, tmp_path, capsys, monkeypatch):
    def interrupted(*given, **options):
        raise Interrupted("stopped: give the command again")

    monkeypatch.setattr(campaign, "sweep", interrupted)
    study = Study({"a": {"rule": "standard", "lr": 1e-3}}, {"rung": TINY}, seeds=(0,), rates=())
    monkeypatch.setitem(STUDIES, "tiny", lambda: study)
    corpus = "fables" if stopped else "file:nowhere"
    monkeypatch.setattr(sys, "argv", ["campaign.py", "tiny", "--corpus", corpus, "--out", "x"])
    monkeypatch.chdir(tmp_path)
    assert campaign.main() == (130 if stopped else 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert ("give the command again" if stopped else "nowhere") in line


def test_a_run_that_blew_up_is_no_point_of_a_parabola_nor_is_what_lies_beyond_it():
    field = pd.read_parquet(rr.DATA / "measured" / "f2_field" / "runs.parquet")
    search = field[field.seed == 100]
    for rule, chosen, below in (("scaled", 1.31e-3, 2.1e-3), ("orthogonal", 1.08e-3, 1.5e-3)):
        arm = search[search.rule == rule]
        tried = {lr: [loss] for lr, loss in zip(arm.lr, arm.val_loss, strict=True)}
        kept = before_cliff(tried, STUDIES["g2"]().cliff)
        assert max(kept) == below
        old, new = (
            basin({lr: loss for lr, (loss,) in points.items()}).lr for points in (tried, kept)
        )
        assert float(f"{old:.3g}") == chosen and new > 1.15 * old
    assert before_cliff({1e-3: [4.0, 4.0], 2e-3: [3.9, 4.2], 4e-3: [3.8, 3.8]}, 0.1).keys() == {
        1e-3
    }
    assert before_cliff({1e-3: [4.0], 2e-3: [float("inf")]}, 0.1).keys() == {1e-3}


def test_the_fourth_plan_s_arms_are_of_equal_size(tmp_path):
    for name in ("g1", "g2", "g3", "g4", "g5", "f6"):
        study = STUDIES[name]()
        sizes = {
            arm: count(
                of(tmp_path).cell({**study.common, "lr": 1e-3, **options, "seed": 0}).run.model
            )
            for arm, options in study.arms.items()
            if arm != "one wider stream"
        }
        assert max(sizes.values()) < 1.001 * min(sizes.values()), (name, sizes)


def test_the_norm_s_places_are_the_plan_s(tmp_path, capsys):
    """Each arm by the formula beside its name in the fourth plan; pre's rate is not searched."""
    plan = (rr.DATA / "measured" / "fourth_plan.md").read_text(encoding="utf-8")
    formulas = {
        "pre": ("h + F(n(h))", "standard"),
        "post": ("n(h + F(h))", "norm-place:place=stream"),
        "sandwich": ("h + n(F(n(h)))", "norm-place"),
        "output": ("h + n(F(h))", "norm-place:place=output"),
        "Keel": ("n(a·h + F(n(h)))", "keel"),
        "LNS": ("h + F(n(h)/√l)", "norm-place:place=depth"),
    }
    study = STUDIES["g5"]()
    given = {canonical(arm["rule"]) for arm in study.arms.values()}
    assert given == {rule for _, rule in formulas.values()}
    for name, (formula, rule) in formulas.items():
        assert re.search(rf"^ +{name} +h ← {re.escape(formula)}", plan, re.MULTILINE), name
        (x, f), n = torch.randn(2, 1, 1, 16).double().unbind(), lambda h: rms_norm(h)
        branch = lambda h, f=f: torch.tanh(h) * f  # noqa: E731
        made = Residuals(rule, dim=16, n_layer=2, n_head=1).double()  # block 2 of 2, l = 2
        a = 4
        values = {"h": x, "n": n, "F": branch, "a": a, "l": 2}
        said = formula.replace("·", "*").replace("/√l", "/ l**0.5")
        torch.testing.assert_close(made[3](x, branch), eval(said, values))
    of(tmp_path, dry=True).study(study)
    commands = [line for line in capsys.readouterr().out.splitlines() if "rr train" in line]
    assert len(commands) == 5 * 5 + 5  # five arms at five rates on seed 100; five seeds of pre
    assert sum("--seed 100" in line for line in commands) == 25
    assert all("--rung mini" in line and "--steps 300" in line for line in commands[-5:])
    assert all("--lr 0.00172" in line and "standard" in line for line in commands[-5:])
