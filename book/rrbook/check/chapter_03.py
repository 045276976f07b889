"""Checks of chapter 3, depth and stability."""

from collections.abc import Callable

import torch

import rr

from . import check, exercise, writes_like


def _gate(bias: float) -> float:
    return torch.sigmoid(torch.tensor(bias, dtype=torch.float64)).item()


@exercise(
    "ex-03-half",
    ask="set `answer` to the bias b",
    nudge="32 sublayers must keep one half together: how much does one keep?",
)
def _half(answer: float) -> bool:
    return abs(_gate(-float(answer)) ** 32 - 0.5) < 0.01


@exercise(
    "ex-03-convex",
    ask="write the class",
    nudge="the state keeps 1 − r of itself, with the gate of Review",
)
def _convex(answer: type[rr.Rule]) -> bool:
    return writes_like(answer, "review-convex")


@exercise(
    "ex-03-louder",
    ask="set `factor` to a number",
    nudge="the Jacobian is still below a tenth",
)
def _louder(answer: float, louder: Callable[[float], tuple[float, float]]) -> bool:
    return louder(answer)[0] > 0.1


@exercise(
    "ex-03-bias",
    ask="set `answer` to one of the four biases",
    nudge="either it stays on the plateau, or a bias nearer to zero is enough",
)
def _bias(answer: int, leaves_with: Callable[[int], bool]) -> bool:
    return leaves_with(answer) and (answer == 0 or not leaves_with(answer + 1))
