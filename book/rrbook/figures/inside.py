"""Figures of a trained gate: its values, what they are worth, which tokens they single out."""

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
    QUIET,
    SKY,
    SOFT,
    VERMILLION,
    bars_of_shares,
    finite,
    letters_on,
    note,
    put_words,
)

# What a reader sees a sublayer by: colour and marker say the same.
KINDS = {"attn": ("attention", BLUE, "o"), "mlp": ("MLP", VERMILLION, "s")}


def _kind(row: Mapping) -> tuple[str, str, str]:
    if row["kind"] not in KINDS:
        raise RRError(f"kind must be {' or '.join(KINDS)}, got {row['kind']!r}")
    return KINDS[row["kind"]]


def kind_key(ax: Axes, rows: Sequence[Mapping]) -> None:
    """A legend of the two kinds of sublayer, above the axes."""
    for name, colour, marker in dict.fromkeys(map(_kind, rows)):
        ax.plot([], [], marker, color=colour, label=name)
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)


def gate_bands(ax: Axes, rows: Sequence[Mapping]) -> Axes:
    """Where the gates are, by sublayer: thin line 5 to 95 per cent, thick the middle half.

    rows: one per sublayer, with `kind`, `quantiles` (at 5, 25, 50, 75, 95 per cent) and `mean`, the
    mark. The dashed line is one half, where every gate starts.
    """
    ax.axhline(0.5, color=SOFT, lw=1.2, ls="--")
    for place, row in enumerate(rows, 1):
        kind, colour, marker = _kind(row)
        low, first, _, third, high = finite(row["quantiles"], "quantiles")
        ax.plot([place, place], [low, high], color=colour, lw=1.4)
        ax.plot(
            [place, place], [first, third], color=colour, lw=6, alpha=0.45, solid_capstyle="butt"
        )
        ax.plot(place, row["mean"], marker, color=colour, ms=7, mec=INK, mew=0.6)
        cells = {"kind": kind, "": row["mean"]}
        cells |= {"middle half": (first, third), "5 to 95 %": (low, high)}
        keep_row(ax, place, cells)
    ax.set(ylim=(0, 1), xlabel="sublayer", ylabel="gate r")
    ax.set_xticks(range(1, len(rows) + 1))
    ax.grid(axis="x", visible=False)
    return ax


def variance_shares(ax: Axes, rows: Sequence[Mapping], parts: Mapping[str, str]) -> Axes:
    """One bar of 100 % per sublayer, split into parts; those of 8 % or more are numbered, in %.

    rows: one per sublayer, with `kind` and the share of each part (they add up to 1). parts: key of
    a part -> its name above the bars.
    """
    tints = dict(zip(parts, (SKY, QUIET, ORANGE, GREEN), strict=False))
    names = []
    for place, row in enumerate(rows):
        left = 0.0
        for part, tint in tints.items():
            ax.barh(place, row[part], left=left, height=0.7, color=tint, edgecolor=CARD)
            if row[part] >= 0.08:
                middle, words = left + row[part] / 2, f"{100 * row[part]:.0f}"
                # no sign: its part may be 8 % of a phone
                put_words(ax, middle, place, words, fontsize=9.5, color=letters_on(tint))
            left += row[part]
        names.append(f"{_kind(row)[0]} {place + 1}")
    keep(ax, names, {name: [row[part] for row in rows] for part, name in parts.items()}, down=True)
    return bars_of_shares(ax, names, {parts[part]: tint for part, tint in tints.items()})


def cost_of(ax: Axes, costs: Mapping[str, Sequence[float]]) -> Axes:
    """What an alteration costs: a dot for each seed, their mean a bar, logarithmic.

    costs: name -> nats per token above the loss as trained, one per seed; all must be above zero.
    """
    for place, (name, values) in enumerate(reversed([*costs.items()])):
        x = finite(values, name)
        if x.min() <= 0:
            raise RRError(f"{name} costs {x.min():.4f}: a logarithmic axis needs costs above 0")
        mean = float(x.mean())
        ax.plot([mean, mean], [place - 0.14, place + 0.14], color=INK, lw=2.4)
        ax.plot(x, [place] * len(x), "o", color=BLUE, ms=6, alpha=0.6, mew=0)
        look = {"color": INK, "fontsize": 9.5, "path_effects": HALO}
        note(ax, f"{mean:.3f}", (x.max(), place), (8, 0), va="center", **look)
    for name, values in costs.items():
        keep_row(ax, name, {"": np.mean(values), "each seed": list(values)}, down=True)
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter("{x:g}")
    ax.set_yticks(range(len(costs)), list(costs)[::-1])
    ax.set_ylim(-0.6, len(costs) - 0.4)
    ax.margins(x=0.15)
    ax.grid(axis="y", visible=False)
    ax.set_xlabel("loss above that as trained (nats per token)")
    return ax


def seeds_by_sublayer(
    ax: Axes, rows: Sequence[Mapping], null: Sequence[float] | None = None
) -> Axes:
    """A quantity by sublayer: a small dot for each seed, a mark for their mean.

    rows: one per sublayer, with `kind` and `values`, one per seed. null: half the height of a grey
    band about zero for each sublayer, what chance gives.
    """
    ax.axhline(0, color=SOFT, lw=1.2)
    if null is not None:
        ax.bar(
            range(1, len(rows) + 1),
            [2 * half for half in null],
            width=0.84,
            bottom=[-half for half in null],
            color=QUIET,
            alpha=0.6,
        )
    drawn = {}  # one call for each kind, and not for each sublayer: a page holds less
    for place, row in enumerate(rows, 1):
        y = finite(row["values"], "values")
        keep_row(ax, place, {"kind": _kind(row)[0], "": y.mean(), "each seed": y.tolist()})
        if null is not None:
            keep_row(ax, place, {"chance": (-null[place - 1], null[place - 1])})
        seeds, means = drawn.setdefault(_kind(row), ([], []))
        seeds += [(place, value) for value in y.tolist()]
        means.append((place, y.mean()))
    for (_, colour, marker), (seeds, means) in drawn.items():
        ax.plot(*zip(*seeds, strict=True), "o", color=colour, ms=4, alpha=0.85, mew=0)
        ax.plot(*zip(*means, strict=True), marker, color=colour, ms=8, mec=INK, mew=0.6)
    ax.set_xlabel("sublayer")
    ax.set_xticks(range(1, len(rows) + 1))
    ax.grid(axis="x", visible=False)
    return ax


def by_fifth(ax: Axes, rows: Sequence[Mapping], names: Sequence[str]) -> Axes:
    """The mean gate of rare and common tokens: one line per sublayer, less the sublayer's own mean.

    rows: one per sublayer, with `kind`, `mean` and `by_fifth`, mean gates in the order of `names`.
    """
    ax.axhline(0, color=SOFT, lw=1.2)
    for place, row in enumerate(rows, 1):
        kind, colour, marker = _kind(row)
        y = np.asarray(finite(row["by_fifth"], "by_fifth")) - row["mean"]
        if len(y) != len(names):
            raise RRError(f"{len(y)} values for {len(names)} names")
        ax.plot(range(len(y)), y, marker=marker, color=colour, lw=1.3, ms=4.5)
        keep(ax, names, {f"{kind} {place}": y})
    ax.set_xticks(range(len(names)), names)
    ax.set(xlabel="the token in the training text", ylabel="mean r − its own mean")
    return ax
