"""Pictures of chapters 0 and 2: what attention reads, paths through two layers, a gate's wiring."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import FancyArrowPatch, Rectangle

from .data import keep
from .style import BLUE, CARD, GREEN, INK, ORANGE, QUIET, SOFT, readable


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


def gate_wiring(ax: Axes, sublayer: str, h: float, u: float, r: float) -> None:
    """How one number of the stream passes a gated sublayer: h, u, r and h + r·u in their places."""

    def arrow(*ends: tuple[float, float], colour: object = SOFT) -> None:
        ax.add_patch(
            FancyArrowPatch(
                *ends,
                arrowstyle="-|>",
                mutation_scale=12,
                lw=1.8,
                color=colour,
                shrinkA=0,
                shrinkB=0,
            )  # fmt: skip
        )

    def box(x: float, y: float, wide: float, words: str) -> None:
        ax.add_patch(Rectangle((x - wide / 2, y - 0.3), wide, 0.6, facecolor="none", edgecolor=INK))
        ax.text(x, y, words, ha="center", va="center")

    def number(x: float, y: float, words: str, colour: Any = INK, **where: Any) -> None:
        ax.text(x, y, words.replace("-", "−"), color=colour, **where)

    blue, green, amber = (readable(colour) for colour in (BLUE, GREEN, ORANGE))
    arrow((0, 0), (5.6, 0), colour=blue)
    arrow((6, 0), (8.2, 0), colour=blue)
    arrow((0.7, 0), (0.7, -1.7))
    arrow((2.2, -2), (5.6, -2), colour=green)
    arrow((3.3, 0), (3.3, -0.7))
    arrow((3.3, -2), (3.3, -1.3))
    arrow((3.95, -1), (5.65, -1.85), colour=amber)
    arrow((5.8, -1.8), (5.8, -0.2), colour=green)
    box(1.1, -2, 2.2, sublayer)
    box(3.3, -1, 1.3, "gate")
    ring = {"boxstyle": "circle,pad=0.15", "facecolor": CARD, "edgecolor": INK}
    for y, sign in ((0, "+"), (-2, "×")):
        ax.text(5.8, y, sign, ha="center", va="center", fontsize=14, bbox=ring)
    number(0, 0.15, f"h = {h:.2f}", blue)
    number(2.3, -2.4, f"u = {u:.2f}", green)
    number(4.05, -0.85, f"r = {r:.2f}", amber)
    number(5.95, -1.2, f"r·u = {r * u:.2f}", green)
    number(8.2, 0.3, f"h + r·u = {h + r * u:.2f}", blue, ha="right")
    ax.set(xlim=(-0.1, 8.3), ylim=(-2.6, 0.7))
    ax.axis("off")
