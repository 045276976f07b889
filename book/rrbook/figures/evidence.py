"""Figures of evidence: shared noise of seeds, one test against another, a gap against size."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from rr.errors import RRError

from .data import keep, keep_row
from .style import (
    CARD,
    GRID,
    HALO,
    SOFT,
    each_run,
    finite,
    label_ends,
    name_rows,
    note,
    readable,
    style_of,
)


def seed_deviations(ax: Axes, arms: Mapping[str, Mapping[int, float]]) -> Axes:
    """Each arm's loss less its own mean over seeds: {arm: {seed: loss}} (nats per token).

    Arms whose lines run together share what their seeds do to them. Raises RRError for an arm with
    fewer than two seeds.
    """
    for arm, losses in arms.items():
        seeds, values = sorted(losses), finite([losses[s] for s in sorted(losses)], arm)
        if len(seeds) < 2:
            raise RRError(f"{arm} has {len(seeds)} seeds: a deviation needs at least two")
        ax.plot(seeds, values - values.mean(), label=arm, clip_on=False, **style_of(arm))
        ax.set_xticks(seeds)
        keep(ax, seeds, {arm: values - values.mean()})
    ax.axhline(0, color=SOFT, lw=0.8, zorder=0)
    ax.margins(x=0.15)
    ax.set_xlabel("seed")
    return ax


def two_tests(
    ax: Axes,
    rows: Sequence[tuple[str, float, float]],
    names: tuple[str, str],
    levels: Mapping[str, float],
) -> Axes:
    """The p-values that two tests give of the same comparisons: [(comparison, first, second), …].

    First hollow, second filled, on a logarithmic axis that falls to the right. levels: {words: α},
    drawn as lines. Raises RRError for a p that is not in (0, 1].
    """
    if not rows:
        raise RRError("no comparison to draw")
    colour = style_of("review")["color"]
    for place, (label, *both) in enumerate(rows):
        if not all(0 < p <= 1 for p in both):
            raise RRError(f"{label}: p is {both[0]} and {both[1]}, and not in (0, 1]")
        ax.plot(both, [place, place], color=colour, lw=1.2, zorder=1)
    comparisons, *tested = zip(*rows, strict=True)
    keep(ax, comparisons, dict(zip(names, tested, strict=True)), down=True)
    for name, values, fill, marker in zip(names, tested, (CARD, colour), "oD", strict=True):
        shown = {"marker": marker, "ms": 7, "mfc": fill, "mec": colour, "mew": 1.5}
        ax.plot(values, range(len(rows)), ls="none", label=name, **shown)
    for words, level in levels.items():
        ax.axvline(level, color=SOFT, lw=1.2, ls="--", zorder=0)
        at = ("data", "axes fraction")
        note(ax, words, (level, 1), (3, 3), xycoords=at, color=SOFT, fontsize=9.5)
    ax.set_xscale("log")
    ax.set_xlim(1.3, min(min(row[1:]) for row in rows) / 1.6)
    ax.xaxis.set_minor_locator(NullLocator())
    name_rows(ax, [row[0] for row in rows], 0.6, 0.6)
    ax.set_xlabel("p, two-sided")
    ax.legend(loc="upper right")
    return ax


def gap_against_size(ax: Axes, points: Sequence[Mapping], colour_of: str, line: Any = None) -> Axes:
    """A gap with two intervals at each size, and the line fitted through them.

    points: `name`, `size` (parameters), `gap` (nats per token), `own` (lo, hi from its own seeds,
    thin) and `pooled` (lo, hi with the spread of all sizes, thick). line: a fit on log10 size with
    `at(x) -> (value, lo, hi)`, drawn with its band. colour_of: the arm whose style is used.
    """
    if not points:
        raise RRError("no size to draw")
    shown = style_of(colour_of)
    colour, sizes = shown["color"], [point["size"] for point in points]
    if line is not None:
        x = np.linspace(math.log10(min(sizes)) - 0.1, math.log10(max(sizes)) + 0.1, 60)
        value, low, high = np.array([line.at(at) for at in x]).T
        ax.fill_between(10**x, low, high, color=colour, alpha=0.18, lw=0)
        ax.plot(10**x, value, color=colour, lw=1.4, ls="--")
    for point in points:
        cells = {"": point["gap"], "own interval": point["own"], "pooled": point["pooled"]}
        keep_row(ax, point["name"], cells)
        if line is not None:
            value, *band = line.at(math.log10(point["size"]))
            keep_row(ax, point["name"], {"line": value, "band": tuple(band)})
        ax.plot([point["size"]] * 2, point["own"], color=colour, lw=1)
        ax.plot([point["size"]] * 2, point["pooled"], color=colour, lw=3.4)
        ax.plot(point["size"], point["gap"], marker=shown["marker"], color=colour, ms=8, mec=CARD)
    ax.axhline(0, color=SOFT, lw=1.2)
    _sizes(ax, {point["name"]: point["size"] for point in points})
    return ax


def _sizes(ax: Axes, sizes: Mapping[str, float]) -> None:
    """A logarithmic axis of model sizes, by their names."""
    ax.set_xscale("log")
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticks(list(sizes.values()), list(sizes))
    ax.grid(axis="x", visible=False)
    ax.set_xlabel("model size (parameters)")


def values_by_size(
    ax: Axes, arms: Mapping[str, Mapping[str, Sequence[float]]], sizes: Mapping[str, float]
) -> Axes:
    """Every run as a dot, and a line through the means: {arm: {name of size: values}}.

    sizes: {name: parameters}. Arms stand a little beside one another.
    """
    ends = []
    for place, (arm, intervals) in enumerate(arms.items()):
        shown, beside = style_of(arm), 1.06 ** (place - (len(arms) - 1) / 2)
        means = []
        for name, values in intervals.items():
            y = finite(values, f"{arm} at {name}")
            x = sizes[name] * beside
            means.append((x, y.mean()))
            keep_row(ax, name, {f"{arm}, each run": y.tolist(), arm: y.mean()})
            look = {"color": shown["color"], "marker": shown["marker"]}
            each_run(ax, x, y, ms=4, alpha=0.55, **look)
        ax.plot(*zip(*means, strict=True), color=shown["color"], ls=shown["linestyle"], label=arm)
        ends.append((*means[-1], arm, shown["color"]))
    _sizes(ax, sizes)
    right = max(x for x, *_ in ends)
    label_ends(ax, [(right, *end[1:]) for end in ends])
    return ax


def simulated_tests(
    ax: Axes, first: Sequence[float], second: Sequence[float], level: float, names: tuple[str, str]
) -> Axes:
    """A dot for each simulated study: its p by one test against its p by another.

    Lines at `level` cut the plane in four; the dotted line is where both agree. Values below a
    millionth are drawn there.
    """
    x, y = (
        np.maximum(finite(p, name), 1e-6) for p, name in zip((first, second), names, strict=True)
    )
    if x.shape != y.shape:
        raise RRError(f"{len(x)} p-values against {len(y)}: give one of each per study")
    ax.plot([1e-6, 1], [1e-6, 1], color=GRID, lw=1.4, ls=":", zorder=0)
    for draw in (ax.axvline, ax.axhline):
        draw(level, color=SOFT, lw=1.2, ls="--", zorder=0)
    colour = style_of("review")["color"]
    ax.plot(x, y, "o", ms=4, color=colour, alpha=0.45, mec="none")
    keep(ax, x, {"": y})
    for left, low in ((True, True), (True, False), (False, True), (False, False)):
        inside = ((x <= level) == left) & ((y <= level) == low)
        ax.annotate(
            f"{100 * inside.mean():.0f} %",
            (0.04 if left else 0.985, 0.04 if low else 0.985),
            xycoords="axes fraction",
            ha="left" if left else "right",
            va="bottom" if low else "top",
            color=readable(SOFT),
            path_effects=HALO,
        )
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(min(1e-3, x.min() / 1.5), 1.3)
    ax.set_ylim(min(1e-3, y.min() / 1.5), 1.3)
    ax.set_xlabel(f"p, {names[0]}")
    ax.set_ylabel(f"p, {names[1]}")
    return ax
