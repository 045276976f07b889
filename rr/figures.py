"""One function a figure: data in, Axes out, one style (no torch).

Figures are drawn 7 inches wide on an opaque near-white card, so that the smallest letters stay at
9 pt when a page shows them 700 pixels wide, in light and dark themes alike. Colours are Okabe and
Ito's, which readers with any colour vision can tell apart; marker and line style say the same
again. There are no titles inside, and lines are named at their ends rather than in a legend.
"""

import itertools
import math
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib import colors, patheffects
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import NullFormatter, PercentFormatter

from .config import RRError

CARD, INK, SOFT, GRID = "#fcfcfa", "#1f2429", "#59626c", "#dde1e5"
QUIET = "#c4c9ce"  # a part that is not the message
BLUE, VERMILLION, GREEN = "#0072B2", "#D55E00", "#009E73"
ORANGE, SKY, PURPLE = "#E69F00", "#56B4E9", "#CC79A7"

# (colour, marker, line style): fixed for the rules that the book meets first
LOOKS = {
    "standard": (INK, "o", "-"),
    "constant": (ORANGE, "s", "--"),
    "highway": (SKY, "^", "-."),
    "review": (BLUE, "D", "-"),
    "review-convex": (VERMILLION, "v", "-"),
    "highway-carry": (GREEN, "P", "--"),
}
_OTHERS = (
    (PURPLE, BLUE, VERMILLION, GREEN, ORANGE, SKY, SOFT),
    ("X", "p", "h", "*", "<", ">", "d", "8"),
    (":", "-.", "--"),
)


# keeps words readable where they cross a line
HALO = [patheffects.withStroke(linewidth=3, foreground=CARD)]


def look(rule: str) -> dict:
    """Colour, marker and line style of a rule, as keywords for `Axes.plot`.

    The same name looks the same in every figure, on every machine. A rule with options
    ("highway-carry:bias=-3") keeps its rule's colour and marker, hollow and dotted.
    """
    name, _, options = rule.partition(":")
    if name in LOOKS:
        colour, marker, line = LOOKS[name]
    else:
        # names still to come: chosen by their own letters, with markers no fixed rule has
        code, parts = zlib.crc32(name.encode()), []
        for choices in _OTHERS:
            code, index = divmod(code, len(choices))
            parts.append(choices[index])
        colour, marker, line = parts
    if options:
        return {"color": colour, "marker": marker, "linestyle": ":", "markerfacecolor": CARD}
    return {"color": colour, "marker": marker, "linestyle": line}


