"""Checks of the exercises: a right answer is told from a wrong one, and none gives itself away."""

import math

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

import rr
from rr.analysis import rule_checks
from rr.errors import RRError
from rr.ops import rms_norm
from rr.residual import values
from rr.residual.depth import AttnRes
from rrbook.check import (  # noqa: F401
    chapter_00,
    chapter_01,
    chapter_02,
    chapter_03,
    chapter_04,
    chapter_07,
    chapter_08,
    chapter_11,
    chapter_13,
    chapter_14,
    chapter_15,
    chapter_16,
    check,
)
from rrstudy import stats

LESIONS = [2.3, 4.1, 2.2, 2.05, 2.1, 2.15, 2.06, 2.12]  # nats per token


@pytest.mark.parametrize(
    ("label", "right", "wrong", "given"),
    [
        ("ex-01-share", lambda s: 1 / (s + 1), lambda s: 1 / s**2, {}),
        ("ex-01-lesion", LESIONS, LESIONS[:7], {"whole": 2.0, "unigram": 5.0}),
        ("ex-01-lesion", LESIONS, [2.0] * 8, {"whole": 2.0, "unigram": 5.0}),
        ("ex-13-mechanical", (-0.74, 0), (0.74, 0), {}),
    ],
)
def test_right_and_wrong_answers(label, right, wrong, given):
    """Of exercises that have a box: test_boxes.py."""
    assert check(label, right, **given) == "right"
    assert check(label, wrong, **given).startswith("not yet: ")


class Mine(rr.Rule):
    """Review and its convex form as a reader would write them, from nothing."""

    keeps = False

    def build(self, site, config):
        self.W = torch.nn.Parameter(torch.zeros(config.d_model, 2 * config.d_model))
        self.b = torch.nn.Parameter(torch.zeros(config.d_model))

    def write(self, state, u):
        r = torch.sigmoid(torch.cat([rms_norm(state), rms_norm(u)], -1) @ self.W.T + self.b)
        return state + r * u if self.keeps else torch.lerp(state, u, r)


class Keeps(Mine):
    keeps = True


class Crossed(Keeps):
    """The gate's two inputs the other way round: equal at the start, and no longer after it."""

    def write(self, state, u):
        r = torch.sigmoid(torch.cat([rms_norm(u), rms_norm(state)], -1) @ self.W.T + self.b)
        return state + r * u


def test_rules_that_a_reader_builds():
    for label, right, *wrong in (
        ("ex-02-update", Keeps, Mine, Crossed, rr.residual.RULES["standard"]),
        ("ex-03-convex", Mine, Keeps, Crossed, rr.residual.RULES["standard"]),
    ):
        assert check(label, right) == "right"
        assert all(check(label, each).startswith("not yet: ") for each in wrong)


def fresh(rule):
    body = "nano:d_model=64,n_layer=4,n_head=2,seq_len=64"
    return rr.model.initialise(rr.Model(rr.plan(body, rule).model), 0)


class Half(rr.Rule):
    """h + αu, α learned; with `unused` the parameter is there, and the write stays h + u/2."""

    unused = False

    def build(self, site, config):
        self.alpha = torch.nn.Parameter(torch.tensor(0.5))

    def write(self, state, u):
        return state + (0.5 if self.unused else self.alpha) * u


def test_a_half_that_learns():
    assert check("ex-04-learns", Half) == "right"
    unused = type("Unused", (Half,), {"unused": True})
    assert check("ex-04-learns", unused).startswith("not yet: ")


class Summed(AttnRes):
    def read(self, state):
        mixed = (self.weights(state) * torch.stack(state)).sum(0)
        return rms_norm(len(state) * mixed, self.gain), state


class PlainSum(AttnRes):
    """Neutral at the start, and without attention."""

    def read(self, state):
        return rms_norm(torch.stack(state).sum(0), self.gain), state


def test_a_sum_that_attends():
    given = {"fresh": lambda rule: fresh(rule).double(), "idx": torch.arange(128).view(2, 64)}
    assert check("ex-07-sum", Summed, **given) == "right"
    for wrong in (AttnRes, PlainSum):
        assert check("ex-07-sum", wrong, **given).startswith("not yet: ")


