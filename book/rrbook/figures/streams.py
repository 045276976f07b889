"""Figures of a stream, its gates and its gradients, by depth."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from rr.errors import RRError

from .data import keep, keep_row
from .style import (
    HALO,
    SOFT,
    diverged,
    finite,
    label_ends,
    lines_by_depth,
    note,
    readable,
    style_of,
)


def stream_norms(ax: Axes, depth: Sequence[float], series: Mapping[str, Sequence[float]]) -> Axes:
    """rms of the residual stream after each sublayer: {rule: values}, one per entry of `depth`.

    Call it again on the same axes for a model of another depth.
    """
    ends = lines_by_depth(ax, depth, series)
    ax.set_ylim(0, 1.08 * ax.dataLim.y1)
    ax.set_ylabel("rms of the stream")
    label_ends(ax, ends)
    return ax


# places of the norm by name: the look of the rule, and of norm-place's options a mark of their own
PLACES = {
    "pre-norm": ("standard", "o"),
    "by depth": ("norm-place", "v"),
    "sandwich": ("norm-place", "h"),
    "output": ("norm-place", "^"),
    "post-norm": ("deepnorm", "s"),
    "Keel": ("keel", "*"),
}


def norm_places(ax: Axes, sizes: Mapping[str, Sequence[float]]) -> Axes:
    """rms of the stream before the first sublayer and after each: {place of `PLACES`: values}.

    Places whose lines end within 5 % of each other have one label.
    """
    ends: list[tuple[float, float, str, str]] = []
    for name, values in sizes.items():
        if name not in PLACES:
            raise RRError(f"no place of the norm {name!r}: expected one of {', '.join(PLACES)}")
        rule, marker = PLACES[name]
        style: dict = style_of(rule) | {"marker": marker}
        y = finite(values, name)
        ax.plot(range(len(y)), y, label=name, markevery=max(1, len(y) // 12), **style)
        keep(ax, np.arange(len(y)), {name: y})
        last = next((i for i, end in enumerate(ends) if abs(end[1] / y[-1] - 1) < 0.05), None)
        if last is None:
            ends.append((len(y) - 1, y[-1], name, style["color"]))
        else:
            x, height, names, colour = ends[last]
            ends[last] = x, height, f"{names}, {name}", colour
    ax.set(yscale="log", xlabel="sublayer", ylabel="rms of the stream")
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
        x, y = finite(depth, "depth"), finite(values, label)
        if (y < 0).any() or not y.any():
            raise RRError(f"{label} has a gradient norm below 0, or none above: norms are positive")
        if x.shape == y.shape:
            x, y = x[y > 0], y[y > 0]
        ends += lines_by_depth(ax, x.tolist(), {label: y.tolist()})
    low, high = ax.dataLim.y0, ax.dataLim.y1
    middle = math.sqrt(low * high)
    ax.set_yscale("log")
    ax.set_ylim(min(low / 1.3, middle / 4), max(high * 1.3, middle * 4))
    ax.set_ylabel("gradient norm")
    label_ends(ax, ends)
    return ax


def gate_histogram(ax: Axes, values: Mapping[str, Sequence[float]], bins: int = 40) -> Axes:
    """Share of the gate's values in equal bins from 0 to 1: {label: values}; a line at one half."""
    edges = np.linspace(0, 1, bins + 1)
    for label, sample in values.items():
        gates = finite(np.ravel(np.asarray(sample, dtype=float)).tolist(), label)
        if gates.min() < 0 or gates.max() > 1:
            raise RRError(f"{label} has values outside 0 to 1: not a gate")
        shares = np.histogram(gates, edges)[0] / gates.size
        colour = style_of(label)["color"]
        keep(ax, pairwise(edges), {label: shares})
        ax.stairs(shares, edges, fill=True, color=colour, alpha=0.3)
        ax.stairs(shares, edges, color=colour, lw=1.8, label=label)
        top = int(np.argmax(shares))
        at = (edges[top] + edges[top + 1]) / 2, shares[top]
        note(ax, label, at, (0, 5), ha="center", color=readable(colour), path_effects=HALO)
    ax.axvline(0.5, color=SOFT, lw=1.2, ls=(0, (1, 1)))
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
            lost.append((point["sublayers"], style_of(point["rule"])["color"]))
            keep_row(ax, point["sublayers"], {f"{label}, each run": "diverged"})
        else:
            groups[label][point["sublayers"]].append(float(value))
    ends, depths = [], sorted({point["sublayers"] for point in points})
    for label, by_depth in groups.items():
        shown = style_of(rules[label])
        every = [(depth, value) for depth in sorted(by_depth) for value in by_depth[depth]]
        dots = {key: shown[key] for key in ("color", "marker")}
        each = {"ls": "none", "alpha": 0.55, "ms": 4.5, "label": f"{label}, each run"}
        ax.plot(*zip(*every, strict=True), **each, **dots)
        means = [(depth, float(np.mean(by_depth[depth]))) for depth in sorted(by_depth)]
        for depth, mean in means:
            keep_row(ax, depth, {f"{label}, each run": by_depth[depth], label: mean})
        ax.plot(*zip(*means, strict=True), label=label, color=shown["color"], ls=shown["linestyle"])
        ends.append((*means[-1], label, shown["color"]))
    for depth, colour in lost:
        diverged(ax, depth, colour)
    ax.set_xticks(depths, [str(depth) for depth in depths])
    ax.minorticks_off()
    ax.set_xlabel("sublayers")
    ax.set_ylabel(ylabel)
    label_ends(ax, ends)
    return ax
