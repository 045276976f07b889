"""Checks of chapter 17, running it elsewhere."""

import math
from collections.abc import Mapping

from ..explorables import running
from . import check, exercise


@exercise(
    "ex-17-interval",
    ask="set `answer` to the minutes",
    nudge="both times in hours first, and back to minutes at the end",
)
def _interval(answer: float) -> bool:
    return abs(answer / (60 * math.sqrt(2 * 20 / 3600 * 4)) - 1) < 0.05


@exercise(
    "ex-17-disk",
    ask="set `answer` to the gigabytes per second",
    nudge="count the bytes of a checkpoint, and the seconds that are left for it",
)
def _disk(answer: float, counts: Mapping[str, int]) -> bool:
    return abs(answer * 1e9 * 4 / (12 * counts["1B"]) - 1) < 0.05


@exercise(
    "ex-17-spot",
    ask="set `answer` to the price, in units of a safe hour",
    nudge="times are in hours, and an hour of work costs what is lost as well",
)
def _spot(answer: float) -> bool:
    best = math.sqrt(2 / 60 * 0.5)
    paid = 0.5 * (1 + running.overhead(best, 1 / 60, 0.5, 10 / 60))
    return abs(answer / paid - 1) < 0.02
