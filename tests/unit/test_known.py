"""The numbers of the page *What we know*, by a second method, and what is refused."""

import json
import re
import sys
from pathlib import Path

import pandas as pd
import pytest
import scipy.stats as st

import rr

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "book" / "tools"))
from known import number  # noqa: E402

PAGE = "".join(
    (ROOT / "book" / page).read_text(encoding="utf-8") for page in ("what_we_know.md", "intro.md")
)
MINI = rr.DATA / "measured" / "mini_arms"


def values(text):
    return [float(part.replace("−", "-")) for part in re.findall(r"[−+]?\d+\.\d+", text)]


def ends():
    rows = pd.read_parquet(MINI / "runs.parquet")
    return rows.query("seed < 100").pivot(index="seed", columns="rule")["val_loss"]


def test_every_number_of_the_page_can_be_computed():
    names = re.findall(r"\{known\}`([^`]+)`", PAGE)
    assert len(names) >= 8
    for name in names:
        assert re.search(r"\d", number(name)), name


def test_a_difference_by_scipy():
    loss = ends()
    test = st.ttest_rel(loss["review"], loss["constant"])
    low, high = test.confidence_interval(0.95)
    expected = [(loss["review"] - loss["constant"]).mean(), low, high]
    assert values(number("mini_arms: review - constant")) == [round(x, 3) for x in expected]


def test_the_half_without_its_wider_mlp_by_scipy():
    folders = (MINI.parent / name for name in ("e2_training", "e2_after"))
    rows = [
        json.loads(text) for at in folders for text in pd.read_parquet(at / "runs.parquet").result
    ]
    loss = {
        (row["rung"], row["rule"], row["seed"]): budget["val_loss"]
        for row in rows
        for budget in row.get("budgets") or []
        if row["seed"] < 100 and budget["steps"] == 4800
    }
    test = st.ttest_rel(
        [loss["mini", "review", seed] for seed in (0, 1, 2)],
        [loss["mini:d_ff=768", "constant", seed] for seed in (0, 1, 2)],
    )
    low, high = test.confidence_interval(0.95)
    gap = loss["mini", "review", 0] - loss["mini:d_ff=768", "constant", 0]
    told = values(number("review - unwidened constant, 4,800 steps"))
    assert told[1:] == [round(low, 3), round(high, 3)] and low < gap < high


def test_a_mean_is_that_of_the_difference_with_its_interval():
    alone, whole = (number(f"mini_arms: review - constant{end}") for end in (", mean", ""))
    assert values(alone) == values(whole)[:1] and " " not in alone


def test_the_best_net_is_worse_than_counting_pairs():
    best = ends().min(axis=None)
    assert number("mini_arms: best") == f"{best:.2f}"
    assert best > float(number("mini_arms: bigram")) > 3


def test_the_verdicts_are_those_of_their_numbers():
    """The words of a verdict stand beside its number; here they are held to it."""
    rule, control = "standard + constant", "standard + constant:lam=0.0,own=2.236067977"
    for batch in (8, 2):  # windows of 64 and of 256 tokens
        mean, low, high = values(number(f"e4_values[batch={batch},steps=4800]: {rule} - {control}"))
        assert high < 0  # "holds for 2V₁ + Vₙ"
    for name in ("e1_rates[rung=mini]", "mini_arms"):
        mean, low, high = values(number(f"{name}: review - constant"))
        assert high < 0  # "holds in small nets"
    assert values(number("mini_arms: review - constant, steps 1-30"))[1] > 0
    for name in (
        "e1_rates[rung=mini]: review - state-gate",
        "e1_rates[rung=mini]: update-gate - constant",
        "published size at equal training",
        "e3_size: review - state-gate",
        "constant - review, larger net less smaller",
    ):
        mean, low, high = values(number(name))
        assert low < 0 < high  # "not shown", "cannot be told"
    assert values(number("review - unwidened constant, 4,800 steps"))[1] > 0  # "behind"
    *_, chance = values(number("spread of the best rate, 1/N less 1/√N"))
    assert chance > 0.05  # "inconclusive"
    assert float(number("SVFormer's cache")) == (8 + 1) / (2 * 8)  # by the equation


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("published comparisons that survived", "survive"),
        ("mini_arms: reviw - constant", "review"),
        ("mini_arms[lr=9]: best", "no run"),
        ("mini_arms: worst", "not understood"),
        ("06_looped_transformers: scaled:reference=2 - scaled:law=none,reference=2", "several"),
    ],
)
def test_what_is_not_there_is_named(text, says):
    with pytest.raises(rr.RRError, match=says):
        number(text)


def test_rows_are_chosen_by_their_values():
    chosen = number("mini_arms[lr=0.0015,steps=300]: review - constant")
    assert chosen == number("mini_arms: review - constant")
