"""Figures of the audit: shares of a model by size, what its parameters are spent on."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from rr.errors import RRError

from .data import keep, keep_row
from .style import BLUE, CARD, GRID, INK, ORANGE, SKY, SOFT, VERMILLION, finite, note, readable

PARTS = {"gates": VERMILLION, "blocks": BLUE, "embeddings": SKY}


def shares_by_size(
    ax: Axes,
    sizes: Sequence[str],
    shares: Mapping[str, Sequence[float]],
    claimed: float,
    words: str,
) -> Axes:
    """Shares (of 1) against size, a marker shape each, and a claimed one as a dashed line.

    shares: {what it is a share of: one value per size}. words: what the dashed line says. Raises
    RRError where a list has another length than `sizes`.
    """
    looks = zip(((BLUE, "o"), (ORANGE, "s"), (VERMILLION, "D")), shares.items(), strict=False)
    for (colour, marker), (name, values) in looks:
        y = finite(values, name)
        if len(y) != len(sizes):
            raise RRError(
                f"{name}: {len(y)} shares for {len(sizes)} sizes; give one share per size"
            )
        ax.plot(range(len(y)), y, marker=marker, color=colour, ms=7, mec=CARD, label=name)
    keep(ax, sizes, shares)
    ax.axhline(claimed, color=SOFT, lw=1.6, ls="--")
    note(ax, words, (len(sizes) - 1, claimed), (0, -4), ha="right", va="top", color=readable(SOFT))
    ax.set_xticks(range(len(sizes)), list(sizes))
    ax.set_ylim(0, None)
    ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    ax.grid(axis="x", visible=False)
    ax.set_xlabel("size")
    return ax


def parameter_bar(ax: Axes, parts: Mapping[str, int]) -> Axes:
    """One bar of a model's parameters, in millions: {"gates", "blocks", "embeddings": count}.

    Raises RRError for another part, or a negative count.
    """
    start = 0.0
    for name, count in parts.items():
        if name not in PARTS or count < 0:
            raise RRError(f"{name} {count} is no part's size; give counts of {', '.join(PARTS)}")
        ax.barh(0, count / 1e6, left=start, color=PARTS[name], ec=CARD, height=0.6, label=name)
        start += count / 1e6
        keep_row(ax, name, {"": count / 1e6}, down=True)
    ax.set_yticks([])
    ax.set_xlim(0, start)
    ax.grid(axis="y", visible=False)
    ax.spines["left"].set_visible(False)
    ax.set_xlabel("parameters (millions)", color=INK)
    ax.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    ax.tick_params(axis="x", color=GRID)
    return ax
