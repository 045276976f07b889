"""Checks of the exercises: a right answer is told from a wrong one, and none gives itself away."""

import pytest

from rr.config import RRError
from rrbook.check.chapter_01 import check


def test_no_answer_yet():
    assert check("ex-01-share").startswith("not answered yet: set `answer` to a function of S")


@pytest.mark.parametrize(
    ("label", "right", "wrong", "given"),
    [
        ("ex-01-share", lambda s: 1 / (s + 1), lambda s: 1 / s**2, {}),
        ("ex-01-lesion", [2, 4, 2, 2, 2, 2, 2, 2], [2] * 7, {"whole": 2.0, "unigram": 5.0}),
    ],
)
def test_right_and_wrong_answers(label, right, wrong, given):
    assert check(label, right, **given) == "right"
    assert check(label, wrong, **given).startswith("not yet: ")


def test_an_exercise_that_does_not_exist():
    with pytest.raises(RRError, match="no exercise 'ex-01-shore'.*ex-01-share"):
        check("ex-01-shore", 1)
