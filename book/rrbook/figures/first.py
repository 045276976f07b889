"""Pictures of chapter 0: what attention reads, and the paths through two layers."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import FancyArrowPatch, Rectangle

from .data import keep
from .style import CARD, GREEN, INK, QUIET, SOFT, readable


def reads_map(ax: Axes, shares: np.ndarray, words: Sequence[str]) -> None:
    """Shares (T, T) of what each word (row) reads of each (column); masked cells stay empty."""
    n = len(words)
    later = np.triu(np.ones((n, n), dtype=bool), 1)
    shown = LinearSegmentedColormap.from_list("reads", [CARD, GREEN])
    read = np.where(later, np.nan, shares)
    ax.imshow(read, cmap=shown, vmin=0, vmax=1)
    places = [f"{place} {word}" for place, word in enumerate(words, 1)]  # a word may return
    keep(ax, places, dict(zip(places, read.T, strict=True)), down=True)
    ax.set_xticks(range(n), words, rotation=90)
    ax.set_yticks(range(n), words)
    ax.grid(False)


def paths(ax: Axes, words: Sequence[str]) -> None:
    """The four ways through two layers with an addition, one per row, each with its words."""
    for row, (label, way) in enumerate(zip(words, ((0, 0), (1, 0), (0, 1), (1, 1)), strict=True)):
        y = -row
        for k, through in enumerate(way):
            box = Rectangle((1.6 * k + 0.6, y - 0.22), 0.6, 0.44, facecolor="none",
                            edgecolor=INK if through else QUIET, lw=1.2)  # fmt: skip
            ax.add_patch(box)
            bend = "arc3,rad=0" if through else "arc3,rad=-0.35"
            arrow = FancyArrowPatch((1.6 * k + 0.1, y), (1.6 * k + 1.6, y), arrowstyle="-|>",
                                    mutation_scale=11, connectionstyle=bend, lw=2,
                                    color=readable(GREEN) if through else SOFT)  # fmt: skip
            ax.add_patch(arrow)
        ax.text(3.5, y, label, va="center")
    ax.set(xlim=(0, 5.6), ylim=(-3.5, 0.9))
    ax.axis("off")
