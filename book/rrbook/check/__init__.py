"""Checks of the exercises: `check("ex-01-share", answer)` says whether an answer is right.

The checks of a chapter are a module of their own, so that its page gives neither formula nor bound
away; a notebook imports `check` from there, and so depends on it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

import rr
from rr.errors import RRError, nearest
from rr.residual import RULES


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

    given: what the check needs of the notebook, a model for instance. An answer that its check
    cannot use is not right, and the line names the error. RRError: no such exercise.
    """
    if label not in EXERCISES:
        raise RRError(f"no exercise {label!r}: {nearest(label, EXERCISES)}")
    asked = EXERCISES[label]
    if answer is None:
        return f"not answered yet: {asked.ask}, then run this cell"
    try:
        return "right" if asked.right(answer, **given) else f"not yet: {asked.nudge}"
    except Exception as error:  # an answer may be anything, a reader's own function too
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        return f"not yet: {asked.nudge} (with this answer the check ends in {why})"


def writes_like(answer: type[rr.Rule], name: str) -> bool:
    """Whether a reader's class writes as the gated rule `name` does.

    Both are made with a width of 16; the reader's starts as the rule does, and with the same random
    gate matrix and bias it gives the same state.
    """
    model = rr.Model(rr.plan("nano:d_model=16,n_layer=1,n_head=2", name).model)
    mine, theirs = (rule(model.rules[0].site, model.config) for rule in (answer, RULES[name]))
    source = torch.Generator().manual_seed(0)
    h, u = torch.randn(2, 3, 5, 16, generator=source)
    values = {
        (16, 32): torch.randn(16, 32, generator=source),
        (16,): torch.randn(16, generator=source),
    }
    if not torch.allclose(mine.write(h, u), theirs.write(h, u)):
        return False
    for rule in (mine, theirs):  # beside them the gain of the norm that a sublayer reads through
        held = [each for name, each in rule.named_parameters() if name != "gain"]
        if sorted(tuple(each.shape) for each in held) != sorted(values):
            return False
        for each in held:
            each.data.copy_(values[tuple(each.shape)])
    return torch.allclose(mine.write(h, u), theirs.write(h, u), atol=1e-6)
