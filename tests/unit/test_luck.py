"""First place among many rules, against simulation and SciPy; the race of two rules."""

import re

import numpy as np
import pytest
from scipy import stats as st

from rrbook.explorables.luck import best_of

CASES = [(30, 3, 0.02, 0.01), (8, 3, 0.02, 0.03)]


def given(rules: int, seeds: int, sd: float, lead: float) -> dict:
    return {"rules": rules, "seeds": seeds, "sd": sd, "lead": lead}


@pytest.mark.parametrize("case", CASES)
def test_luck_is_what_a_simulation_finds(script, case):
    rules, seeds, sd, lead = case
    draws = np.random.default_rng(0).normal(0, sd, (20_000, rules, seeds)).mean(2)
    [found] = script("luck", "luckNumbers", [given(*case)])
    assert found["luck"] == pytest.approx(draws.max(1).mean(), rel=0.03)
    assert found["luck"] == pytest.approx(sd / np.sqrt(seeds) * best_of(rules), rel=1e-3)
    draws[:, 0] += lead
    assert found["first"] == pytest.approx((draws.argmax(1) == 0).mean(), abs=0.012)


def test_luck_closed_forms(script):
    cases = (2, 4, 0.02, 0.0), (2, 4, 0.02, 0.015), (30, 3, 0.02, 0.0)
    two, ahead, many = script("luck", "luckNumbers", *([given(*case)] for case in cases))
    # two equal rules: E[max] = σ/√π, and either is first half of the time
    assert best_of(2) == pytest.approx(1 / np.sqrt(np.pi))
    assert two["luck"] == pytest.approx(0.01 / np.sqrt(np.pi), rel=1e-4)
    assert two["first"] == pytest.approx(0.5, abs=1e-6)
    # one rule ahead of one other: Φ(lead / (√2·se))
    assert ahead["first"] == pytest.approx(st.norm.cdf(1.5 / np.sqrt(2)), abs=1e-5)
    assert many["first"] == pytest.approx(1 / 30, abs=1e-5)


def test_lab_race_trains_both_rules_on_the_same_batches(monkeypatch):
    for name in ("torch", "matplotlib", "ipywidgets"):
        pytest.importorskip(name)
    import matplotlib

    matplotlib.use("Agg")
    from rrbook.labs import race
    from rrbook.labs.depth import letters, trained_on_letters

    with monkeypatch.context() as alike:  # nothing is trained where both rules are one
        alike.setattr(race, "trained_on_letters", lambda rule, n, steps, *_: (None, [2.0] * steps))
        made = race.lab_race("standard")
        assert "0 (seed 0) and 0 (seed 1) nats per byte; there is nothing" in made.picture.value
        made.controls["steps"].value = 20
    made.controls["rule"].value = "rezero"
    said = re.search(r"<p[^>]*>(.*)</p>", made.picture.value)[1]
    told = [float(word) for word in re.findall(r"([\d.]+) \(seed", said)]
    stream = letters()
    for seed, gap in enumerate(told):
        last = [
            sum(trained_on_letters(rule, 4, 20, stream, seed)[1][-10:]) / 10
            for rule in ("rezero", "standard")
        ]
        assert last[0] - last[1] == pytest.approx(gap, abs=0.005) and gap > 0.1
    assert "the two seeds agree on the sign" in said
