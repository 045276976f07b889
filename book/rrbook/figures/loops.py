"""Figures of looped networks: size against passes, cosines of increments, rates against loss."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.image import AxesImage
from matplotlib.ticker import LogLocator

from rr.errors import RRError

from .data import keep, keep_row
from .style import (
    BLUE,
    CARD,
    GREEN,
    INK,
    ON_DARK,
    ON_LIGHT,
    ORANGE,
    PURPLE,
    SKY,
    SOFT,
    VERMILLION,
    diverged,
    each_run,
    finite,
    label_ends,
    put_words,
)

# (colour, marker) of a scale of the branch, and of a number of passes: the same in every figure
SCALES = {
    "1": (VERMILLION, "v"),
    "1/√N": (ORANGE, "s"),
    "1/N": (BLUE, "D"),
    "1/√(NL)": (PURPLE, "p"),
    "1/(N√L)": (GREEN, "P"),
}
PASSES = {1: (INK, "o"), 2: (SKY, "^"), 4: (BLUE, "D"), 8: (VERMILLION, "v"), 16: (PURPLE, "X")}


def size_by_passes(
    ax: Axes, passes: Sequence[int], series: Mapping[str, Sequence[float]], tied: bool = True
) -> Axes:
    """rms of the last state against the number of passes, both logarithmic: {scale: values}.

    The names are those of `SCALES`; untied networks, whose blocks are not repeated, are hollow and
    dotted. Raises RRError for an unknown scale.
    """
    ends = []
    for scale, values in series.items():
        if scale not in SCALES:
            raise RRError(f"scale must be one of {', '.join(SCALES)}, got {scale!r}")
        colour, marker = SCALES[scale]
        y = finite(values, scale)
        fill = colour if tied else CARD
        ax.plot(
            passes,
            y,
            color=colour,
            marker=marker,
            ls="-" if tied else ":",
            markerfacecolor=fill,
            label=scale,
        )
        ends.append((passes[-1], y[-1], f"ε = {scale}", colour))
        keep(ax, passes, {f"ε = {scale}": y})
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))  # decades alone may be none
    ax.yaxis.set_major_formatter("{x:g}")
    ax.set_xticks(list(passes), [str(n) for n in passes])
    ax.minorticks_off()
    ax.set_xlabel("passes N" if tied else "blocks")
    ax.set_ylabel("rms of the last state")
    label_ends(ax, ends)
    return ax


# what is unrelated is clear: the ground shows there, in a dark page, too
COSINES = LinearSegmentedColormap.from_list(
    "cosines",
    [(0, BLUE), (0.5, to_rgba(BLUE, 0)), (0.5, to_rgba(VERMILLION, 0)), (1, VERMILLION)],
)


def cosine_matrix(ax: Axes, cosines: np.ndarray, what: str = "block") -> AxesImage:
    """Cosines of increments, pair by pair, −1 to 1: blue opposed, clear unrelated, vermilion alike.

    cosines: (n, n). Returns the image, for a colour bar. Raises RRError where it is not square.
    """
    cosines = np.asarray(cosines, dtype=float)
    if cosines.ndim != 2 or cosines.shape[0] != cosines.shape[1]:
        raise RRError(f"cosines must have the shape (n, n), got {cosines.shape}")
    image = ax.imshow(cosines, cmap=COSINES, vmin=-1, vmax=1)
    n = len(cosines)
    keep(ax, range(1, n + 1), dict(enumerate(cosines.T, 1)), down=True)
    marks = sorted({0, n // 2, n - 1}) if n > 4 else range(n)
    ax.set_xticks(list(marks), [str(i + 1) for i in marks])
    ax.set_yticks(list(marks), [str(i + 1) for i in marks])
    ax.grid(visible=False)
    ax.set_xlabel(what)
    ax.set_ylabel(what)
    return image


def size_grid(
    ax: Axes, sizes: np.ndarray, blocks: Sequence[int], passes: Sequence[int], top: float
) -> AxesImage:
    """A quantity over L × N, written into its cells; colour on a logarithmic scale from 1 to `top`.

    sizes: (len(blocks), len(passes)), the size of a stream relative to one of the cells.
    """
    sizes = np.asarray(sizes, dtype=float)
    if sizes.shape != (len(blocks), len(passes)):
        raise RRError(f"sizes are {sizes.shape} for {len(blocks)} blocks and {len(passes)} passes")
    image = ax.imshow(np.log(sizes), cmap="cividis", vmin=0, vmax=math.log(top), aspect="auto")
    keep(ax, blocks, dict(zip(passes, sizes.T, strict=True)), down=True)
    for i, j in np.ndindex(*sizes.shape):
        light = math.log(sizes[i, j]) > 0.55 * math.log(top)
        put_words(ax, j, i, f"{sizes[i, j]:.1f}", color=ON_LIGHT if light else ON_DARK)
    ax.set_xticks(range(len(passes)), [str(n) for n in passes])
    ax.set_yticks(range(len(blocks)), [str(n) for n in blocks])
    ax.grid(visible=False)
    ax.set_xlabel("passes N")
    ax.set_ylabel("unique blocks L")
    return image


def rates_by_passes(ax: Axes, points: Sequence[Mapping]) -> dict[int, float]:
    """Held-out loss against the learning rate, a line for each number of passes.

    points: mappings with `loops`, `lr`, `seed` and `value` (nats per token; None where a run
    diverged). Small dots are seeds, lines their means, the large ring the lowest mean. A rate at
    which a run diverged has no mean; a cross at the top says so. Returns {loops: best rate}.
    """
    by = defaultdict(lambda: defaultdict(list))
    for point in points:
        by[point["loops"]][point["lr"]].append(point["value"])
    best, ends = {}, []
    for loops in sorted(by):
        colour, marker = PASSES.get(loops, (SOFT, "d"))
        means = []
        for lr, values in sorted(by[loops].items()):
            each = [value if value is not None and math.isfinite(value) else "diverged"
                    for value in values]  # fmt: skip
            keep_row(ax, 1e3 * lr, {f"N = {loops}, each run": each})
            if "diverged" in each:
                diverged(ax, lr, colour)
                continue
            means.append((lr, float(np.mean(values))))
            keep_row(ax, 1e3 * lr, {f"N = {loops}": means[-1][1]})
            each_run(ax, lr, values, marker=".", ms=5, color=colour, alpha=0.5)
        if not means:
            continue
        ax.plot(*zip(*means, strict=True), color=colour, marker=marker, ms=4, label=f"N = {loops}")
        low = min(means, key=lambda pair: pair[1])
        ax.plot(*low, "o", ms=12, mfc="none", mec=colour, mew=1.8)
        best[loops] = low[0]
        ends.append((*means[-1], f"N = {loops}", colour))
    rates = sorted({point["lr"] for point in points})
    ax.set_xscale("log", base=2)
    ax.set_xticks(rates, [f"{1e3 * lr:g}" for lr in rates])
    ax.minorticks_off()
    ax.set_xlabel("learning rate (10⁻³)")
    label_ends(ax, ends)
    return best
