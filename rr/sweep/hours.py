"""The hours that a sweep may take: which cells still end within them.

A cell's time is estimated from its FLOPs and the slowest rate seen so far: that of the cells which
this sweep has finished, at the same rung and rule, else at the same rung; else what `expected` says
(a benchmark's record, as `rr plan` reads it); else that of any finished cell. A cell of which
nothing is known is started: the hours end it, its checkpoint saved.
"""

import time
from collections.abc import Callable, Iterable, Sequence

from ..config import RRError, Run
from .grid import Cell


class Hours:
    """`hours` from now. expected: seconds of a run, or None where it cannot say; clock: seconds.

    Example:
        >>> from rr.sweep import Hours
        >>> Hours(2.0).over
        False
    """

    def __init__(
        self,
        hours: float,
        expected: Callable[[Run], float | None] = lambda run: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 0 < hours < float("inf"):
            raise RRError(f"hours must be a finite number > 0, got {hours}")
        self.expected, self.clock = expected, clock
        self.end = clock() + 3600 * hours
        self.finished: list[tuple[Cell, float]] = []  # and its seconds per FLOP

    @property
    def over(self) -> bool:
        """Whether they have passed."""
        return self.clock() >= self.end

    def note(self, cell: Cell, seconds: float, share: float) -> None:
        """A cell has finished: `share` of its training took so long, start and end included."""
        if share > 0:
            self.finished.append((cell, seconds / (share * cell.flops)))

    def seconds(self, cell: Cell) -> float | None:
        """What the whole cell takes; None where nothing is known."""
        at_rung = [(c, r) for c, r in self.finished if c.run.rung == cell.run.rung]
        same = [(c, r) for c, r in at_rung if c.run.rule == cell.run.rule]
        if not at_rung and (told := self.expected(cell.run)) is not None:
            return told
        rates = [rate for _, rate in same or at_rung or self.finished]
        return max(rates) * cell.flops if rates else None

    def admit(
        self,
        cells: Iterable[tuple[Cell, float]],
        running: Iterable[tuple[Cell, float, float]] = (),
        places: int = 1,
    ) -> bool:
        """Whether all of `cells` end in time, started now: each with the share that is to do.

        running: cells that hold places, the share that was to do when each was started, and the
        seconds since. places: cells at a time.
        """
        each = self._left((cell, share, 0.0) for cell, share in cells)
        needed = max([*each, (sum(each) + sum(self._left(running))) / places])
        return self.clock() + needed <= self.end

    def _left(self, cells: Iterable[tuple[Cell, float, float]]) -> Sequence[float]:
        told = [(self.seconds(cell), share, spent) for cell, share, spent in cells]
        return [max(0.0, whole * share - spent) for whole, share, spent in told if whole]
