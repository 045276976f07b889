"""Learning rates of an arm: the best one, and what another costs."""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ..config import RRError
from .many import losses_by_seed
from .tables import arm_of

NEAREST = 5  # rates that the parabola is drawn through: the lowest loss and those around it


@dataclass(frozen=True)
class Basin:
    """The minimum of a parabola in log learning rate, and the rates where it is nearly as low.

    `low`, `high` bound the rates whose fitted loss is within the tolerance of `loss`. `edge` is
    True where the best rate tried is the smallest or the largest of them.
    """

    lr: float
    loss: float  # nats per token, of the parabola at lr
    low: float
    high: float
    edge: bool

    @property
    def width(self) -> float:
        """The factor by which the rate may vary, high/low."""
        return self.high / self.low


def _mean(losses: Collection[float | None]) -> float:
    """The mean; infinite where a run diverged."""
    finite = [loss for loss in losses if loss is not None]
    return math.inf if len(finite) < len(losses) else math.fsum(finite) / len(finite)


def basin(losses: Mapping[float, float], tolerance: float = 0.02) -> Basin:
    """Least-squares parabola of the held-out loss (nats per token) in the log of the rate.

    Through the NEAREST finite points around the lowest; its vertex, held within those points, is
    the best rate. Where it does not open upwards, the lowest rate tried is.
    Raises RRError for fewer than three finite losses.
    """
    points = sorted((lr, loss) for lr, loss in losses.items() if math.isfinite(loss))
    if len(points) < 3:
        raise RRError(f"a parabola needs at least three finite losses, got {len(points)}")
    lowest = min(range(len(points)), key=lambda i: points[i][1])
    edge = lowest in (0, len(points) - 1)
    first = min(max(lowest - NEAREST // 2, 0), max(len(points) - NEAREST, 0))
    near = points[first : first + NEAREST]
    x, y = np.log([lr for lr, _ in near]), np.array([loss for _, loss in near])
    centre = float(x.mean())
    c, b, a = np.polyfit(x - centre, y, 2)
    if c <= 0:
        lr, loss = points[lowest]
        return Basin(lr, loss, lr, lr, edge)
    at = float(np.clip(-b / (2 * c), x.min() - centre, x.max() - centre))
    loss = float(a + b * at + c * at**2)
    vertex, half = -b / (2 * c), math.sqrt(max(loss - (a - b * b / (4 * c)), 0) / c + tolerance / c)
    low, high = (math.exp(centre + vertex + sign * half) for sign in (-1, 1))
    return Basin(math.exp(centre + at), loss, low, high, edge)


def rate_costs(rows: Iterable[Mapping]) -> list[dict]:
    """Excess loss at every learning rate of a grid, over the arm's own best rate.

    rows: results of arms that were run at the same rates on the same seeds. One row per arm, in the
    order met: `arm`, `seeds` (their number), `best` (rate with the lowest mean loss), `loss`
    (there, nats per token), `inner` (whether the grid has a rate on either side of it) and `cost`,
    {rate: mean loss − `loss`} over all rates, ascending; infinite where a run diverged.

    The best rate is the best of those tried; between them a grid is silent. Raises RRError
    for fewer than two rates, or arms that were not run at the same rates and seeds.

    Example:
        >>> from rr.stats import rate_costs
        >>> rows = [
        ...     {"rule": "review", "values": "own", "seed": 0, "lr": lr, "val_loss": loss}
        ...     for lr, loss in [(1e-3, 4.1), (2e-3, 4.0), (4e-3, 4.3)]
        ... ]
        >>> rate_costs(rows)[0]["best"]
        0.002
    """
    runs: dict[str, dict[float, list[Mapping]]] = {}
    for row in rows:
        runs.setdefault(arm_of(row), {}).setdefault(row["lr"], []).append(row)
    out, grid = [], None
    for arm, by_rate in runs.items():
        losses = {
            lr: losses_by_seed(by_rate[lr], "val_loss", f"{arm} at {lr:g}")
            for lr in sorted(by_rate)
        }
        mine = {lr: sorted(values) for lr, values in losses.items()}
        grid = mine if grid is None else grid
        if mine != grid or len({tuple(seeds) for seeds in mine.values()}) > 1:
            raise RRError(
                f"{arm} has other rates or seeds than the arm before it: run each arm at the same"
            )
        if len(mine) < 2:
            raise RRError(f"{arm} was run at one learning rate: give at least two")
        means = {lr: _mean(values.values()) for lr, values in losses.items()}
        best = min(means, key=means.__getitem__)
        if math.isinf(means[best]):
            raise RRError(f"{arm} diverged at every learning rate: give at least one that finished")
        rates = list(means)
        out.append(
            {
                "arm": arm,
                "seeds": len(next(iter(mine.values()))),
                "best": best,
                "loss": means[best],
                "inner": best not in (rates[0], rates[-1]),
                "cost": {lr: means[lr] - means[best] for lr in rates},
            }
        )
    return out
