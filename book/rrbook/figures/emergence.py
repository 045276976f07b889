"""Figures of size against training: the plane of both, gaps along either, power by seeds."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, NullLocator

from rr.errors import RRError

from .data import keep
from .style import (
    BLUE,
    CARD,
    GREEN,
    GRID,
    HALO,
    ORANGE,
    PURPLE,
    SOFT,
    VERMILLION,
    finite,
    put_words,
    readable,
)

LOOKS = ((VERMILLION, "o", "-"), (BLUE, "s", ""), (GREEN, "D", ""), (PURPLE, "^", ""))
LINES = ((BLUE, "D", "-"), (VERMILLION, "o", "--"), (GREEN, "s", "-."), (ORANGE, "^", ":"))


def size_and_tokens(
    ax: Axes, groups: Mapping[str, Sequence[tuple[float, float]]], ratios: Sequence[float] = ()
) -> Axes:
    """Sets of runs in the plane of size and tokens, both logarithmic: {words: [(size, tokens), …]}.

    The first group is joined by a line. ratios: tokens per parameter that are drawn as diagonals.
    RRError for an empty group.
    """
    every = [point for points in groups.values() for point in points]
    if not every or not all(len(points) for points in groups.values()):
        raise RRError("a group without runs: nothing to draw")
    x, y = np.array(every, dtype=float).T
    x = np.array([x.min() / 1.6, x.max() * 1.6])
    low, high = y.min() / 2, y.max() * 2
    for ratio in ratios:
        ax.plot(x, ratio * x, color=GRID, lw=1.4, ls=":", zorder=0)
        at = min(x[1], 0.9 * high / ratio)
        if at > x[0] and ratio * at > low:
            look = {"ha": "right", "va": "bottom", "color": SOFT, "path_effects": HALO}
            put_words(ax, at, ratio * at, f"{ratio:g} ", **look)
    for (words, points), (colour, marker, line) in zip(groups.items(), LOOKS, strict=False):
        ax.plot(
            *zip(*points, strict=True),
            color=colour,
            marker=marker,
            ls=line or "none",
            ms=8,
            mec=CARD,
            label=words,
        )
        keep(ax, [size for size, _ in points], {words: [tokens for _, tokens in points]})
    ax.set(xscale="log", yscale="log", xlim=x, ylim=(low, high))
    for axis, words in ((ax.xaxis, "parameters"), (ax.yaxis, "training tokens")):
        axis.set_major_formatter(EngFormatter(sep=" "))
        axis.set_minor_locator(NullLocator())
        axis.set_label_text(words)
    ax.legend(loc="upper left", bbox_to_anchor=(0, -0.14), ncols=len(groups))
    return ax


def gaps_along(
    ax: Axes,
    series: Mapping[str, Sequence[tuple]],
    words: str,
    legend: bool = True,
    looks: Mapping[str, Mapping] | None = None,
) -> Axes:
    """Gaps against a logarithmic quantity: {label: [(x, gap, lo, hi), …]}, lo and hi may be None.

    Series stand a little beside one another, so that intervals can be distinguished. looks: the
    colour, marker and line style of a label, as `style_of` gives them; the others take theirs by
    their place. RRError where there is nothing to draw.
    """
    if not series or not all(len(points) for points in series.values()):
        raise RRError("a series without points: nothing to draw")
    bars = any(point[2] is not None for points in series.values() for point in points)
    for place, (label, points) in enumerate(series.items()):
        look = dict(zip(("color", "marker", "linestyle"), LINES[place % len(LINES)], strict=True))
        look |= (looks or {}).get(label, {})
        beside = 1.05 ** (place - (len(series) - 1) / 2) if bars else 1
        x = [point[0] * beside for point in points]
        for at, (_, _, low, high) in zip(x, points, strict=True):
            if low is not None:
                ax.plot([at, at], [low, high], color=look["color"], lw=1.8)
        y = finite([point[1] for point in points], label)
        spans = [None if low is None else (low, high) for *_, low, high in points]
        keep(ax, [point[0] for point in points], {label: y, f"{label}, interval": spans})
        ax.plot(x, y, mec=CARD, ms=7, label=label, **look)
    ax.axhline(0, color=SOFT, lw=1.2, zorder=0)
    ax.set_xscale("log")
    ax.xaxis.set_minor_locator(NullLocator())
    ticks: list[float] = []
    for x in sorted({point[0] for points in series.values() for point in points}):
        if not ticks or x > 1.6 * ticks[-1]:
            ticks.append(x)
    short, prefixed = [float(f"{x:.1e}") for x in ticks], EngFormatter(sep=" ")
    ax.set_xticks(ticks, [prefixed(x) if max(ticks) >= 1000 else f"{x:g}" for x in short])
    ax.set_xlabel(words)
    if legend:
        ax.legend()
    return ax


def power_curve(ax: Axes, seeds: Sequence[int], chance: Sequence[float], chosen: int) -> Axes:
    """Probability of seeing an effect against the number of seeds, one of them marked."""
    y = finite(chance, "power")
    ax.plot(list(seeds), y, color=BLUE)
    keep(ax, seeds, {"": y})
    at = list(seeds).index(chosen)
    ax.plot(chosen, y[at], "o", color=VERMILLION, ms=9, mec=CARD)
    ax.axhline(0.8, color=SOFT, lw=1.2, ls="--")
    ax.text(list(seeds)[-1], 0.8, "four in five", ha="right", va="bottom", color=readable(SOFT))
    ax.set_ylim(0, 1.02)
    ax.set_xlabel("seeds")
    ax.set_ylabel("probability")
    return ax
