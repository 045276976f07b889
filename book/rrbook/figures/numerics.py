"""Figures of numerical noise: how far sources move a loss, and how fast two trainings part."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from rr.errors import RRError

from .data import keep, keep_row
from .style import (
    BLUE,
    CARD,
    GREEN,
    HALO,
    INK,
    ORANGE,
    SOFT,
    VERMILLION,
    label_ends,
    name_rows,
    put_words,
    readable,
)

LINES = ((BLUE, "-"), (VERMILLION, "--"), (GREEN, "-."), (INK, ":"), (ORANGE, "-"))


def spread_by_source(
    ax: Axes,
    rows: Sequence[Mapping],
    effects: Mapping[str, tuple[float, float, float]],
    zero: float = 1e-8,
) -> Axes:
    """What each source moves, on a logarithmic scale: one row per source, from the top.

    rows: `source` (its words) and `marks`, [(label, sd, low, high), …] in nats per token, low and
    high the sd's interval; an sd of 0 stands at `zero` with an arrow. effects: words -> (size,
    low, high) of what is studied, as lines with bands. RRError where there is nothing to draw.
    """
    if not rows:
        raise RRError("no source to draw")
    looks = {}
    for words, (size, low, high) in effects.items():
        colour = (INK, ORANGE)[len(looks) % 2]
        looks[words] = colour
        if low > 0:  # an interval that holds 0 has no end on this scale
            ax.axvspan(low, high, color=colour, alpha=0.12, lw=0)
        ax.axvline(size, color=colour, lw=1.6, ls="--" if colour == ORANGE else "-")
    kinds = ((BLUE, "D", BLUE), (VERMILLION, "o", CARD), (SOFT, "s", CARD))
    drawn: dict[str, list[tuple[float, float]]] = {}
    for place, row in enumerate(rows):
        for i, (label, sd, low, high) in enumerate(row["marks"]):
            y = place + 0.22 * (i - (len(row["marks"]) - 1) / 2)
            marks = drawn.setdefault(label, [])
            colour = kinds[[*drawn].index(label)][0]
            spread = {label: sd, f"{label}, interval": (low, high) if sd else None}
            keep_row(ax, row["source"], spread, down=True)
            if sd == 0:
                arrow = {"arrowstyle": "-|>", "color": colour}
                again = any(one[1] == 0 for one in row["marks"][:i])  # one number for all of them
                words = "" if again else "0"
                ax.annotate(words, (zero, y), (18, 0), textcoords="offset points", va="center",
                            fontsize=9.5, color=readable(colour), arrowprops=arrow)  # fmt: skip
                ax.update_datalim([(zero, y)])
            else:
                ax.plot([low, high], [y, y], color=colour, lw=1.6)
                marks.append((sd, y))
    for (label, marks), (colour, marker, fill) in zip(drawn.items(), kinds, strict=False):
        shown = {"marker": marker, "color": colour, "mfc": fill, "ms": 6.5, "mew": 1.6}
        ax.plot(*np.reshape(marks, (-1, 2)).T, ls="none", label=label, **shown)
    ax.set_xscale("log")
    name_rows(ax, [row["source"] for row in rows], 0.7, 0.6)
    ax.set_xlabel("standard deviation (nats per token)")
    for words, colour in looks.items():
        ax.plot([], [], color=colour, lw=1.6, ls="--" if colour == ORANGE else "-", label=words)
    ax.legend(loc="lower left", bbox_to_anchor=(-0.32, 1), ncols=2)
    return ax


def losses_apart(ax: Axes, groups: Mapping[str, Sequence[Sequence[float]]]) -> Axes:
    """|loss − loss of the plain run| by step on a logarithmic scale, {words: its runs}.

    Thin lines are runs, the thick one their mean; a step at which a mean is 0 is left out of its
    line, and one between two such steps is a dot. RRError for a group without runs.
    """
    ends = []
    for (words, runs), (colour, line) in zip(groups.items(), LINES, strict=False):
        if not len(runs):
            raise RRError(f"{words} has no runs")
        gaps = np.asarray(runs, dtype=float)
        steps = np.arange(1, gaps.shape[1] + 1)
        shown = np.where(gaps > 0, gaps, np.nan)
        if len(gaps) > 1:
            ax.plot(steps, shown.T, color=colour, lw=0.6, alpha=0.45)
            keep(ax, steps, {f"{words}, each run": shown.T.tolist()})
        mean = gaps.mean(0)
        mean = np.where(mean > 0, mean, np.nan)
        keep(ax, steps, {words: mean})
        finite = np.isfinite(np.concatenate([[np.nan], mean, [np.nan]]))
        alone = np.flatnonzero(finite[1:-1] & ~finite[:-2] & ~finite[2:]).tolist()  # joined to none
        dots = {"marker": ".", "ms": 3.5, "markevery": alone} if alone else {}
        ax.plot(steps, mean, color=colour, ls=line, label=words, **dots)
        if np.isfinite(mean).any():
            last = np.flatnonzero(np.isfinite(mean))[-1]
            ends.append((steps[last], mean[last], words, colour))
    ax.set_yscale("log")
    ax.set_xlabel("training step")
    ax.set_ylabel("losses apart (nats)")
    if len(groups) > 1:
        label_ends(ax, ends)
    elif not ends:
        look = {"va": "baseline", "fontsize": 10.5, "color": readable(SOFT), "path_effects": HALO}
        put_words(ax, 0.5, 0.5, "the same bits at every step", transform=ax.transAxes, **look)
    return ax
