"""The time limit of a sweep: which cells still end within it.

A cell's time is estimated from its FLOPs and the slowest rate seen so far: that of the cells which
this sweep has finished at the same rung and rule, else at the same rung; else by `expected` (a
benchmark's record, as `rr plan` reads it); else that of any finished cell. A cell of which nothing
is known is started, and stopped at the limit with its checkpoint saved.
"""

import time
from collections.abc import Callable, Iterable, Sequence

from rr.errors import RRError
from rr.specs import Run

from .grid import Cell


class Hours:
    """The time limit of a sweep: which cells still end within it; see the module for the estimate.

    hours: from now. expected: estimate of a run's seconds before any has finished; None: unknown.
    clock: seconds, of any origin. Raises RRError unless hours is a finite number above 0.

    Example:
        >>> from rrstudy.sweep import Hours
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
        """Whether the limit has passed."""
        return self.clock() >= self.end

    def note(self, cell: Cell, seconds: float, share: float) -> None:
        """Record a finished cell: `share` of its training took `seconds`, start-up included.

        Less than half of a cell tells of its start-up and evaluation rather than of its steps.
        """
        if share >= 0.5:
            self.finished.append((cell, seconds / (share * cell.flops)))

    def seconds(self, cell: Cell) -> float | None:
        """Estimated seconds of the whole cell; None where nothing is known."""
        at_rung = [(c, r) for c, r in self.finished if c.run.rung == cell.run.rung]
        same = [(c, r) for c, r in at_rung if c.run.rule == cell.run.rule]
        if not at_rung:
            expected = self.expected(cell.run)
            if expected is not None:
                return expected
        rates = [rate for _, rate in same or at_rung or self.finished]
        return max(rates) * cell.flops if rates else None

    def admit(
        self,
        cells: Iterable[tuple[Cell, float]],
        running: Iterable[tuple[Cell, float, float]] = (),
        places: int = 1,
    ) -> bool:
        """Whether all of `cells` end in time if started now.

        cells: (cell, share of its training that is left). running: the running cells, (cell, share
        that was left when it was started, seconds since). places: cells at a time.
        """
        each = self._left((cell, share, 0.0) for cell, share in cells)
        needed = max([*each, (sum(each) + sum(self._left(running))) / places])
        return self.clock() + needed <= self.end

    def _left(self, cells: Iterable[tuple[Cell, float, float]]) -> Sequence[float]:
        times = [(self.seconds(cell), share, spent) for cell, share, spent in cells]
        return [max(0.0, total * share - spent) for total, share, spent in times if total]