def style() -> None:
    """Make the book's look matplotlib's default for this process."""
    plt.rcParams.update(
        {
            "figure.figsize": (7, 3.4),
            "figure.dpi": 100,
            "figure.facecolor": CARD,
            "figure.constrained_layout.use": True,
            "savefig.facecolor": CARD,
            "savefig.dpi": 150,
            "svg.hashsalt": "rr",
            "axes.facecolor": CARD,
            "axes.edgecolor": SOFT,
            "axes.labelcolor": INK,
            "axes.grid": True,
            "axes.axisbelow": True,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.prop_cycle": plt.cycler(color=[BLUE, VERMILLION, GREEN, ORANGE, SKY, PURPLE]),
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


def canvas(columns: int = 1, height: float = 3.4, **options: object) -> tuple[Figure, object]:
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
        rgb = tuple(0.95 * p for p in rgb)
    return rgb


def label_ends(ax: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Name lines at their right ends, [(x, y, words, colour), …]; names that collide move apart.

    Call it last: where the names go depends on the axis limits.
    """
    gap = 13.0  # points between two baselines
    ax.figure.draw_without_rendering()
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
            ax.annotate(
                words, (x, y), (8, bottom + rank * gap - heights[i]), textcoords="offset points",
                color=readable(colour), va="center", annotation_clip=False, path_effects=HALO,
            )  # fmt: skip


def _finite(values: Sequence[float], what: str) -> np.ndarray:
    array = np.asarray(values, dtype=float)
    if array.ndim != 1 or not array.size:
        raise RRError(f"{what} is empty or not a list of numbers")
    if not np.isfinite(array).all():
        raise RRError(f"{what} has {(~np.isfinite(array)).sum()} values that are not finite")
    return array


def _by_depth(ax: Axes, depth: Sequence[float], series: Mapping[str, Sequence[float]]) -> list:
    """Draw the lines; returns their ends, to be named once the axes have their limits."""
    x, ends = _finite(depth, "depth"), []
    for label, values in series.items():
        y = _finite(values, label)
        if y.shape != x.shape:
            raise RRError(f"{label} has {len(y)} values for {len(x)} depths")
        shown = look(label)
        ax.plot(x, y, label=label, markevery=max(1, len(x) // 12), **shown)
        ends.append((x[-1], y[-1], label, shown["color"]))
    ax.set_xlabel("sublayer")
    return ends


def stream_norms(
    ax: Axes, depth: Sequence[float], series: Mapping[str, Sequence[float]], log: bool = False
) -> Axes:
    """rms of the residual stream after each sublayer: {rule: values}, one per entry of `depth`.

    Call it again on the same axes for a model of another depth.
    """
    ends = _by_depth(ax, depth, series)
    if log:
        ax.set_yscale("log")
    else:
        ax.set_ylim(0, 1.08 * ax.dataLim.y1)
    ax.set_ylabel("rms of the stream")
    label_ends(ax, ends)
    return ax


def gradient_by_depth(
    ax: Axes, depth: Sequence[float], series: Mapping[str, Sequence[float]]
) -> Axes:
    """Norm of the loss's gradient at each sublayer, on a logarithmic scale: {rule: values}.

    The scale spans a decade at least, so that what is nearly flat looks it. A norm of exactly 0,
    too small for single precision, has no place on it: the line stops there. Call it again on the
    same axes for a model of another depth.
    """
    ends = []
    for label, values in series.items():
        x, y = _finite(depth, "depth"), _finite(values, label)
        if (y < 0).any() or not y.any():
            raise RRError(f"{label} has a gradient norm below 0, or none above: norms are positive")
        if x.shape == y.shape:
            x, y = x[y > 0], y[y > 0]
        ends += _by_depth(ax, x, {label: y})
    low, high = ax.dataLim.y0, ax.dataLim.y1
    middle = math.sqrt(low * high)
    ax.set_yscale("log")
    ax.set_ylim(min(low / 1.3, middle / 4), max(high * 1.3, middle * 4))
    ax.set_ylabel("gradient norm")
    label_ends(ax, ends)
    return ax


def loss_curves(
    ax: Axes, runs: Sequence[Mapping], floor: tuple[float, float] | None = None, log: bool = False
) -> Axes:
    """Loss against training step: a thin line per run, a thick one for a label's mean.

    runs: mappings with `rule`, `steps`, `loss` (nats a token) and maybe `label` (else the rule).
    The mean is drawn where a label has several runs that were recorded at the same steps. A loss
    that is not finite ends its line there, with a cross at the last finite value. floor: the
    entropy floor and its standard error, drawn as a line with a band of ± 2 standard errors. log:
    logarithmic steps.
    """
    groups = defaultdict(list)
    for run in runs:
        groups[run.get("label", run["rule"])].append(run)
    if log:
        ax.set_xscale("log")
    drawn = []
    for label, members in groups.items():
        shown = look(members[0]["rule"])
        colour, line = shown["color"], shown["linestyle"]
        alone = len(members) == 1
        for run in members:
            steps, loss = np.asarray(run["steps"]), np.asarray(run["loss"], dtype=float)
            if steps.shape != loss.shape or not loss.size:
                raise RRError(f"{label} has {len(steps)} steps and {len(loss)} losses")
            good = np.isfinite(loss)
            end = len(loss) if good.all() else int(np.argmin(good))
            width, opacity = (1.8, 1) if alone else (0.9, 0.45)
            ax.plot(
                steps[:end], loss[:end], color=colour, ls=line, lw=width, alpha=opacity, label=label
            )
            if 0 < end < len(loss):
                ax.plot(steps[end - 1], loss[end - 1], "x", color=colour, ms=9, mew=2.5)
        means = _mean_curve(members)
        if means is not None and not alone:
            ax.plot(*means, color=colour, ls=line, lw=2.4, label=f"{label}, mean")
        steps, loss = means if means is not None else (members[0]["steps"], members[0]["loss"])
        finite = [(s, y) for s, y in zip(steps, loss, strict=True) if math.isfinite(y)]
        if finite:
            drawn.append((*finite[-1], label, colour))
    if floor is not None:
        value, error = floor
        ax.axhspan(value - 2 * error, value + 2 * error, color=SOFT, alpha=0.25, lw=0)
        ax.axhline(value, color=SOFT, lw=1.2, ls=(0, (1, 1)))
        words = f"entropy floor {value:.3f} ± {2 * error:.3f}"
        ax.annotate(
            words, (0, value), (4, 4), xycoords=("axes fraction", "data"),
            textcoords="offset points", color=SOFT, fontsize=9.5,
        )  # fmt: skip
    ax.set_xlabel("training step")
    ax.set_ylabel("loss (nats a token)")
    label_ends(ax, drawn)
    return ax


def _mean_curve(members: Sequence[Mapping]) -> tuple[np.ndarray, np.ndarray] | None:
    """Mean over runs recorded at the same steps; None where there is none to draw."""
    steps = [tuple(run["steps"]) for run in members]
    losses = [np.asarray(run["loss"], dtype=float) for run in members]
    if len(set(steps)) > 1 or not all(np.isfinite(loss).all() for loss in losses):
        return None
    return np.asarray(steps[0]), np.mean(losses, axis=0)


def gate_histogram(
    ax: Axes, values: Mapping[str, Sequence[float]], bins: int = 40, mark: float | None = 0.5
) -> Axes:
    """Share of the gate's values in equal bins from 0 to 1: {label: values}; a line at `mark`."""
    edges = np.linspace(0, 1, bins + 1)
    for label, sample in values.items():
        gates = _finite(np.ravel(np.asarray(sample, dtype=float)), label)
        if gates.min() < 0 or gates.max() > 1:
            raise RRError(f"{label} has values outside 0 to 1: not a gate")
        shares = np.histogram(gates, edges)[0] / gates.size
        colour = look(label)["color"]
        ax.stairs(shares, edges, fill=True, color=colour, alpha=0.3)
        ax.stairs(shares, edges, color=colour, lw=1.8, label=label)
        top = int(np.argmax(shares))
        ax.annotate(
            label, ((edges[top] + edges[top + 1]) / 2, shares[top]), (0, 5),
            textcoords="offset points", ha="center", color=readable(colour), path_effects=HALO,
        )  # fmt: skip
    if mark is not None:
        ax.axvline(mark, color=SOFT, lw=1.2, ls=(0, (1, 1)))
    ax.set_xlim(0, 1)
    ax.margins(y=0.15)
    ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=None))
    ax.set_xlabel("gate r")
    ax.set_ylabel("share of gates")
    return ax


def depth_plot(
    ax: Axes,
    points: Sequence[Mapping],
    ylabel: str,
    logx: bool = False,
    logy: bool = False,
) -> Axes:
    """A quantity against the number of sublayers: a point per seed, a line through the means.

    points: mappings with `rule`, `sublayers`, `value` and maybe `label`. A value that is None or
    not finite (a diverged run) is drawn as a cross at the top edge and left out of its mean.
    """
    if logx:
        ax.set_xscale("log", base=2)
    if logy:
        ax.set_yscale("log")
    groups = defaultdict(lambda: defaultdict(list))
    rules, lost = {}, []
    for point in points:
        label = point.get("label", point["rule"])
        rules[label] = point["rule"]
        value = point["value"]
        if value is None or not math.isfinite(value):
            lost.append((point["sublayers"], look(point["rule"])["color"]))
        else:
            groups[label][point["sublayers"]].append(float(value))
    ends, depths = [], sorted({point["sublayers"] for point in points})
    for label, by_depth in groups.items():
        shown = look(rules[label])
        every = [(depth, value) for depth in sorted(by_depth) for value in by_depth[depth]]
        dots = {key: shown[key] for key in ("color", "marker")}
        ax.plot(*zip(*every, strict=True), ls="none", alpha=0.55, ms=4.5, **dots)
        means = [(depth, float(np.mean(by_depth[depth]))) for depth in sorted(by_depth)]
        ax.plot(*zip(*means, strict=True), label=label, color=shown["color"], ls=shown["linestyle"])
        ends.append((*means[-1], label, shown["color"]))
    for depth, colour in lost:
        ax.plot(depth, 1, "x", color=colour, ms=9, mew=2.5, clip_on=False,
                transform=ax.get_xaxis_transform())  # fmt: skip
    ax.set_xticks(depths, [str(depth) for depth in depths])
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.minorticks_off()
    ax.set_xlabel("sublayers")
    ax.set_ylabel(ylabel)
    label_ends(ax, ends)
    return ax


def paired_differences(ax: Axes, rows: Sequence[Mapping]) -> Axes:
    """Paired difference of each arm from its baseline with its interval, about a zero line.

    rows: from `rr.stats.table`; those without a difference are named, with the reason, rather than
    left out. Differences in nats a token; left of zero favours the arm.
    """
    rows = [row for row in rows if row["baseline"] or row["notes"]]
    if not rows:
        raise RRError("no arm to compare: the table holds only the baseline")
    ax.axvline(0, color=SOFT, lw=1.2)
    names = []
    for place, row in enumerate(reversed(rows)):
        shown = look(row["rule"])
        names.append(row["arm"])
        if row["difference"] is None:
            ax.text(0, place, f"  {'; '.join(row['notes'])}", va="center", color=SOFT, fontsize=9.5)
            continue
        gap, low, high = row["difference"], row["lo"], row["hi"]
        ax.plot([low, high], [place, place], color=shown["color"], lw=2.2)
        ax.plot(gap, place, color=shown["color"], marker=shown["marker"], ms=8, label=row["arm"])
        lost = f", {len(row['diverged'])} diverged" if row["diverged"] else ""
        words = f"{gap:+.4f}, n = {len(row['pairs'])}{lost}".replace("-", "−")
        ax.annotate(
            words, (gap, place), (0, 9), textcoords="offset points", ha="center",
            color=readable(shown["color"]), fontsize=9.5, path_effects=HALO,
        )  # fmt: skip
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(-0.6, len(names) - 0.3)
    ax.grid(axis="y", visible=False)
    baselines = {row["baseline"] for row in rows if row["baseline"]}
    ax.set_xlabel(f"loss − {' or '.join(sorted(baselines)) or 'baseline'} (nats a token)")
    return ax


def bar_share(
    ax: Axes, rows: Sequence[tuple[str, Mapping[str, float]]], rest: str | None = None
) -> Axes:
    """Horizontal bars of 100 %, each split into named parts: [(label, {part: amount}), …].

    Amounts in any one unit (parameters, FLOP); each bar shows percentages of its own sum. The
    parts are named in a row above the bars. `rest` names a part that is not the message (all else):
    it is grey and takes no colour from the others.
    """
    fills = {}
    tints = itertools.cycle((SKY, "#dfe6ec", ORANGE, GREEN, PURPLE))
    for place, (label, parts) in enumerate(rows):
        total = math.fsum(parts.values())
        if not total > 0 or min(parts.values()) < 0:
            raise RRError(f"{label} has no positive amounts to share out")
        left = 0.0
        for part, amount in parts.items():
            if part not in fills:
                fills[part] = QUIET if part == rest else next(tints)
            fill = fills[part]
            width, middle = amount / total, left + amount / total / 2
            ax.barh(place, width, left=left, height=0.6, color=fill, edgecolor=CARD)
            inside = width >= 0.06  # else the percentage stands above its part
            ax.text(
                middle, place if inside else place - 0.32, f"{100 * width:.1f} %", ha="center",
                va="center" if inside else "bottom", fontsize=9.5,
            )  # fmt: skip
            left += width
    ax.set_yticks(range(len(rows)), [label for label, _ in rows])
    ax.set_ylim(len(rows) - 0.5, -0.6)
    ax.set_xlim(0, 1)
    ax.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    ax.grid(visible=False)
    ax.spines["left"].set_visible(False)
    ax.tick_params(axis="y", length=0)
    patches = [Patch(color=fill, label=part) for part, fill in fills.items()]
    ax.legend(handles=patches, loc="lower left", bbox_to_anchor=(0, 1), ncols=len(fills))
    return ax
