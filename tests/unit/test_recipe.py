"""A recipe says what is trained, or is refused in one line; the schedule is that of its formula."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

import rr
from rr.errors import RRError
from rr.options import options_of
from rr.specs import LATER, Recipe, Run
from rr.training.evaluate import result
from rr.training.planning import recipe
from rrstudy.command_line import options
from rrstudy.stats.results import GROUP, TOLD

GOOD = {"steps": 100, "batch": 8, "lr": 1e-3, "warmup": 5}
BAD = [
    ("schedule", "cosin", "unknown schedule 'cosin': did you mean cosine"),
    ("schedule", 3, "unknown schedule 3"),
    ("warmup", -3, "warmup must be an integer ≥ 1, got -3"),
    ("warmup", "3", "warmup must be an integer ≥ 1, got '3'"),
    ("lr", "1e-3", "lr must be a finite number > 0, got '1e-3'"),
    ("lr", 10**400, "lr must be a finite number > 0"),
    ("eps", 10**400, "eps must be a finite number ≥ 0"),
    ("lr", math.nan, "lr must be a finite number > 0"),
    ("clip", -1, "clip must be a finite number > 0, got -1"),
    ("clip", True, "clip must be a finite number > 0, got True"),
    ("betas", (2, 3), "betas must be two numbers ≥ 0 and < 1, got 2"),
    ("betas", (0.9,), "betas must be a pair of numbers"),
    ("betas", (0.9, "0.95"), "betas must be two numbers ≥ 0 and < 1, got '0.95'"),
    ("eps", -1e-8, "eps must be a finite number ≥ 0"),
    ("weight_decay", math.inf, "weight_decay must be a finite number ≥ 0"),
    ("decay_all", "no", "decay_all must be True or False, got 'no'"),
    ("depth_lr", 1, "depth_lr must be True or False, got 1"),
]


@pytest.mark.parametrize(("name", "value", "words"), BAD)
def test_a_wrong_value_is_refused_in_one_line(name, value, words):
    spec = rr.plan("nano").spec()
    with pytest.raises(RRError) as direct:
        Recipe(**GOOD | {name: value})
    with pytest.raises(RRError) as read:
        Run.from_spec(spec | {"recipe": spec["recipe"] | {name: value}})
    for error in map(str, (direct.value, read.value)):
        assert words in error and "\n" not in error


def test_a_whole_number_names_the_same_run_as_its_float():
    run = rr.plan("nano", lr=1)
    assert run.id == rr.plan("nano", lr=1.0).id
    for name, value in {"clip": 1, "eps": 0, "weight_decay": 0, "betas": (0, 0)}.items():
        as_floats = tuple(map(float, value)) if name == "betas" else float(value)
        runs = [replace(run, recipe=replace(run.recipe, **{name: x})) for x in (value, as_floats)]
        assert runs[0].id == runs[1].id, name


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"budgets": [40, 1000]}, "after 32 of 40 steps: give a warmup of at most 32"),
        ({"budgets": [40, 1000], "warmup": 33}, "at most 32, or more steps, got 33"),
        ({"steps": 100, "warmup": 81}, "after 80 of 100 steps: give a warmup of at most 80"),
        ({"protocol": "paper", "steps": 300, "warmup": 300}, "after 299 of 300 steps"),
        ({"protocol": "paper", "steps": 500, "warmup": 500}, "at most 499, or more steps, got 500"),
    ],
)
def test_a_warmup_that_never_ends_is_refused(given, words):
    with pytest.raises(RRError, match=words):
        rr.plan("nano", **given)


@pytest.mark.parametrize(
    "plan",
    [
        recipe("nano", budgets=[300, 1200, 4800]),  # as recorded: the warm-up fills the plateau
        recipe("nano", budgets=[40, 1000], warmup=32),
        recipe("nano", steps=1),
        recipe("nano", steps=2),
        recipe("nano", steps=37, warmup=29),
        recipe("60M", "paper"),
        recipe("nano", "paper", steps=300),
        recipe("60M", "paper", steps=300, warmup=299),
    ],
)
def test_the_rate_is_the_formula_of_its_docstring(plan):
    peak, warmup = plan.lr, plan.warmup
    for budget in plan.budgets or (plan.steps,):
        start = budget * 4 // 5
        for s in range(budget):
            rate = plan.lr_at(s, budget)
            if plan.schedule == "cosine":
                turn = math.pi * (s - warmup) / (budget - warmup)
                falls = peak * (0.1 + 0.9 * 0.5 * (1 + math.cos(turn)))
                expected = peak * (s + 1) / warmup if s < warmup else falls
            elif s < start:
                expected = peak * min(1, (s + 1) / warmup)
            else:
                expected = peak * (budget - s) / (budget - start)
            assert rate == pytest.approx(expected, rel=1e-12)
        rates = [plan.lr_at(s, budget) for s in range(budget)]
        top = rates.index(max(rates))
        assert rates[:top] == sorted(rates[:top]) and rates[top:] == sorted(rates[top:])[::-1]
        assert max(rates) == peak


def test_a_printed_command_of_a_short_run_of_the_study_names_its_warmup():
    run = rr.plan("nano", protocol="paper", steps=300, warmup=50)
    assert options(run)["warmup"] == 50
    assert "warmup" not in options(rr.plan("nano", steps=300))
    assert "warmup" not in options(rr.plan("nano", protocol="paper", steps=300))


def test_the_studys_runs_have_their_500_steps_and_short_ones_an_end_of_it():
    paper = recipe("60M", "paper")
    assert (paper.steps, paper.batch, paper.precision) == (8000, 64, "tf32")
    warmups = [recipe("60M", steps=n).warmup for n in (1, 3, 1000, 20_000)]
    assert warmups == [1, 1, 50, 500]  # a twentieth, and never more than 500
    for rung in ("60M", "150M", "320M", "590M", "1B"):
        assert recipe(rung, "paper").warmup == 500
    assert [recipe("60M", "paper", steps=n).warmup for n in (1, 300, 5999)] == [1, 25, 499]


def test_runs_that_differ_in_an_option_are_not_one_arm():
    """Each arm may have a learning rate of its own, and budgets have a row each, with its steps."""
    told = set(options_of(Recipe)) - {"lr", "budgets"}
    assert not told - {*GROUP, *TOLD}, "options that TOLD lacks"


# Each of LATER["recipe"] at another value than its default; budgets have a row each.
CHOSEN = {"depth_lr": True, "optimizer": "muon"}


def test_a_result_names_each_option_that_is_not_at_its_default():
    def told(**given):
        tokens = SimpleNamespace(name="fables", tokenizer_name="bpe:1024")
        settings = SimpleNamespace(precision="fp32", backend_name="eager", reason="")
        return result(rr.plan("nano", **given), tokens, settings, {}, {}, 0.0)

    later = LATER["recipe"].keys() - {"budgets"}
    assert later == CHOSEN.keys(), "give CHOSEN another value of each new option"
    assert not later & told().keys()  # old results and new ones of one arm are alike
    for name, value in CHOSEN.items():
        assert told(**{name: value}).get(name) == value, f"{name} is not in result.json"
