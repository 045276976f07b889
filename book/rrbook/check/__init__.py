"""Checks of the exercises: `check("ex-01-share", answer)` says whether an answer is right.

The checks of a chapter are a module of their own, so that its page gives neither formula nor bound
away; a notebook imports `check` from there, and so depends on it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from rr.config import RRError, nearest


@dataclass(frozen=True)
class Exercise:
    """How an answer is checked, and what the reader is told."""

    ask: str  # what an answer is
    nudge: str  # what is said of a wrong one
    right: Callable[..., bool]


EXERCISES: dict[str, Exercise] = {}


def exercise(label: str, *, ask: str, nudge: str) -> Callable:
    """Register the decorated function as the check of the exercise `label`: answer -> right?"""

    def register(right: Callable[..., bool]) -> Callable[..., bool]:
        EXERCISES[label] = Exercise(ask, nudge, right)
        return right

    return register


def check(label: str, answer: object = None, **given: object) -> str:
    """`right`, or one line that says what is missing.

    given: what the check needs of the notebook, a model for instance. RRError: no such exercise.
    """
    if label not in EXERCISES:
        raise RRError(f"no exercise {label!r}: {nearest(label, EXERCISES)}")
    found = EXERCISES[label]
    if answer is None:
        return f"not answered yet: {found.ask}, then run this cell"
    return "right" if found.right(answer, **given) else f"not yet: {found.nudge}"
