"""F2's arms by name, and what of it the page of rules shows: on made-up losses."""

import pandas as pd
import pytest

from rrbook.explorables import which
from rrbook.stats import field
from rrstudy import stats

ARMS = {  # arm -> rung, rule, values, loss above the standard network's
    "standard": ("mini", "standard", "own", 0.0),
    "constant": ("mini", "constant", "own", 0.01),
    "attnres": ("mini", "attnres", "own", -0.1),
    "attnres:block=2": ("mini", "attnres:block=2", "own", 0.2),
    "rezero:init=paper": ("mini", "rezero:init=paper", "own", 0.3),
    "scales-skips:attnres=1": ("mini", "scales-skips:attnres=1", "own", -0.15),
    "standard + constant:lam=2": ("mini", "standard", "constant:lam=2", -0.05),
    field.WIDER: ("mini:d_model=216,d_ff=898", "standard", "own", -0.2),
}


@pytest.fixture
def rows(monkeypatch) -> list[dict]:
    """Comparisons of a study of these arms: a search on seed 100, five reported seeds."""
    made_up = [
        {"rung": rung, "rule": rule, "values": values, "seed": seed, "status": "finished",
         "val_loss": 4 + 0.01 * seed + gap * (1 + 0.01 * seed), "lr": lr, "seconds": 9.0 + seed,
         "id": f"{rule}{values}{rung}{seed}{lr}"}
        for seed in (100, *range(35, 40))
        for rung, rule, values, gap in ARMS.values()
        for lr in ((1e-3, 2e-3, 3e-3) if seed == 100 else (2e-3,))
    ]  # fmt: skip
    again = [run for run in made_up if run["rung"] != "mini" and run["seed"] < 100]
    made = {field.FOLDER: pd.DataFrame(made_up), field.AGAIN: pd.DataFrame(again)}
    read = stats.read_results
    monkeypatch.setattr(
        stats, "read_results", lambda folder: made[folder] if folder in made else read(folder)
    )
    return field.against_both(field.read_runs())


def test_every_arm_stands_against_both_baselines(rows):
    by = {(row["arm"], row["baseline"]): row for row in rows}
    wider = by[field.WIDER, "standard"]
    assert len(by) == 2 * (len(ARMS) - 2) + 1 == wider["comparisons"]
    assert wider["difference"] == pytest.approx(-0.2 * (1 + 0.01 * 37))  # no seed of the search


def test_a_row_shows_the_plain_form_and_the_forms_stand_apart(rows):
    found = which.measured(rows)
    plain = found["residual", "attnres"]
    assert plain["study"] == "mini, five new seeds, own rates"
    assert plain["rows"]["standard"]["difference"] < 0  # not the form with blocks
    assert found["residual", "rezero"]["study"].endswith("own rates, as rezero:init=paper")
    assert found["values", "constant"]["study"].endswith("as standard + constant:lam=2")
    assert ("residual", "scales-skips") not in found  # the form that was run has more parameters
    apart = which.forms(rows)
    assert "scales-skips:attnres=1</code></th>" in apart
    assert (
        "attnres:block=2</code></th>" in apart
        and f"{field.WIDER}, again" in apart
        and "rezero" not in apart
    )
