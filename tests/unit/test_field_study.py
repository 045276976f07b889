"""F2's arms by name, its whole seeds, and what of it the page of rules shows: on made-up losses."""

import pandas as pd
import pytest

from rr import stats
from rrbook.explorables import which
from rrbook.stats import field

ARMS = {  # arm -> rung, rule, values, loss above the standard network's
    "standard": ("mini", "standard", "own", 0.0),
    "constant": ("mini", "constant", "own", 0.01),
    "attnres": ("mini", "attnres", "own", -0.1),
    "attnres:block=2": ("mini", "attnres:block=2", "own", 0.2),
    "rezero:init=paper": ("mini", "rezero:init=paper", "own", 0.3),
    "standard + constant:lam=2": ("mini", "standard", "constant:lam=2", -0.05),
    field.WIDER: ("mini:d_model=216,d_ff=898", "standard", "own", -0.2),
}


def made_up(seeds: int) -> pd.DataFrame:
    """A search of every arm on seed 100, then so many whole seeds and one that is begun."""
    rows = [
        {"rung": rung, "rule": rule, "values": values, "seed": seed, "status": "finished",
         "val_loss": 4 + 0.01 * seed + gap * (1 + 0.01 * seed)}
        for seed in (100, *range(35, 35 + seeds + 1))
        for rung, rule, values, gap in ARMS.values()
    ]  # fmt: skip
    return pd.DataFrame(rows[:-1])


@pytest.fixture
def records(monkeypatch):
    read = stats.read_results

    def of(seeds: int) -> None:
        def results(folder):
            return made_up(seeds) if folder == field.FOLDER else read(folder)

        monkeypatch.setattr(stats, "read_results", results)

    return of


def test_seeds_count_when_every_arm_has_run_them(records):
    records(3)
    runs = field.read_runs()
    assert {*runs.arm} == set(ARMS) and field.whole_seeds(runs) == [35, 36, 37]
    rows = {(row["arm"], row["baseline"]): row for row in field.comparisons()}
    wider = rows[field.WIDER, "standard"]
    assert len(rows) == 2 * (len(ARMS) - 2) + 1 == wider["comparisons"]
    assert wider["difference"] == pytest.approx(-0.2 * (1 + 0.01 * 36))


def test_two_whole_seeds_are_no_result(records):
    records(2)
    assert field.comparisons() == [] and which.forms([]) == ""
    assert "2 of its five seeds are whole" in which.progress()
    records(0)
    assert f"{len(ARMS)} runs have found the learning rates of {len(ARMS)} arms" in which.progress()


def test_a_row_shows_the_plain_form_and_the_forms_stand_apart(records):
    records(3)
    of_field = field.comparisons()
    found = which.measured(of_field)
    plain = found["residual", "attnres"]
    assert plain["study"] == "mini, 3 new seeds, own rates"
    assert plain["rows"]["standard"]["difference"] < 0  # not the form with blocks
    assert {("residual", "rezero"), ("values", "constant")} <= set(found)
    apart = which.forms(of_field)
    assert "attnres:block=2" in apart and field.WIDER in apart and "rezero" not in apart
