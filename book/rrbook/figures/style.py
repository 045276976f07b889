"""What every figure shares: colours, letters, lines named at their ends (no torch).

Figures are drawn 7 inches wide, so that the smallest letters stay at 9 pt when a page shows them
700 pixels wide. A notebook stores each twice: as an SVG that takes the page's own colours
(`svg.py`), and as a PNG on a near-white card for programs that show no other. Colours are Okabe and
Ito's, which readers with any colour vision can tell apart: one hue for a family of rules, in every
chapter; marker and line style tell its rules apart. There are no titles inside, and lines are named
at their ends rather than in a legend.
"""

import importlib
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from cycler import cycler
from IPython import get_ipython
from matplotlib import colors, patheffects
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from rr.errors import RRError

from .data import keep
from .phone import END

CARD, INK, SOFT, GRID = "#fcfcfa", "#1f2429", "#59626c", "#dde1e5"
QUIET = "#c4c9ce"  # a part that is not the message
BLUE, VERMILLION, GREEN = "#0072B2", "#D55E00", "#009E73"
ORANGE, SKY, PURPLE = "#E69F00", "#56B4E9", "#CC79A7"

GROUND = "#fcfcfb"  # behind everything: CARD for the eye, and transparent on a page
EMPTY = "#eef0f1"  # a cell without a value
# letters and marks on a coloured ground, which is the same in every theme: an "ink" and a "white"
# that no page exchanges
ON_LIGHT, ON_DARK = "#1f2428", "#fcfcf9"

# the neutral colours and the blues, which a page may set (svg.py), and the hues of words
PAGE = {
    "ink": INK,
    "soft": SOFT,
    "grid": GRID,
    "card": CARD,
    "quiet": QUIET,
    "empty": EMPTY,
    "ground": GROUND,
    "blue": BLUE,
    "sky": SKY,
}
HUES = {
    "blue": BLUE,
    "vermillion": VERMILLION,
    "green": GREEN,
    "orange": ORANGE,
    "sky": SKY,
    "purple": PURPLE,
}

# the hue of a family of rules, and the mark of a member that has none of its own
FAMILIES = {
    "scale": (ORANGE, "s"),
    "gate": (BLUE, "D"),
    "carry": (VERMILLION, "v"),
    "look-back": (GREEN, "<"),
    "streams": (PURPLE, "h"),
    "values": (SOFT, "p"),
}
# (family, marker, line style) of every rule of `rr`
LOOKS = {
    "standard": ("scale", "o", "-"),
    "constant": ("scale", "s", "--"),
    "scaled": ("scale", "d", "-."),
    "rezero": ("scale", "*", ":"),
    "layerscale": ("scale", "8", "-."),
    "fixup": ("scale", "X", ":"),
    "review": ("gate", "D", "-"),
    "highway": ("gate", "^", "-."),
    "state-gate": ("gate", "p", "--"),
    "update-gate": ("gate", "H", ":"),
    "review-convex": ("carry", "v", "-"),
    "highway-carry": ("carry", "P", "--"),
    "gtrxl": ("carry", ">", "-."),
    "deepnorm": ("carry", "h", ":"),
    "orthogonal": ("carry", "d", "--"),
    "attnres": ("look-back", "X", "-"),
    "denseformer": ("look-back", "<", "-."),
    "x0-scales": ("look-back", ">", "--"),
    "unet": ("look-back", "*", ":"),
    "parallel": ("look-back", "8", ":"),
    "scales-skips": ("look-back", "P", "-."),
    "hyper-connections": ("streams", "h", "-"),
    "gated-residual": ("streams", "D", "--"),
    "lanes": ("streams", "s", "-."),
    "keel": ("carry", "*", "-."),
    "delta": ("scale", "P", "-."),
    "norm-place": ("scale", "h", "--"),
    # wirings that chapter 1 defines
    "bare": ("gate", "s", ":"),
    "plain": ("streams", "v", "--"),
    "loud": ("values", "D", "-."),
}
# the baseline of the book is black, and the gates that are not Review a lighter blue
SHADES = {"standard": INK, "highway": SKY, "state-gate": SKY, "update-gate": SKY, "bare": SKY}
_OTHERS = ((PURPLE, SKY, SOFT), ("X", "p", "h", "*", "<", ">", "d", "8"), (":", "-.", "--"))