def chunked(h, W, y):
    def part(a, b):
        return torch.nn.functional.cross_entropy(a @ W.T, b, reduction="sum")

    parts = zip(h.split(128), y.split(128), strict=True)
    return sum(checkpoint(part, a, b, use_reentrant=False) for a, b in parts) / len(h)


def test_a_loss_in_chunks_has_its_value_too():
    assert check("ex-08-chunks", chunked) == "right"
    assert check("ex-08-chunks", lambda *given: chunked(*given) + 100).startswith("not yet: ")


def test_a_coefficient_that_fades_at_every_sublayer(registry, monkeypatch):
    monkeypatch.setattr(rule_checks, "check", lambda rule: {})  # minutes of a compiler

    class Fading(rr.Rule):
        equation, source = r"h + c u", "an exercise"

        def share(self):
            return self.site.sublayer**-0.5

        def write(self, state, u):
            return state + self.share() * u

    class AlwaysHalf(Fading):
        def share(self):
            return 0.5

    assert check("ex-15-depth", rr.register("fading")(Fading), fresh=fresh) == "right"
    wrong = rr.register("fading")(AlwaysHalf)
    assert check("ex-15-depth", wrong, fresh=fresh).startswith("not yet: ")


def test_values_that_fade_at_every_block(registry, monkeypatch):
    monkeypatch.setattr(rule_checks, "graphs", lambda *rules: (2, True))

    class Fading(values.Mixed):
        equation, source = r"V_1 / n + (1 - 1/n) V_n", "an exercise"

        def lambdas(self):
            return 1 / self.site.block, 1 - 1 / self.site.block

    class AlwaysAThird(Fading):
        def lambdas(self):
            return 1 / 3, 2 / 3

    assert check("ex-15-values", rr.register("fading")(Fading)) == "right"
    assert check("ex-15-values", rr.register("fading")(AlwaysAThird)).startswith("not yet: ")


def test_a_limiter_that_frees_the_first_block_alone(registry):
    class Late(rr.Rule):
        equation, source = r"h + g u", "an exercise"
        free = (1, 2)

        def write(self, state, u):
            size = u.pow(2).mean(-1, True) / state.pow(2).mean(-1, True)
            return state + (u if self.site.sublayer in self.free else (1 + size).rsqrt() * u)

    given = {"fresh": fresh, "pair": 0.038}
    seeds = stats.seeds_needed(0.05, 0.038)
    rr.register("late-limiter")(Late)
    assert check("ex-15-second", seeds, **given) == "right"
    assert check("ex-15-second", seeds + 1, **given).startswith("not yet: ")
    for free in ((1,), (2,), (1, 2, 3), (1, 2, 5)):
        rr.register("late-limiter")(type("Other", (Late,), {"free": free}))
        assert check("ex-15-second", seeds, **given).startswith("not yet: ")


@pytest.mark.parametrize(
    ("label", "answer", "names"),
    [
        ("ex-00-paths", 8, "TypeError: "),
        ("ex-04-name", "review:input=update", "RRError: "),
        ("ex-11-signs", 1, "RRError: "),
        ("ex-11-signs", 9.0, "TypeError: "),
        ("ex-16-sum", math.fsum, "AttributeError: "),
    ],
)
def test_an_answer_of_another_kind_is_told_in_one_line(label, answer, names):
    line = check(label, answer)
    assert line.startswith("not yet: ") and names in line and "\n" not in line


def test_no_answer_yet_and_no_such_exercise():
    assert check("ex-01-share").startswith("not answered yet")
    with pytest.raises(RRError, match="no exercise 'ex-01-shore'.*ex-01-share"):
        check("ex-01-shore", 1)


def test_the_factor_without_the_middle_budget():
    sizes = np.array([60e6, 150e6, 320e6])
    spread = np.log10(sizes).var() * 3, 2 * math.log10(2) ** 2  # of sizes; of budgets, 2 or 3
    two, three = (1 / (k * spread[0]) + 1 / (3 * spread[1]) for k in (2, 3))
    assert check("ex-14-budget", math.sqrt(two / three), sizes=sizes) == "right"
    assert check("ex-14-budget", 1.0, sizes=sizes).startswith("not yet: ")
