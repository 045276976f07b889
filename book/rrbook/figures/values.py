"""Figures of value residuals: a quantity by block, a sweep of λ, what each block's cache holds."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from rr.errors import RRError
from rr.options import recorded

from .data import keep
from .style import (
    BLUE,
    GREEN,
    HALO,
    INK,
    ORANGE,
    PURPLE,
    QUIET,
    SOFT,
    VERMILLION,
    label_ends,
    note,
    put_words,
    readable,
    style_of,
)

# (colour, marker) of each value rule; others are as `style_of` has them
VALUES = {
    "own": (INK, "o"),
    "identity": (PURPLE, "^"),  # on a dark page sky is near the ink of own values
    "constant": (BLUE, "D"),
    "λ": (BLUE, "D"),  # λ = 2
    "sparse": (BLUE, "X"),  # the constant rule in some blocks
    "learnable": (ORANGE, "s"),
    "learnable-plus": (VERMILLION, "v"),
    "svformer": (GREEN, "P"),
}


def value_style(label: str) -> tuple[str, str]:
    """Colour and marker of a value rule; what follows ":" or a space is left out."""
    name = recorded(label.partition(":")[0].partition(" ")[0])
    shown = style_of(name)
    return VALUES.get(name, (shown["color"], shown["marker"]))


def by_block(
    ax: Axes,
    series: Mapping[str, Sequence],
    ylabel: str,
    null: tuple[float, str] | None = None,
    zero: bool = False,
) -> Axes:
    """A quantity against the block: {rule: values by block}, or a list of such lists, one per seed.

    Several seeds are drawn as their mean with a band from the lowest to the highest. A block
    without the quantity (None) leaves a gap; a rule with one point is named beside it. null: a
    level to compare with, and its name. zero: the axis starts at 0.
    """
    ends, highest = [], 0.0
    for label, values in series.items():
        rows = np.atleast_2d(np.array(values, dtype=float))  # None becomes NaN
        if rows.size == 0 or np.isinf(rows).any() or np.isnan(rows).all():
            raise RRError(f"{label} has no finite values by block")
        blocks, mean = np.arange(1, rows.shape[1] + 1), rows.mean(0)
        colour, marker = value_style(label)
        ax.plot(blocks, mean, color=colour, marker=marker, label=label)
        keep(ax, blocks, {label: mean})
        if len(rows) > 1:
            keep(ax, blocks, {f"{label}, range": zip(rows.min(0), rows.max(0), strict=True)})
            ax.fill_between(blocks, rows.min(0), rows.max(0), color=colour, alpha=0.15, lw=0)
        first, last = np.flatnonzero(np.isfinite(mean))[[0, -1]]
        if first == last:
            look = {"color": readable(colour), "va": "center", "path_effects": HALO}
            note(ax, label, (blocks[last], mean[last]), (8, 0), **look)  # on a phone as well
        else:
            ends.append((blocks[last], mean[last], label, colour))
        highest = max(highest, np.nanmax(rows))
    if null is not None:
        level, words = null
        span = blocks[[0, -1]]
        keep(ax, blocks, {words: [level] * len(blocks)})
        ax.plot(span, [level, level], color=SOFT, lw=1.2, ls=(0, (1, 1)), label=words)
        ends.append((span[1], level, words, SOFT))
    ax.set_xticks(blocks if len(blocks) <= 12 else blocks[::2])
    ax.set_xlabel("block")
    ax.set_ylabel(ylabel)
    if zero:
        ax.set_ylim(0, 1.1 * highest)
    label_ends(ax, ends)
    return ax


def cache_bars(ax: Axes, held: Sequence[tuple[float, float]]) -> Axes:
    """What each block's cache holds, bytes per token: [(keys, values), …], stacked from below."""
    blocks = np.arange(1, len(held) + 1)
    keys, values = np.array(held, dtype=float).T
    keep(ax, blocks, {"keys": keys, "values": values})
    ax.bar(blocks, keys, color=QUIET, label="keys")
    ax.bar(blocks, values, bottom=keys, color=BLUE, label="values")
    ax.set_xticks(blocks if len(blocks) <= 12 else blocks[::2])
    ax.set_xlabel("block")
    ax.set_ylabel("bytes per token")
    ax.grid(axis="x", visible=False)
    top = float((keys + values).max())
    for height, words in ((keys[0] / 2, "keys"), (keys[0] + values[0] / 2, "values")):
        put_words(ax, 1, height, words, fontsize=9.5, rotation=90, path_effects=HALO)
    ax.set_ylim(0, 1.08 * top)
    return ax
