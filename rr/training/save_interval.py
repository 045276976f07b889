"""The checkpoint interval: Young's, from the measured duration of a run's own saves.

    T = max(√(2·C·M), C/s − C)

C: mean seconds of a save, measured in this process; M: mean seconds between failures, assumed;
s: the largest share of the time that saving may take: C/(T + C) ≤ s (Young, 1974; chapter 17).
"""

import math
from collections.abc import Callable

from ..errors import RRError
from .checkpoint import CHECKPOINT

BETWEEN_FAILURES = 4 * 3600.0  # M: a spot machine's; wrong by a factor of 4, T is wrong by 2
MOST = 0.05  # s
FIRST = 60.0  # seconds to the first save, which measures C; longer for large models
RATE = 200e6  # bytes per second that a disk is assumed to write until a save was measured
NEWS = 1.25  # a change of the interval by this factor is logged


def young(cost: float, between: float = BETWEEN_FAILURES) -> float:
    """Seconds T between two saves: T = max(√(2·cost·between), cost/s − cost), with s = 0.05.

    The first term loses about the least time where failures come at random; the second keeps the
    share of the time that saving takes, cost/(T + cost), at 5 % or less. Chapter 17 uses it.

    cost: seconds of a save. between: mean seconds between failures; the default, 14,400 s (four
    hours), is assumed: a value wrong by a factor of 4 makes T wrong by a factor of 2. Source: Young
    1974.

    Example:
        >>> from rr.training import young
        >>> young(2, between=14400)  # √(2·2·14400)
        240.0
    """
    return max(math.sqrt(2 * cost * between), cost / MOST - cost)


class Interval:
    """Seconds of training between two checkpoints, `seconds`.

    every: a fixed interval; None: `young` of the mean save, and until one was measured the longer
    of `FIRST` and what `MOST` allows with a disk of `RATE`. params: of the model. No result depends
    on it.
    """

    def __init__(self, every: float | None, params: int, say: Callable[[str], None]) -> None:
        expected = CHECKPOINT * params / RATE
        self.seconds = max(FIRST, expected / MOST - expected) if every is None else every
        self.every, self.say = every, say
        self.saves, self.spent, self.logged = 0, 0.0, 0.0

    def saved(self, cost: float) -> None:
        """Record that a save took `cost` seconds."""
        if self.every is not None:
            return
        self.saves, self.spent = self.saves + 1, self.spent + cost
        mean = self.spent / self.saves
        self.seconds = young(mean)
        if not self.logged / NEWS <= self.seconds <= self.logged * NEWS:
            self.logged = self.seconds
            self.say(
                f"a save takes {mean:.2g} s: the next in {self.seconds:,.0f} s (selected for a "
                f"failure every {BETWEEN_FAILURES / 3600:g} h and at most {MOST:.0%} of the time; "
                "--save-every SECONDS sets it)"
            )


def check_interval(every: float | None) -> None:
    """Raise RRError unless `every` is None or a number of seconds above 0."""
    if every is not None and not every > 0:
        raise RRError(f"save-every must be a number of seconds above 0, or auto, got {every}")
