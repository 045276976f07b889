"""`rr table` for the logs of other trainers, and `rr power`."""

from pathlib import Path
from typing import Any

from ..config import RRError, positive
from . import effects
from .against import against
from .forest import forest
from .logs import read_logs


def table_of_logs(
    paths: list[str], design: str | None, baseline: str, figure: str | None, **columns: str | None
) -> list[dict]:
    """The rows of `against` for these logs; with `figure`, also drawn to that SVG file.

    design: "paired" or "independent"; columns: as `read_logs` takes them. Raises RRError without a
    design: whether two runs of one seed saw the same data in the same order is in no log.
    """
    if design is None:
        raise RRError(
            "no design given: --paired if runs of one seed saw the same data in the same order, "
            "else --unpaired"
        )
    given: dict[str, Any] = columns
    rows = against(read_logs(paths, **given), baseline, design)
    if figure:
        if Path(figure).suffix != ".svg":
            raise RRError(f"--figure must end in .svg, got {figure}")
        Path(figure).write_text(forest(rows, columns["loss"] or "loss"), encoding="utf-8")
    return rows


def power_of_plan(
    sd: float, effect: float | None, seeds: int | None, design: str | None, comparisons: int = 1
) -> list[dict]:
    """Power of a planned study: one row per design, or that of `design` alone.

    sd: spread of the paired differences (design "paired") or of one arm over its seeds
    ("independent"); effect: true difference; both in one unit. Each row: `design, sd, effect,
    seeds, comparisons, alpha` (0.05 over the number of comparisons, Bonferroni), `needed` (seeds
    per arm that find the effect with 80 % power), `power` (of `seeds` seeds for that effect) and
    `detectable` (what `seeds` seeds find with 80 % power); None for what was not asked. Raises
    RRError where neither effect nor seeds is given, and for bad numbers.
    """
    if effect is None and seeds is None:
        raise RRError("nothing to compute: give --effect, --seeds, or both")
    positive("comparisons", comparisons)
    alpha = 0.05 / comparisons
    out = []
    for kind in [design] if design else effects.DESIGNS:
        row = dict(
            design=kind,
            sd=sd,
            effect=effect,
            seeds=seeds,
            comparisons=comparisons,
            alpha=alpha,
            needed=None,
            power=None,
            detectable=None,
        )
        if effect is not None:
            row["needed"] = effects.seeds_needed(effect, sd, 0.8, alpha, kind)
        if seeds is not None:
            row["detectable"] = effects.detectable_gap(seeds, sd, 0.8, alpha, kind)
        if effect is not None and seeds is not None:
            row["power"] = effects.power(effect, sd, seeds, alpha, kind)
        out.append(row)
    return out


def power_in_words(rows: list[dict]) -> str:
    """The rows of `power_of_plan`, a paragraph per design."""
    of = {
        "paired": "paired, sd {sd:g} of the differences between runs of one seed",
        "independent": "unpaired, sd {sd:g} of one arm over its seeds",
    }
    blocks = []
    for row in rows:
        lines = [of[row["design"]].format(**row)]
        if row["needed"] is not None:
            lines.append("{needed} seeds per arm find a difference of {effect:g} with 80 % power")
        if row["power"] is not None:
            lines.append(
                "{seeds} seeds per arm find a difference of {effect:g} with {power:.1%} power"
            )
        if row["detectable"] is not None:
            lines.append(
                "{seeds} seeds per arm find a difference of {detectable:.3g} with 80 % power"
            )
        blocks.append("\n  ".join(line.format(**row) for line in lines))
    level = "p < {alpha:.3g}, two-sided t test".format(**rows[0])
    over = rows[0]["comparisons"]
    level += f", 0.05 over {over} comparisons" * (over > 1)
    return "\n".join([*blocks, f"({level}; normal noise with this sd is assumed)"])
