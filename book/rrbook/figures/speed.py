"""Figures of a training step's cost: its parts, what each change of path takes off, its memory."""

import itertools
from collections.abc import Mapping, Sequence
from statistics import median

from matplotlib.axes import Axes

from rr.errors import RRError

from .data import keep, keep_row
from .style import (
    BLUE,
    CARD,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    QUIET,
    SKY,
    SOFT,
    VERMILLION,
    letters_on,
    name_rows,
    put_words,
    readable,
)

COLOURS = {
    "attention": BLUE,
    "mlp": SKY,
    "rule": VERMILLION,
    "embedding": PURPLE,
    "head": ORANGE,
    "optimizer": GREEN,
    "weights": INK,
    "gradients": SOFT,
    "moments": GREEN,
    "layers": SKY,
    "other": QUIET,
}
WORDS = {
    "mlp": "MLP",
    "rule": "norms, gate, write",
    "optimizer": "optimiser",
    "layers": "kept by blocks",
    "other": "the rest",
}


def stacked_parts(
    ax: Axes, bars: Mapping[str, Mapping[str, float]], form: str = "{:.0%}", least: float = 0.07
) -> Axes:
    """One horizontal bar a name, from the top, its parts in the order given.

    bars: {name: {part: value}}. form writes a part's value into it where it has at least the share
    `least` of the longest bar. RRError where nothing is to be drawn.
    """
    if not bars:
        raise RRError("no bar to draw")
    longest = max(sum(parts.values()) for parts in bars.values())
    named = []
    for place, (name, parts) in enumerate(bars.items()):
        keep_row(ax, name, {WORDS.get(part, part): parts[part] for part in parts}, down=True)
        left = 0.0
        for part, value in parts.items():
            colour = COLOURS.get(part, QUIET)
            words = WORDS.get(part, part)
            ax.barh(
                place,
                value,
                left=left,
                height=0.62,
                color=colour,
                edgecolor=CARD,
                lw=1,
                label=None if part in named else words,
            )
            named += [] if part in named else [part]
            if value >= least * longest:
                middle = left + value / 2
                put_words(ax, middle, place, form.format(value), color=letters_on(colour))
            left += value
    name_rows(ax, list(bars), 0.55, 0.55)
    ax.set_xlim(0, 1.02 * longest)
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=min(4, len(named)), handlelength=1)
    return ax


def waterfall(ax: Axes, steps: Sequence[tuple[str, float]]) -> Axes:
    """From the first value to the last, one change at a time, top to bottom.

    steps: (words, value after the change); the first and the last are drawn whole, each between
    them as the piece that it took off (or added, hatched). RRError for fewer than two.
    """
    if len(steps) < 2:
        raise RRError(f"a waterfall needs at least two values, got {len(steps)}")
    values = [value for _, value in steps]
    names = [words for words, _ in steps]
    ax.barh(0, values[0], height=0.62, color=SOFT)
    ax.text(values[0], 0, f" {values[0]:.2f}", va="center", color=INK, fontsize=9.5)
    for place, (before, after) in enumerate(zip(values, values[1:], strict=False), 1):
        worse = after > before
        ax.barh(
            place,
            abs(before - after),
            left=min(before, after),
            height=0.62,
            lw=1,
            color=VERMILLION if worse else BLUE,
            edgecolor=CARD,
            hatch="///" if worse else None,
        )
        sign = "+" if worse else "−"
        words, colour = f" {sign}{abs(before - after):.2f}", VERMILLION if worse else BLUE
        look = {"ha": "left", "fontsize": 9.5, "color": readable(colour)}
        put_words(ax, max(before, after), place, words, **look)
        ax.plot([before] * 2, [place - 0.69, place + 0.31], color=SOFT, lw=0.8)
    last = len(values)
    ax.barh(last, values[-1], height=0.62, color=INK)
    ax.text(values[-1], last, f" {values[-1]:.2f}", va="center", color=INK, fontsize=9.5)
    names.append("all together")
    changes = [None, *(b - a for a, b in itertools.pairwise(values)), None]
    keep(ax, names, {"": [*values, values[-1]], "change": changes}, down=True)
    name_rows(ax, names, 0.55, 0.55)
    ax.set_xlim(0, 1.12 * max(values))
    return ax


def undone(ax: Axes, rows: Sequence[tuple[str, float, float, float]]) -> Axes:
    """How many times the time a step takes with one change undone: (words, median, least, most)."""
    if not rows:
        raise RRError("no change to draw")
    right = 1.2 * max(row[3] for row in rows)  # room for a column of the medians
    for place, (words, middle, least, most) in enumerate(rows):
        keep_row(ax, words, {"": middle, "least to most": (least, most)}, down=True)
        ax.plot([least, most], [place] * 2, color=BLUE, lw=1.8)
        ax.plot(middle, place, "D", color=BLUE, ms=6.5)
        look = {"ha": "right", "fontsize": 9.5, "color": readable(BLUE)}
        put_words(ax, 0.99 * right, place, f"{middle:.2f}×", **look)
    ax.axvline(1, color=SOFT, lw=1.2, ls="--")
    name_rows(ax, [words for words, *_ in rows])
    ax.set_xlim(min(0.9, *(row[2] for row in rows)), right)
    ax.set_xlabel("time of a step with this change undone, in steps of the best path")
    return ax


SIZES = ((BLUE, "D"), (INK, "o"), (ORANGE, "s"))  # one look per size of model


def beside(ax: Axes, ratios: Mapping[str, Mapping[str, Sequence[float]]]) -> Axes:
    """How many steps of a case fit in the time of one step of the base: a dot and its range.

    ratios: size of model -> words of a case -> the ratios of the paired repeats. The cases' order
    is that of the first size; a size may lack some. RRError for no ratio, or more than three sizes.
    """
    if not ratios or not all(ratios.values()) or len(ratios) > len(SIZES):
        raise RRError(f"one to {len(SIZES)} sizes with a case each can be drawn, got {len(ratios)}")
    cases = list(dict.fromkeys(case for by_case in ratios.values() for case in by_case))
    for i, ((size, by_case), (color, marker)) in enumerate(
        zip(ratios.items(), SIZES, strict=False)
    ):
        shift = 0.22 * (i - (len(ratios) - 1) / 2)
        places = [cases.index(case) + shift for case in by_case]
        for place, values in zip(places, by_case.values(), strict=True):
            ax.plot([min(values), max(values)], [place] * 2, color=color, lw=1.6)
        middles = [median(values) for values in by_case.values()]
        ranges = [(min(values), max(values)) for values in by_case.values()]
        keep(ax, by_case, {size: middles, f"{size}, range": ranges}, down=True)
        ax.plot(middles, places, marker, color=color, ms=6, label=size)
    ax.axvline(1, color=SOFT, lw=1.2, ls="--")
    name_rows(ax, cases)
    ax.set_xlim(left=0)
    if len(ratios) > 1:
        ax.legend(loc="upper left")
    return ax