# keeps words readable where they cross a line
HALO = [patheffects.withStroke(linewidth=3, foreground=CARD)]


def style_of(rule: str) -> dict:
    """Colour, marker and line style of a rule, as keywords for `Axes.plot`.

    The same name looks the same in every figure, on every machine. A rule with options
    ("highway-carry:bias=-3") keeps its rule's colour and marker, hollow and dotted.
    """
    name, _, options = rule.partition(":")
    if name in LOOKS:
        family, marker, line = LOOKS[name]
        colour = SHADES.get(name, FAMILIES[family][0])
    else:
        # a reader's own rule: chosen by the letters of its name
        code, parts = zlib.crc32(name.encode()), []
        for choices in _OTHERS:
            code, index = divmod(code, len(choices))
            parts.append(choices[index])
        colour, marker, line = parts
    if options:
        return {"color": colour, "marker": marker, "linestyle": ":", "markerfacecolor": CARD}
    return {"color": colour, "marker": marker, "linestyle": line}


def style() -> None:
    """Make the book's style matplotlib's default for this process."""
    plt.rcParams.update(
        {
            "figure.figsize": (7, 3.4),
            "figure.dpi": 100,
            "figure.facecolor": GROUND,
            "figure.constrained_layout.use": True,
            "savefig.facecolor": GROUND,
            "savefig.dpi": 150,
            "svg.hashsalt": "rr",
            "axes.facecolor": GROUND,
            "axes.edgecolor": SOFT,
            "axes.labelcolor": INK,
            "axes.grid": True,
            "axes.axisbelow": True,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.prop_cycle": cycler(color=[BLUE, VERMILLION, GREEN, ORANGE, SKY, PURPLE]),
            "axes.formatter.useoffset": False,
            "grid.color": GRID,
            "grid.linewidth": 0.8,
            "text.color": INK,
            "xtick.color": SOFT,
            "ytick.color": SOFT,
            "xtick.labelcolor": INK,
            "ytick.labelcolor": INK,
            "font.size": 10.5,
            "axes.labelsize": 10.5,
            "xtick.labelsize": 9.5,
            "ytick.labelsize": 9.5,
            "legend.fontsize": 9.5,
            "legend.frameon": False,
            "lines.linewidth": 1.8,
            "lines.markersize": 5,
        }
    )
    if (shell := get_ipython()) is not None:
        from .svg import svg  # it reads the palette of this file

        importlib.import_module("matplotlib_inline.backend_inline")  # it forgets what is registered
        shell.display_formatter.formatters["image/svg+xml"].for_type(Figure, svg)


def canvas(columns: int = 1, height: float = 3.4, **options: Any) -> tuple[Figure, Any]:
    """A figure in the book's style, 7 inches wide: (figure, axes), as `plt.subplots` gives them."""
    style()
    return plt.subplots(1, columns, figsize=(7, height), **options)


def readable(colour: str) -> tuple[float, float, float]:
    """The colour, darkened until letters in it have a contrast of 4.5 against the card."""

    def light(rgb: Sequence[float]) -> float:
        parts = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in rgb]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    rgb, card = colors.to_rgb(colour), light(colors.to_rgb(CARD))
    while (card + 0.05) / (light(rgb) + 0.05) < 4.5:
        red, green, blue = rgb
        rgb = 0.95 * red, 0.95 * green, 0.95 * blue
    return rgb


