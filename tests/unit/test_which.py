"""The page that says which rule to use: a row for each rule, a verdict from numbers."""

import re
import sys
from pathlib import Path

import pytest

from rr import Rule
from rr.residual import REGISTRY
from rrbook.explorables import at_scale, which

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "book" / "tools"))
import advice  # noqa: E402

ROW = r"<tr class=\"rr-rule\".*?</tr>"
NAME = r"nowrap'>(.+?)</code>"
OPTION = {"residual": "--rule<", "values": "--values<"}


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
    assert "FLOPs\xa0×\xa01.00" in row and "time\xa0and\xa0memory<br>not\xa0measured" in row
    assert '<td data-column="its paper claims">not noted</td>' in row
    for name in ("review", "state-gate", "keel", "svformer"):  # what was measured is still said
        (known,) = [r for r in re.findall(ROW, page) if f">{name}<" in r]
        assert "not\xa0measured" not in known and "not noted" not in known


def test_every_rule_has_one_row(page):
    names = [(kind, name) for kind, names in REGISTRY.items() for name in names]
    assert set(which.CLAIMS) <= set(names)
    rows = re.findall(ROW, page)
    assert len(rows) == len(names)
    ours = which.measured()
    named = {}
    for key in names:
        ran = which.spec(*key, ours.get(key)).replace(":", ":<wbr>")
        (named[key[1]],) = [r for r in rows if f"nowrap'>{ran}<" in r and OPTION[key[0]] in r]
    assert ">rezero:<wbr>init=paper<" in named["rezero"]  # what ran, and not the rule's default
    for name, said in (("state-gate", "use"), ("review", "try"), ("gated-residual", "skip")):
        assert f'data-verdict="{said}"' in named[name]
    assert "own rates; rate × 1.10" in named["unet"] and "rate ×" not in named["deepnorm"]
    for name in ("scaled", "orthogonal"):  # higher in F2, at a rate that was drawn down
        assert 'data-verdict="open"' in named[name] and "best rate tried" in named[name]
    assert 'data-verdict="skip"' in named["keel"]
    assert 'data-verdict="open"' in named["norm-place"] and "Gemma starts" in named["norm-place"]
    runs = {name: re.search(r"run\s×\s([\d.]+)", row) for name, row in named.items()}
    assert float(runs["review"][1]) >= 1.1 > float(runs["state-gate"][1])  # of equal size
    for name, row in named.items():  # these two were measured against themselves
        assert ("timed\xa0again" in row) == (name in ("standard", "own"))
    assert runs["keel"] is None and "not\xa0widened" in named["keel"]
    for name, reads in (("state-gate", "state"), ("review", "state and update")):
        (one,) = [row for row in rows if f">{name}<" in row]
        assert f'<td data-column="it reads">the stream (its gate: {reads})</td>' in one


def test_the_page_s_lists_and_its_table_have_the_same_verdicts(page):
    """The lists are numbers of the page, by name; the table's rows say what they say."""
    rows = re.findall(ROW, page)
    for said in ("use", "try", "skip"):
        judged = [
            re.search(NAME, r)[1].replace("<wbr>", "") for r in rows if f'verdict="{said}"' in r
        ]
        number, _, listed = advice.NAMED[f"rules to {said}"]().rstrip(")").partition(" (")
        assert int(number) == len(judged) and set(listed.split(", ")) == set(judged)
    text = (ROOT / "book" / "which_rule.md").read_text(encoding="utf-8")
    first = text[: text.index("## Our measurements")]
    ours = which.measured()
    for rule in [rule for rule, verdict in which.verdicts(ours).items() if verdict == "use"]:
        assert which.spec(*rule, ours.get(rule)) in first  # and is explained


def test_what_others_measured_stands_beside_ours():
    html = at_scale.table()
    groups = {(row["source"], row["rule"]) for row in at_scale.rows()}
    rows = re.findall(ROW, html)
    assert len(rows) == len(groups) > 15
    (mhc,) = [r for r in rows if "mHC, four streams" in r and "factory" in r]
    for part in ("1.21B:\xa0−0.029", "0.79B to 24.3B", "×\xa00.49 to ×\xa00.53", "in the source"):
        assert part in mhc
    assert sum('<td data-column="read">second-hand' in row for row in rows) == 8
    for spec in {row["rr"] for row in at_scale.rows()} - {""}:
        kind = "values" if spec == "identity" else "residual"
        assert spec.partition(":")[0] in REGISTRY[kind]


WIDE = """
.. container:: rr-wide

   ===== ========= ====
   claim Is it so? why
   ===== ========= ====
   one   yes       seen
   ===== ========= ====

===== =====
claim other
===== =====
two   no
===== =====
"""


def test_cells_of_a_wide_table_know_their_columns_and_a_rows_first_cell_is_its_title():
    pytest.importorskip("sphinx")
    import rr_book
    from docutils import nodes
    from docutils.core import publish_doctree

    page = publish_doctree(WIDE)
    rr_book.columns(None, page)
    named = {e.astext(): e["column"] for e in page.findall(nodes.entry) if "column" in e}
    assert named == {"yes": "Is it so?", "seen": "why"}
