"""Figures of interrupted runs: work destroyed, what checkpoints cost, attempts at one run."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from .data import keep, keep_row
from .style import (
    BLUE,
    CARD,
    GREEN,
    HALO,
    INK,
    ORANGE,
    PURPLE,
    SKY,
    SOFT,
    VERMILLION,
    label_ends,
    note,
)

MARKS = ("o", "^", "s", "D", "v", "P")
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, INK)


def destroyed_work(ax: Axes, kills: Sequence[Mapping]) -> Axes:
    """Work destroyed by single kills against the interval between checkpoints, both in seconds.

    kills: mappings with `every` and `lost_seconds` (one for each kill). Rings are kills, bars their
    means, the line half the interval.
    """
    for row in kills:
        lost, every = row["lost_seconds"], row["every"]
        ax.plot([every] * len(lost), lost, ls="none", marker="o", ms=5, mfc="none", mec=BLUE)
        ax.plot(every, np.mean(lost), marker="_", ms=22, mew=3, color=VERMILLION)
        cells = {"each kill": list(lost), "mean": np.mean(lost), "half the interval": every / 2}
        keep_row(ax, every, cells)
    ends = [min(row["every"] for row in kills), max(row["every"] for row in kills)]
    half = [every / 2 for every in ends]
    ax.plot(ends, half, color=INK, lw=1.2, ls="--")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ticks = [row["every"] for row in kills]
    ax.set_xticks(ticks, [f"{t:g}" for t in ticks])
    ax.set_yticks([2.0**k for k in range(-4, 5)], [f"{2.0**k:.3g}" for k in range(-4, 5)])
    ax.minorticks_off()
    ax.set_xlabel("seconds between checkpoints")
    ax.set_ylabel("seconds of work destroyed")
    label_ends(ax, [(ends[1], half[1], "half the interval", INK)])
    return ax


def notices(ax: Axes, sizes: Sequence[Mapping], warnings: Mapping[str, float]) -> Axes:
    """Seconds that a checkpoint takes against the model's size, and how long services wait.

    sizes: mappings with `rung`, `params`, `seconds` and `measured`; what is not measured is hollow.
    warnings: {service: seconds between SIGTERM and SIGKILL}, one line each.
    """
    for row in sizes:
        ax.plot(
            row["params"],
            row["seconds"],
            "o",
            ms=7,
            color=BLUE,
            mfc=BLUE if row["measured"] else CARD,
        )
        cells = {"rung": row["rung"], "": row["seconds"]}
        keep_row(ax, row["params"], cells | {"note": "" if row["measured"] else "not measured"})
        place, look = (row["params"], row["seconds"]), {"color": INK, "path_effects": HALO}
        # below the points, where no line has its name
        note(ax, row["rung"], place, (5, -4), ha="left", va="top", fontsize=9, **look)
    left, right = min(row["params"] for row in sizes) / 2, max(row["params"] for row in sizes) * 2
    for (name, seconds), colour in zip(warnings.items(), COLOURS[1:], strict=False):
        ax.axhline(seconds, color=colour, ls=":", lw=1.6)
        ax.text(left * 1.1, seconds * 1.12, f"{name}: {seconds:g} s", fontsize=9, color=INK)
    ax.set_xlim(left, right)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("parameters")
    ax.set_ylabel("seconds for a checkpoint")
    return ax


def attempts(ax: Axes, reached: int, saved: int, steps: int) -> Axes:
    """Two attempts at one run: the first cut off at `reached`, the second from `saved` to the end.

    What had to be done twice is hatched.
    """
    ax.barh(1, reached, height=0.5, color=BLUE)
    ax.barh(
        1, reached - saved, left=saved, height=0.5, color=VERMILLION, hatch="///", edgecolor=CARD
    )
    ax.barh(0, steps - saved, left=saved, height=0.5, color=BLUE)
    steps_done = {"": [(0, reached), (saved, steps)], "done twice": [(saved, reached), None]}
    keep(ax, ["first", "second"], steps_done, down=True)
    ax.axvline(saved, color=SOFT, ls=":", lw=1.4)
    ax.set_yticks([1, 0], ["first", "second"])
    ax.set_xlim(0, steps)
    ax.set_ylim(-0.5, 1.5)
    ax.set_xlabel("step")
    ax.grid(visible=False, axis="y")
    return ax