def label_ends(ax: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Name lines at their right ends, [(x, y, words, colour), …]; names that collide move apart.

    Call it last: where the names go depends on the axis limits.
    """
    gap = 13.0  # points between two baselines
    figure: Any = ax.figure  # a whole figure, as `canvas` makes
    figure.draw_without_rendering()
    points = 72 / ax.figure.dpi
    heights = [ax.transData.transform((x, y))[1] * points for x, y, _, _ in ends]
    # piles of names, each centred on the lines that it names; piles that touch are merged
    piles: list[list[int]] = []
    for i in sorted(range(len(ends)), key=heights.__getitem__):
        piles.append([i])
        while len(piles) > 1:
            (low, low_half), (high, high_half) = (
                (np.mean([heights[j] for j in pile]), len(pile) * gap / 2) for pile in piles[-2:]
            )
            if high - high_half >= low + low_half:
                break
            piles[-2:] = [piles[-2] + piles[-1]]
    for pile in piles:
        bottom = np.mean([heights[j] for j in pile]) - (len(pile) - 1) * gap / 2
        for rank, i in enumerate(pile):
            x, y, words, colour = ends[i]
            look = {"va": "center", "annotation_clip": False, "path_effects": HALO, "gid": END}
            by = (8, bottom + rank * gap - heights[i])
            note(ax, words, (x, y), by, color=readable(colour), **look)


def note(ax: Axes, words: str, at: tuple, by: tuple[float, float], **look) -> None:
    """Write words `by` points (right, up) from the place `at`; look: as `Axes.annotate` takes."""
    ax.annotate(words, at, by, textcoords="offset points", **look)


def put_words(ax: Axes, x: float, y: float, words: str, **look) -> None:
    """Write words of 9 points centred on a place, unless `look`, as `Axes.text` takes, differs."""
    ax.text(x, y, words, **{"ha": "center", "va": "center", "fontsize": 9} | look)


def each_run(ax: Axes, x: Any, values: Sequence[float] | np.ndarray, **look) -> None:
    """A dot above x for the value of each run; look: as `Axes.plot` takes."""
    ax.plot([x] * len(values), values, ls="none", **look)


def diverged(ax: Axes, x: float, colour: str) -> None:
    """A cross at the top edge above x: a run that has no value."""
    top = {"clip_on": False, "transform": ax.get_xaxis_transform()}
    ax.plot(x, 1, "x", color=colour, ms=9, mew=2.5, **top)


def name_rows(ax: Axes, names: Sequence[str], above: float = 0.5, below: float = 0.5) -> None:
    """Name rows drawn at 0, 1, … from the top, with so much room above and below, and no grid."""
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 1 + below, -above)
    ax.grid(axis="y", visible=False)


def letters_on(colour: str) -> str:
    """The colour of letters that stand on a surface of this colour of the palette."""
    if colour in (INK, SOFT, BLUE):
        return CARD
    if colour in (VERMILLION, GREEN):
        return ON_DARK
    return ON_LIGHT if colour in (ORANGE, SKY, PURPLE) else INK


def bars_of_shares(ax: Axes, rows: Sequence[str], parts: Mapping[str, str]) -> Axes:
    """Name bars of 100 per cent, drawn at 0, 1, … from the top, and their parts {name: colour}."""
    ax.set_yticks(range(len(rows)), rows)
    ax.set_ylim(len(rows) - 0.5, -0.6)
    ax.set_xlim(0, 1)
    ax.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    ax.grid(visible=False)
    ax.spines["left"].set_visible(False)
    ax.tick_params(axis="y", length=0)
    patches = [Patch(color=colour, label=name) for name, colour in parts.items()]
    ax.legend(handles=patches, loc="lower left", bbox_to_anchor=(0, 1), ncols=len(parts))
    return ax


def finite(values: Sequence[float], what: str) -> np.ndarray:
    """The values as an array; RRError where there are none, or one is not finite."""
    array = np.asarray(values, dtype=float)
    if array.ndim != 1 or not array.size:
        raise RRError(f"{what} is empty or not a list of numbers")
    if not np.isfinite(array).all():
        raise RRError(f"{what} has {(~np.isfinite(array)).sum()} values that are not finite")
    return array


def lines_by_depth(ax: Axes, depth: Sequence[float], series: Mapping[str, Sequence[float]]) -> list:
    """Draw the lines; returns their ends, to be named once the axes have their limits."""
    x, ends = finite(depth, "depth"), []
    for label, values in series.items():
        y = finite(values, label)
        if y.shape != x.shape:
            raise RRError(f"{label} has {len(y)} values for {len(x)} depths")
        shown = style_of(label)
        ax.plot(x, y, label=label, markevery=max(1, len(x) // 12), **shown)
        ends.append((x[-1], y[-1], label, shown["color"]))
        keep(ax, x, {label: y})
    ax.set_xlabel("sublayer")
    return ends
