"""Figures of depth attention: where a sublayer looks, and what the size of a block costs."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap

from rr.errors import RRError

from .data import keep, keep_row
from .style import (
    CARD,
    EMPTY,
    GRID,
    HALO,
    INK,
    ON_DARK,
    ON_LIGHT,
    SOFT,
    VERMILLION,
    each_run,
    finite,
    note,
    put_words,
    readable,
    style_of,
)

STAYS = "#0072b3"  # BLUE but for one step: BLUE itself takes the colour of the page (svg.py)
LOOKED = LinearSegmentedColormap.from_list("looked", [ON_DARK, "#9cc6e0", STAYS, "#003a5c"])
SIGNED = LinearSegmentedColormap.from_list("signed", [VERMILLION, ON_DARK, STAYS])


def depth_map(
    ax: Axes,
    values: Sequence[Sequence[float]],
    readers: Sequence[str],
    sources: Sequence[str],
    signed: bool = False,
    digits: int | None = None,
) -> Axes:
    """A weight for every reader (a row, the first at the bottom) and source (a column).

    values: (readers, sources); NaN where a reader does not see a source: the cell stays empty.
    signed: colours for weights of both signs, white at 0. digits: print the weights with so many.
    """
    grid = np.asarray(values, dtype=float)
    if grid.shape != (len(readers), len(sources)) or not np.isfinite(grid).any():
        raise RRError(
            f"weights of shape {grid.shape} for {len(readers)} readers and {len(sources)} sources"
        )
    top = np.nanmax(np.abs(grid))
    if not signed and np.nanmin(grid) < 0:
        raise RRError("weights must be ≥ 0, and one is negative: give signed=True")
    low, colours = (-top, SIGNED) if signed else (0, LOOKED)
    ax.set_facecolor(EMPTY)  # what is not seen is not a weight of 0
    drawn = ax.pcolormesh(grid, cmap=colours, vmin=low, vmax=top, edgecolors=CARD, lw=0.6)
    keep(ax, readers, dict(zip(sources, grid.T, strict=True)), down=True)
    if digits is not None:
        for (row, column), value in np.ndenumerate(grid):
            if np.isfinite(value):
                dark = np.dot(colours((value - low) / (top - low))[:3], [0.3, 0.6, 0.1]) < 0.5
                words = f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")
                colour = ON_DARK if dark else ON_LIGHT
                put_words(ax, column + 0.5, row + 0.5, words, color=colour)
    else:
        bar = ax.figure.colorbar(drawn, ax=ax, shrink=0.8, pad=0.02)
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelcolor=INK, color=SOFT)
    for axis, names in ((ax.xaxis, sources), (ax.yaxis, readers)):
        every = max(1, -(-len(names) // 18))
        places = list(range(0, len(names), every))
        axis.set_ticks([place + 0.5 for place in places], [names[place] for place in places])
        axis.set_tick_params(length=0)
    ax.grid(visible=False)
    for spine in ax.spines.values():
        spine.set_visible(False)
    ax.set_xlabel("source")
    ax.set_ylabel("read by")
    return ax


def block_sizes(ax: Axes, points: Sequence[Mapping], rivals: Mapping[str, Mapping]) -> Axes:
    """Paired difference of loss against the sublayers per block; zero is the baseline.

    points: mappings with `size`, `difference` (nats per token) and `each`, the pairs behind it,
    drawn as dots. rivals: name -> mapping with `difference`, a line across all sizes.
    """
    sizes = finite([point["size"] for point in points], "sizes")
    order = np.argsort(sizes)
    shown = style_of("attnres")
    ax.axhline(0, color=SOFT, lw=1.2)
    ax.set_xscale("log", base=2)
    for name, rival in rivals.items():
        other = style_of(name)
        ax.axhline(rival["difference"], color=other["color"], ls=other["linestyle"], lw=1.6)
        look = {"color": readable(other["color"]), "path_effects": HALO, "annotation_clip": False}
        at = ("axes fraction", "data")
        note(ax, name, (1, rival["difference"]), (6, 0), xycoords=at, va="center", **look)
    middle = [points[i]["difference"] for i in order]
    ax.plot(
        sizes[order], middle, color=shown["color"], marker=shown["marker"], ms=8, label="attnres"
    )
    keep(ax, sizes[order], {"attnres": middle})
    for i in order:
        each = list(points[i]["each"])
        keep_row(ax, sizes[i], {"attnres, each pair": each})
        each_run(ax, sizes[i], each, marker="o", ms=5, alpha=0.6, color=shown["color"])
    ax.set_xticks(sizes[order], [f"{size:g}" for size in sizes[order]])
    ax.minorticks_off()
    ax.grid(axis="x", color=GRID)
    ax.set_xlabel("sublayers per block")
    ax.set_ylabel("loss − standard (nats per token)")
    return ax
