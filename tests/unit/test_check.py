"""Checks of the exercises: a right answer is told from a wrong one, and none gives itself away."""

import math

import numpy as np
import pytest
import torch

import rr
from rr.errors import RRError
from rr.ops import rms_norm
from rrbook.check import chapter_02, chapter_03, chapter_11, chapter_12, chapter_13, chapter_14  # noqa: F401
from rrbook.check.chapter_01 import check


@pytest.mark.parametrize(
    ("label", "right", "wrong", "given"),
    [
        ("ex-01-share", lambda s: 1 / (s + 1), lambda s: 1 / s**2, {}),
        ("ex-01-lesion", [2, 4, 2, 2, 2, 2, 2, 2], [2] * 7, {"whole": 2.0, "unigram": 5.0}),
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
