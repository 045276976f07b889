"""Figures of the two reports: a run's curve, gates and calibration; a folder's gaps by size."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, NullLocator, PercentFormatter

from rr.errors import RRError

from .data import keep, keep_row
from .results import loss_curves
from .style import (
    BLUE,
    CARD,
    HALO,
    ORANGE,
    SOFT,
    VERMILLION,
    finite,
    label_ends,
    name_rows,
    note,
    readable,
    style_of,
)


def run_curve(
    ax: Axes,
    curves: Sequence[Mapping],
    held_out: Sequence[tuple[int, float]],
    floor: tuple[float, float] | None = None,
    story: tuple[int, float] | None = None,
    bigram: float | None = None,
) -> Axes:
    """Training loss of one run, its branches dotted, and the held-out loss as rings.

    curves: as `loss_curves` takes them. held_out: (step, nats per token). floor: entropy floor of
    the held-out stories and its standard error; story: the step and loss of those very stories,
    each alone in its window, which alone may be held against the floor. bigram: held-out loss of a
    bigram table, a line that the net should cross.
    """
    if not curves:
        raise RRError("no training loss was recorded: give a run of at least one step")
    ends = [*zip(*held_out, strict=True)] if held_out else None
    if ends:
        keep(ax, ends[0], {"held-out": ends[1]})
        ax.plot(*ends, "o", ms=7, mfc=CARD, mec=BLUE, mew=1.8, label="held-out", zorder=4)
    if story is not None:
        keep_row(ax, story[0], {"held-out, whole stories": story[1]})
        ax.plot(*story, "D", ms=6, color=VERMILLION, label="held-out, whole stories", zorder=4)
    if bigram is not None:
        ax.axhline(bigram, color=ORANGE, lw=1.6, ls="--", label=f"bigram table {bigram:.2f}")
    loss_curves(ax, curves, floor)
    handles, labels = ax.get_legend_handles_labels()
    known = dict(zip(labels, handles, strict=True))
    ax.legend(known.values(), known.keys(), loc="upper right")
    return ax


def norm_curve(ax: Axes, norms: Sequence[Mapping], clip: float) -> Axes:
    """Norm of the gradients along a run, before clipping, and the norm that they are clipped to.

    norms: curves of `rrbook.reports.Ended.norms`; without one the axes say so.
    """
    if not norms:
        return says(ax, "no finite norm was logged")
    for curve in norms:
        shown = style_of(curve["rule"])
        x, y = curve["steps"], finite(curve["loss"], "the gradient norm")
        mark = "." if len(x) == 1 else None
        ax.plot(x, y, marker=mark, color=shown["color"], ls=shown["linestyle"], lw=1.2)
        keep(ax, x, {"": y})
    ax.axhline(clip, color=VERMILLION, lw=1.2, ls="--")
    look = {"color": readable(VERMILLION), "fontsize": 9.5, "path_effects": HALO}
    at = ("axes fraction", "data")
    note(ax, f"clipped to {clip:g}", (1, clip), (-4, 4), xycoords=at, ha="right", **look)
    ax.set_ylim(0, 1.15 * max(clip, ax.dataLim.y1))
    ax.set_xlabel("training step")
    ax.set_ylabel("gradient norm")
    return ax


def gates_by_sublayer(ax: Axes, rows: Sequence[Mapping], rule: str, why: str = "") -> Axes:
    """What each sublayer writes of its update: a gate's quantiles, or one coefficient.

    rows: from `rrbook.reports.gates`: thin line from 5 to 95 %, thick line over the middle half,
    ring at the median, cross at the mean. Without rows the axes say `why`.
    """
    if not rows:
        return says(ax, why or "no sublayer to show")
    colour = style_of(rule)["color"]
    for place, row in enumerate(rows):
        keep_row(ax, row["name"], {"mean": row["mean"]}, down=True)
        if row["r"] is None:
            ax.plot(row["mean"], place, "D", color=colour, ms=6)
            continue
        low, first, middle, third, high = row["r"]
        cells = {"median": middle, "middle half": (first, third), "5 to 95 %": (low, high)}
        keep_row(ax, row["name"], cells, down=True)
        ax.plot([low, high], [place, place], color=colour, lw=1.4)
        ax.plot([first, third], [place, place], color=colour, lw=5, solid_capstyle="butt")
        ax.plot(middle, place, "o", ms=7, mfc=CARD, mec=colour, mew=1.8, zorder=3)
        ax.plot(row["mean"], place, "x", ms=6, mew=1.6, color=VERMILLION, zorder=4)
    gated = any(row["r"] is not None for row in rows)
    means = [row["mean"] for row in rows]
    if gated:
        ax.set_xlim(0, 1)
    elif max(means) - min(means) < 0.01:  # one number: the axis would show its rounding
        ax.set_xlim(min(means) - 0.5, max(means) + 0.5)
    name_rows(ax, [row["name"] for row in rows])
    ax.set_xlabel("gate r" if gated else "coefficient on the update")
    return ax


def reliability(ax: Axes, bins: np.ndarray | None, why: str = "") -> Axes:
    """Share of right answers against mean confidence, a dot a bin, its area the bin's tokens.

    bins: (n, 3): tokens, summed confidence, right answers, as `rr.training.evaluate.Tally` counts.
    On the diagonal a model is as often right as it is sure; below it, it is too sure.
    """
    if bins is None:
        return says(ax, why or "nothing was scored")
    bins = np.asarray(bins, dtype=float)
    if bins.ndim != 2 or bins.shape[1] != 3 or not bins[:, 0].sum() > 0:
        raise RRError("bins hold no tokens: give rows of (tokens, sum of confidence, hits)")
    seen = bins[bins[:, 0] > 0]
    confidence, right = seen[:, 1] / seen[:, 0], seen[:, 2] / seen[:, 0]
    ax.plot([0, 1], [0, 1], color=SOFT, lw=1.2, ls=(0, (1, 1)))
    keep(ax, confidence, {"": right, "tokens": seen[:, 0]})
    ax.vlines(confidence, confidence, right, color=VERMILLION, lw=1.4)
    ax.scatter(
        confidence,
        right,
        s=20 + 380 * seen[:, 0] / bins[:, 0].sum(),
        color=BLUE,
        edgecolor=CARD,
        alpha=0.85,
        zorder=3,
        clip_on=False,  # a dot at the edge is drawn whole
    )
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(PercentFormatter(1, decimals=0))
    ax.set_xlim(0, 1)
    ax.set_ylim(0, 1)
    ax.set_xlabel("confidence in the likeliest token")
    ax.set_ylabel("how often it is right")
    return ax


def gaps_by_size(ax: Axes, points: Sequence[Mapping], why: str = "") -> Axes:
    """Gap of each series against parameters, with its interval: the emergence figure.

    points: from `rrbook.reports.points`. Sizes are logarithmic, series stand a little beside one
    another; a series of several sizes is joined by a line. Rungs without options, each of one size,
    name the ticks. Without points the axes say `why`.
    """
    if not points:
        return says(ax, why or "no arm has two pairs with its baseline")
    series = list(dict.fromkeys(point["series"] for point in points))
    sizes = sorted({point["size"] for point in points})
    alone = max(sizes) < 1.5 * min(sizes)  # one rung: room on both sides, and between arms
    ends, step = [], 1.5 ** (2 / max(4, len(series))) if alone else 1.05
    ax.set_xscale("log")
    for place, name in enumerate(series):
        own = sorted((p for p in points if p["series"] == name), key=lambda p: p["size"])
        shown, beside = style_of(own[0]["rule"]), step ** (place - (len(series) - 1) / 2)
        x, y = [p["size"] * beside for p in own], finite([p["gap"] for p in own], name)
        spans = [(p["lo"], p["hi"]) for p in own]
        keep(ax, [p["size"] for p in own], {name: y, f"{name}, interval": spans})
        for at, point in zip(x, own, strict=True):
            interval = [point["lo"], point["hi"]]
            ax.plot([at, at], interval, color=shown["color"], lw=2, marker="_", ms=10, mew=1.6)
        ax.plot(
            x,
            y,
            label=name,
            ms=5,  # smaller than a short interval
            mec=shown["color"],
            **{"markerfacecolor": shown["color"], **shown},
        )
        ends.append((x[-1], y[-1], name, shown["color"]))
    ax.axhline(0, color=SOFT, lw=1.2)
    if alone:
        ax.set_xlim(min(sizes) / 2, max(sizes) * 2)
    ax.xaxis.set_minor_locator(NullLocator())
    ticks = _apart(sizes)
    rungs = {point["size"]: point.get("rung", "") for point in points}
    names = [rungs[size] for size in ticks]
    if len({*names}) == len(names) and all(name.isalnum() for name in names):
        ax.set_xticks(ticks, names)
        ax.set_xlabel("parameters, marked by rung")
    else:
        ax.set_xticks(ticks)
        ax.xaxis.set_major_formatter(EngFormatter(places=1, sep=" "))
        ax.set_xlabel("parameters")
    ax.set_ylabel("loss − baseline (nats per token)")
    label_ends(ax, ends)
    return ax


def _apart(sizes: Sequence[float]) -> list[float]:
    """The sizes, without those that stand within a tenth of the one before."""
    kept: list[float] = []
    for size in sizes:
        if not kept or size > 1.1 * kept[-1]:
            kept.append(size)
    return kept


def says(ax: Axes, why: str) -> Axes:
    """Axes that hold a sentence: why there is no figure."""
    ax.set_axis_off()
    ax.text(0.5, 0.5, why, transform=ax.transAxes, ha="center", va="center", color=SOFT, wrap=True)
    return ax
