"""The page that says which rule to use: a row for each rule, a verdict from numbers."""

import re

import pytest

from rr import Rule
from rr.residual import REGISTRY
from rrbook.explorables import which

ROW = r"<tr class=\"rr-rule\".*?</tr>"


@pytest.mark.parametrize(
    ("standard", "constant", "time", "said"),
    [
        ((-0.1, 0.01), (-0.1, 0.01), 1.0, "use"),
        ((-0.1, 0.01), (-0.1, 0.01), 1.2, "try"),
        ((-0.1, 0.01), (-0.1, 0.2), 1.0, "try"),
        ((-0.1, 0.01), (0.1, 0.01), 1.0, "skip"),
        ((-0.1, 0.2), (0.1, None), 1.0, "open"),
    ],
)
def test_a_verdict_follows_from_differences_and_cost(standard, constant, time, said):
    """Of each baseline: the difference, and Holm's p."""
    pairs = {"standard": standard, "constant": constant}
    rows = {name: {"difference": gap, "holm": p} for name, (gap, p) in pairs.items()}
    assert which.verdict(rows, time) == said
    assert which.verdict({}, time) == "open"
    assert which.verdict(rows, time, misfit=True) == ("open" if said == "skip" else said)


def test_costs_are_counted_against_the_standard_network():
    assert which.cost("residual", "standard") == which.cost("values", "own") == 1
    assert which.cost("residual", "review") > which.cost("residual", "state-gate") > 1
    assert which.cost("values", "svformer") < 1


@pytest.fixture(scope="module")
def page() -> str:
    return which.table()


def test_measured_steps_are_of_rules():
    taken = which.steps()
    assert len(taken) > 30
    assert set(taken) <= {(kind, name) for kind, names in REGISTRY.items() for name in names}
    plain = taken["residual", "standard"]
    assert plain["memory"] == 1 and plain["time"] == pytest.approx(1, abs=0.1)
    for row in taken.values():
        assert row["least"] <= row["time"] <= row["most"] and row["memory"] > 0


def test_a_rule_without_claim_or_measurement_says_so(monkeypatch, page):
    """A rule that has just joined `rr`, as CONTRIBUTING.md says."""

    class Third(Rule):
        equation, source = r"h_l = h_{l-1} + u_l / 3", "a test"

        def write(self, state, u):
            return state + u / 3

    Third.name = "third"
    monkeypatch.setitem(REGISTRY["residual"], "third", Third)
    (row,) = [r for r in re.findall(ROW, which.table()) if ">third<" in r]
    assert 'data-verdict="open"' in row and "<b>open</b><br>not measured" in row
    assert "FLOPs\xa0×\xa01.00" in row and "time\xa0and\xa0memory\xa0not\xa0measured" in row
    assert '<td data-column="its paper claims">not noted</td>' in row
    for name in ("review", "state-gate", "keel", "svformer"):  # what was measured is still said
        (known,) = [r for r in re.findall(ROW, page) if f">{name}<" in r]
        assert "not\xa0measured" not in known and "not noted" not in known


def test_every_rule_has_one_row(page):
    names = [(kind, name) for kind, names in REGISTRY.items() for name in names]
    assert set(which.CLAIMS) <= set(names)
    rows = re.findall(ROW, page)
    assert len(rows) == len(names)
    named = {name: next(one for one in rows if f">{name}<" in one) for _, name in names}
    for name, said in (("state-gate", "use"), ("review", "try"), ("gated-residual", "skip")):
        assert f'data-verdict="{said}"' in named[name]
    for name in ("scaled", "orthogonal"):  # higher, but at a rate that does not suit them
        assert 'data-verdict="open"' in named[name] and "does not suit" in named[name]
    runs = {name: re.search(r"run\s×\s([\d.]+)", row) for name, row in named.items()}
    assert float(runs["review"][1]) >= 1.1 > float(runs["state-gate"][1])  # of equal size
    assert runs["keel"] is None and "not\xa0widened" in named["keel"]
    for name, reads in (("state-gate", "state"), ("review", "state and update")):
        (one,) = [row for row in rows if f">{name}<" in row]
        assert f'<td data-column="its gate reads">{reads}</td>' in one
