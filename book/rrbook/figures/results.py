"""Figures of the results of runs: curves, paired differences, shares."""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from rr.errors import RRError

from .data import keep, keep_row
from .style import (
    CARD,
    GREEN,
    GRID,
    HALO,
    INK,
    ORANGE,
    PURPLE,
    QUIET,
    SKY,
    SOFT,
    bars_of_shares,
    label_ends,
    letters_on,
    note,
    put_words,
    readable,
    style_of,
)


def loss_curves(
    ax: Axes, runs: Sequence[Mapping], floor: tuple[float, float] | None = None
) -> Axes:
    """Loss against training step: a thin line per run, a thick one for a label's mean.

    runs: mappings with `rule`, `steps`, `loss` (nats per token) and maybe `label` (else the rule).
    The mean is drawn where a label has several runs that were recorded at the same steps. A loss
    that is not finite ends its line there, with a cross at the last finite value. floor: the
    entropy floor and its standard error, drawn as a line with a band of ± 2 standard errors.
    """
    groups = defaultdict(list)
    for run in runs:
        groups[run.get("label", run["rule"])].append(run)
    drawn = []
    for label, members in groups.items():
        shown = style_of(members[0]["rule"])
        colour, line = shown["color"], shown["linestyle"]
        alone = len(members) == 1
        for run in members:
            steps, loss = np.asarray(run["steps"]), np.asarray(run["loss"], dtype=float)
            if steps.shape != loss.shape or not loss.size:
                raise RRError(f"{label} has {len(steps)} steps and {len(loss)} losses")
            good = np.isfinite(loss)
            end = len(loss) if good.all() else int(np.argmin(good))
            width, opacity = (1.8, 1) if alone else (0.9, 0.45)
            look = {"color": colour, "ls": line, "marker": "." if end == 1 else None}
            ax.plot(steps[:end], loss[:end], lw=width, alpha=opacity, label=label, **look)
            keep(ax, steps[:end], {label: loss[:end]})
            if 0 < end < len(loss):
                ax.plot(steps[end - 1], loss[end - 1], "x", color=colour, ms=9, mew=2.5)
        means = _mean_curve(members)
        if means is not None and not alone:
            ax.plot(*means, color=colour, ls=line, lw=2.4, label=f"{label}, mean")
            keep(ax, means[0], {f"{label}, mean": means[1]})
        steps, loss = means if means is not None else (members[0]["steps"], members[0]["loss"])
        finite = [(s, y) for s, y in zip(steps, loss, strict=True) if math.isfinite(y)]
        if finite:
            drawn.append((*finite[-1], label, colour))
    if floor is not None:
        value, error = floor
        ax.axhspan(value - 2 * error, value + 2 * error, color=SOFT, alpha=0.25, lw=0)
        ax.axhline(value, color=SOFT, lw=1.2, ls=(0, (1, 1)))
        words = f"entropy floor {value:.3f} ± {2 * error:.3f}"
        at = ("axes fraction", "data")
        note(ax, words, (0, value), (4, 4), xycoords=at, color=SOFT, fontsize=9.5)
    ax.set_xlabel("training step")
    ax.set_ylabel("loss (nats per token)")
    label_ends(ax, drawn)
    return ax


def _mean_curve(members: Sequence[Mapping]) -> tuple[np.ndarray, np.ndarray] | None:
    """Mean over runs recorded at the same steps; None where there is none to draw."""
    steps = [tuple(run["steps"]) for run in members]
    losses = [np.asarray(run["loss"], dtype=float) for run in members]
    if len(set(steps)) > 1 or not all(np.isfinite(loss).all() for loss in losses):
        return None
    return np.asarray(steps[0]), np.mean(losses, axis=0)


def paired_differences(
    ax: Axes, rows: Sequence[Mapping], style: Callable[[str], Mapping] = style_of
) -> Axes:
    """Paired difference of each arm from its baseline with its interval, about a zero line.

    rows: of `rrstudy.stats.compare` by `as_rows`; those without a difference are named, with the
    reason, rather than left out. Differences in nats per token; left of zero favours the arm.
    style: colour and marker of a row's rule.
    """
    rows = [row for row in rows if row["baseline"] or row["notes"]]
    if not rows:
        raise RRError("no arm to compare: the table holds only the baseline")
    ax.axvline(0, color=SOFT, lw=1.2)
    names = []
    for place, row in enumerate(reversed(rows)):
        shown = style(row["rule"])
        names.append(row["arm"])
        if row["difference"] is None:
            ax.text(0, place, f"  {'; '.join(row['notes'])}", va="center", color=SOFT, fontsize=9.5)
            continue
        gap, low, high = row["difference"], row["lo"], row["hi"]
        ax.plot([low, high], [place, place], color=shown["color"], lw=2.2)
        ax.plot(gap, place, color=shown["color"], marker=shown["marker"], ms=8, label=row["arm"])
        lost = f", {len(row['diverged'])} diverged" if row["diverged"] else ""
        words = f"{gap:+.4f}, n = {len(row['pairs'])}{lost}".replace("-", "−")
        look = {"color": readable(shown["color"]), "fontsize": 9.5, "path_effects": HALO}
        note(ax, words, (gap, place), (0, 9), ha="center", **look)
    for row in rows:
        keep_row(ax, row["arm"], compared(row), down=True)
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(-0.6, len(names) - 0.3)
    ax.grid(axis="y", visible=False)
    baselines = {row["baseline"] for row in rows if row["baseline"]}
    ax.set_xlabel(f"loss − {' or '.join(sorted(baselines)) or 'baseline'} (nats per token)")
    return ax


def compared(row: Mapping) -> dict[str, Any]:
    """A row of `rrstudy.stats.compare` as cells of a figure's table."""
    notes = [f"{len(row['diverged'])} diverged"] if row["diverged"] else []
    if row["difference"] is None:
        return {"": None, "note": "; ".join(notes or row["notes"])}
    cells = {"": row["difference"], "interval": (row["lo"], row["hi"]), "n": len(row["pairs"])}
    return cells | {"note": "; ".join(notes)}


def bar_share(
    ax: Axes, rows: Sequence[tuple[str, Mapping[str, float]]], rest: str | None = None
) -> Axes:
    """Horizontal bars of 100 %, each split into named parts: [(label, {part: amount}), …].

    Amounts in any one unit (parameters, FLOP); each bar shows percentages of its own sum. The
    parts are named in a row above the bars. `rest` names a part that is not the message (all else):
    it is grey and takes no colour from the others.
    """
    fills = {}
    tints = itertools.cycle((SKY, GRID, ORANGE, GREEN, PURPLE))
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
            keep_row(ax, label, {part: width}, down=True)
            inside = width >= 0.1  # else the percentage stands above its part, on a phone too
            look = {"va": "bottom", "color": INK}
            if inside:
                look = {"va": "center", "color": letters_on(fill)}
            height = place if inside else place - 0.32
            put_words(ax, middle, height, f"{100 * width:.0f} %", fontsize=9.5, **look)
            left += width
    return bars_of_shares(ax, [label for label, _ in rows], fills)
