"""Figures of how training went: the gap of two arms along the run, what another rate costs."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullFormatter

from rr.config import RRError

from .style import CARD, SOFT, finite, label_ends, style_of


def gap_bands(ax: Axes, gaps: Mapping[str, Sequence[Mapping]], baseline: str) -> Axes:
    """Difference in training loss from `baseline` by bands of steps, a line and bars per arm.

    gaps: arm -> rows of `rr.stats.gap_by_step`. A mark stands in the middle of its band, the bar is
    the interval over seeds; below zero favours the arm. Nats per token.
    """
    if not gaps:
        raise RRError("no gap to draw: at least one arm is expected")
    ax.axhline(0, color=SOFT, lw=1.2)
    ends = []
    for place, (arm, rows) in enumerate(gaps.items()):
        shift = 3 * (place - (len(gaps) - 1) / 2)  # steps: bars of several arms stay apart
        steps = [(row["first"] + row["last"]) / 2 + shift for row in rows]
        means = finite([row["mean"] for row in rows], arm)
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


def rate_costs(ax: Axes, rows: Sequence[Mapping]) -> Axes:
    """What the highest and the lowest rate of a grid cost each arm, the dearest arm on top.

    rows: from `rr.stats.rate_costs`. Filled marks: the highest rate; hollow ones: the lowest. The
    axis is logarithmic, in nats per token above the arm's own best.
    """
    rows = sorted(rows, key=lambda row: -list(row["cost"].values())[-1])
    for place, row in enumerate(rows):
        (low, below), *_, (high, above) = row["cost"].items()
        if row["best"] in (low, high):
            raise RRError(f"{row['arm']} is best at an end of its rates: an inner one is expected")
        shown = style_of(row["arm"])
        for cost, fill in ((below, CARD), (finite([above], row["arm"])[0], shown["color"])):
            ax.plot(
                cost,
                place,
                marker=shown["marker"],
                ls="none",
                ms=8,
                mew=1.5,
                color=shown["color"],
                mfc=fill,
                label=row["arm"],
            )
    ax.set_xscale("log")
    marks = [0.05, 0.1, 0.2, 0.5, 1]
    ax.xaxis.set_major_locator(FixedLocator(marks))
    ax.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_yticks(range(len(rows)), [row["arm"] for row in rows])
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel("nats per token above its best")
    return ax
