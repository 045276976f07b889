"""Figures of how training went: the gap of two arms along the run, the loss by learning rate."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullFormatter

from rr.errors import RRError

from .data import keep
from .style import SOFT, finite, label_ends, style_of


def gap_bands(ax: Axes, gaps: Mapping[str, Sequence[Mapping]], baseline: str) -> Axes:
    """Difference in training loss from `baseline` by bands of steps, a line and bars per arm.

    gaps: arm -> rows of `rrbook.stats.gap_by_step`. A mark stands in the middle of its band, the
    bar is the interval over seeds; below zero favours the arm. Nats per token.
    """
    if not gaps:
        raise RRError("no gap to draw: at least one arm is expected")
    ax.axhline(0, color=SOFT, lw=1.2)
    ends = []
    for place, (arm, rows) in enumerate(gaps.items()):
        shift = 3 * (place - (len(gaps) - 1) / 2)  # steps: bars of several arms stay apart
        steps = [(row["first"] + row["last"]) / 2 + shift for row in rows]
        means = finite([row["mean"] for row in rows], arm)
        columns = {arm: means, f"{arm}, interval": [(row["lo"], row["hi"]) for row in rows]}
        keep(ax, [(row["first"], row["last"]) for row in rows], columns)
        shown = style_of(arm)
        for x, row in zip(steps, rows, strict=True):
            ax.plot([x, x], [row["lo"], row["hi"]], color=shown["color"], lw=1.2)
        ax.plot(steps, means, label=arm, **shown)
        ends.append((steps[-1], means[-1], arm, shown["color"]))
    ax.set_xlim(0, 1.4 * max(x for x, *_ in ends))  # room for the names
    ax.set_xlabel("training step")
    ax.set_ylabel(f"loss − {baseline} (nats per token)")
    label_ends(ax, ends)
    return ax


def rate_basins(
    ax: Axes, tried: Mapping[str, Mapping[float, float]], best: Mapping[str, float]
) -> Axes:
    """Held-out loss by learning rate, a line an arm, a vertical stroke at the arm's best rate.

    tried: arm -> {rate: mean loss, nats per token}. best: arm -> the rate that was chosen for it,
    on that line by linear interpolation in the log of the rate.
    """
    if not tried:
        raise RRError("no rates to draw: at least one arm is expected")
    ends = []
    for arm, losses in tried.items():
        rates = sorted(losses)
        values = finite([losses[rate] for rate in rates], arm)
        shown = style_of(arm)
        ax.plot(rates, values, label=arm, **shown)
        at = np.interp(np.log(best[arm]), np.log(rates), values)
        keep(ax, [1000 * rate for rate in rates], {arm: values})
        keep(ax, [1000 * best[arm]], {f"{arm}, chosen": [at]})
        ax.plot(best[arm], at, "|", ms=16, mew=2, color=shown["color"])
        ends.append((rates[-1], values[-1], arm, shown["color"]))
    ax.set_xscale("log")
    low, high = min(min(losses) for losses in tried.values()), max(x for x, *_ in ends)
    ax.set_xlim(low / 1.1, high * (high / low) ** 0.45)  # room for the names
    marks = sorted({rate for losses in tried.values() for rate in losses})
    ax.xaxis.set_major_locator(FixedLocator(marks))
    ax.xaxis.set_major_formatter(_thousandths)
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel("learning rate (10⁻³)")
    ax.set_ylabel("held-out loss (nats per token)")
    label_ends(ax, ends)
    return ax


def _thousandths(x: float, place: float) -> str:
    return f"{1000 * x:.3g}"
