"""The best learning rate of an arm, and how far from it another may lie."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rr.errors import RRError

NEAREST = 5  # rates that the parabola is drawn through: the lowest loss and those around it


@dataclass(frozen=True)
class Basin:
    """The minimum of a parabola in log learning rate, and the rates where it is nearly as low.

    `basin()` makes one.

    Example:
        >>> from rrbook.stats import Basin
        >>> Basin(lr=2e-3, loss=4.0, low=1e-3, high=4e-3).width
        4.0
    """

    lr: float  # the best rate
    loss: float  # nats per token, of the parabola at lr
    low: float  # rates from low to high have a fitted loss within the tolerance of `loss`
    high: float

    @property
    def width(self) -> float:
        """The factor by which the rate may vary, high/low; 1 where it is unknown."""
        return self.high / self.low


def basin(losses: Mapping[float, float], tolerance: float = 0.02) -> Basin:
    """The best learning rate, from a parabola of the held-out loss in ln(rate).

    Least squares through the five finite losses around the lowest. lr is the parabola's minimum,
    held within those points. If the parabola is concave, lr is the rate with the lowest loss and
    low = high = lr: the width is unknown. low and high may lie beyond the rates tried.

    losses: {rate: loss}, nats per token. tolerance: nats per token above the minimum. Raises
    RRError for fewer than three finite losses.

    Example:
        >>> from rrbook.stats import basin
        >>> best = basin({1e-3: 4.1, 2e-3: 4.0, 4e-3: 4.1})
        >>> round(best.lr, 6)
        0.002
    """
    points = sorted((lr, loss) for lr, loss in losses.items() if math.isfinite(loss))
    if len(points) < 3:
        raise RRError(f"a parabola needs at least three finite losses, got {len(points)}")
    lowest = min(range(len(points)), key=lambda i: points[i][1])
    first = min(max(lowest - NEAREST // 2, 0), max(len(points) - NEAREST, 0))
    near = points[first : first + NEAREST]
    x, y = np.log([lr for lr, _ in near]), np.array([loss for _, loss in near])
    centre = float(x.mean())
    c, b, a = np.polyfit(x - centre, y, 2)
    if c <= 0:
        lr, loss = points[lowest]
        return Basin(lr, loss, lr, lr)
    at = float(np.clip(-b / (2 * c), x.min() - centre, x.max() - centre))
    loss = float(a + b * at + c * at**2)
    vertex, half = -b / (2 * c), math.sqrt(max(loss - (a - b * b / (4 * c)), 0) / c + tolerance / c)
    low, high = (math.exp(centre + vertex + sign * half) for sign in (-1, 1))
    return Basin(math.exp(centre + at), loss, low, high)


def before_cliff(
    tried: Mapping[float, Sequence[float]], cliff: float
) -> dict[float, Sequence[float]]:
    """The rates below the first at which a run blew up: those that may be points of a parabola.

    A run blew up where it did not finish, or finished more than `cliff` nats per token above the
    run of its seed at the next smaller rate: a parabola through it has its minimum far below the
    best rate. The larger rates go with it. tried: {rate: losses, one per seed}, not finite where a
    run did not finish.

    Example:
        >>> from rrbook.stats import before_cliff
        >>> list(before_cliff({1e-3: [4.0], 2e-3: [3.9], 4e-3: [4.4]}, cliff=0.1))
        [0.001, 0.002]
    """
    kept: dict[float, Sequence[float]] = {}
    for lr, losses in sorted(tried.items()):
        smaller = kept[max(kept)] if kept else losses
        rises = (loss - before for loss, before in zip(losses, smaller, strict=True))
        if not all(map(math.isfinite, losses)) or any(rise > cliff for rise in rises):
            break
        kept[lr] = losses
    return kept
