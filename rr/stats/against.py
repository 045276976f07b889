"""Every arm of a study against one baseline: difference, correction, power, seeds needed."""

from collections.abc import Mapping, Sequence

from ..config import RRError, nearest
from .compare import interval
from .contrasts import contrasts
from .effects import sd_interval, seeds_needed


def against(rows: Sequence[Mapping], baseline: str, design: str, level: float = 0.95) -> list[dict]:
    """Every arm against one baseline, and the seeds that finding each difference would take.

    rows: as `read_logs()` gives them, with `arm, seed, val_loss, status`. baseline: the name of an
    arm. design: "paired" where runs of one seed saw the same data in the same order, else
    "independent". level: of all intervals; tests are at 1 − level.

    Returns one row per arm, the baseline first:

    * `arm, baseline`: names; baseline is None in its own row. `design, level`: as given;
    * `seeds`: those that finished; `n, mean, mean_lo, mean_hi`: of the loss over them, t interval;
    * `diverged, unfinished`: seeds;
    * `pairs`: seeds shared with the baseline, where paired; `differences`: at each of them;
    * `difference, lo, hi, sd, p, holm, detectable, detectable_corrected`: as in `contrasts()`;
    * `needed`: seeds per arm that give a power of 80 % if the true difference is the one observed;
      `needed_corrected`: the same at the first step of Holm's correction; `needed_lo, needed_hi`:
      what the interval of sd makes of `needed`, as an sd of few seeds is hardly known;
    * `notes`: why something cannot be computed, which is then None.

    Raises RRError for an unknown baseline or design, a single arm, or where no arm can be compared.

    Example:
        >>> from rr.stats import against
        >>> losses = {"a": [3.1, 3.2, 3.3], "b": [2.9, 3.1, 3.0]}
        >>> rows = [
        ...     {"arm": arm, "seed": seed, "val_loss": loss,
        ...      "status": "finished", "step": None}
        ...     for arm in losses
        ...     for seed, loss in enumerate(losses[arm])
        ... ]
        >>> round(against(rows, baseline="a", design="paired")[1]["difference"], 3)
        -0.2
    """
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    if baseline not in arms:
        raise RRError(f"no arm {baseline!r} in these runs: {nearest(baseline, arms)}")
    if len(arms) < 2:
        raise RRError(f"{baseline!r} is the only arm in these runs: give at least two")
    others = [arm for arm in arms if arm != baseline]
    family = contrasts(rows, [(arm, baseline) for arm in others], level=level, design=design)
    if all(row["difference"] is None for row in family):
        raise RRError(_nothing(rows, arms, baseline, design))
    by_arm = {row["arm"]: row for row in family}
    empty = {key: None for key in family[0]} | {"arm": baseline}
    out = [
        _row(rows, by_arm.get(arm, empty), baseline, design, level, len(family))
        for arm in (baseline, *others)
    ]
    return out


def _nothing(rows: Sequence[Mapping], arms: list[str], baseline: str, design: str) -> str:
    """Why no arm can be compared with the baseline."""
    seeds = {arm: _seeds(rows, arm, "finished") for arm in arms}
    listed = "; ".join(
        f"{arm}: {', '.join(map(str, mine)) or 'none'}" for arm, mine in seeds.items()
    )
    if design == "paired":
        what, how = f"no arm shares two finished seeds with {baseline!r}", "train shared seeds, or "
        how += "give --unpaired if the order of data was not shared"
    else:
        what, how = "no two arms have two finished seeds each", "train more seeds"
    return f"{what} (seeds of {listed}): {how}"


def _seeds(rows: Sequence[Mapping], arm: str, status: str) -> list:
    return sorted(row["seed"] for row in rows if (row["arm"], row["status"]) == (arm, status))


def _row(
    rows: Sequence[Mapping], contrast: Mapping, baseline: str, design: str, level: float, tests: int
) -> dict:
    """One row of `against`."""
    arm = contrast["arm"]
    losses, theirs = (
        {
            row["seed"]: row["val_loss"]
            for row in rows
            if row["arm"] == name and row["status"] == "finished"
        }
        for name in (arm, baseline)
    )
    mean = interval(losses.values(), level) if len(losses) > 1 else None
    alone = next(iter(losses.values()), None)
    pairs = sorted(losses.keys() & theirs.keys()) if design == "paired" and arm != baseline else []
    row = {
        "arm": arm,
        "baseline": contrast["baseline"],
        "design": design,
        "level": level,
        "seeds": sorted(losses),
        "n": len(losses),
        "mean": mean.mean if mean else alone,
        "mean_lo": mean and mean.lo,
        "mean_hi": mean and mean.hi,
        "diverged": _seeds(rows, arm, "diverged"),
        "unfinished": _seeds(rows, arm, "unfinished"),
        "pairs": pairs,
        "differences": [losses[seed] - theirs[seed] for seed in pairs],
        **{
            key: contrast[key]
            for key in (
                "difference",
                "lo",
                "hi",
                "sd",
                "p",
                "holm",
                "detectable",
                "detectable_corrected",
            )
        },
        **dict.fromkeys(("needed", "needed_lo", "needed_hi", "needed_corrected")),
        "notes": [],
    }
    if arm == baseline:
        return row
    if design == "paired" and len(pairs) < max(len(losses), len(theirs)):
        row["notes"].append(f"{len(pairs)} pair{'s' * (len(pairs) != 1)}")
    if row["difference"] is None:
        few = "pairs" if design == "paired" else "finished seeds in an arm"
        row["notes"].append(f"fewer than two {few}: no test")
    elif row["sd"]:
        alpha, df = 1 - level, contrast["n"] - 1 if pairs else len(losses) + len(theirs) - 2
        row["needed"] = _needed(row["difference"], row["sd"], alpha, design)
        row["needed_corrected"] = _needed(row["difference"], row["sd"], alpha / tests, design)
        low, high = sd_interval(row["sd"], df, level)
        row["needed_lo"], row["needed_hi"] = (
            _needed(row["difference"], sd, alpha, design) for sd in (low, high)
        )
    return row


def _needed(gap: float, sd: float, alpha: float, design: str) -> int | None:
    """Seeds for 80 % power if the true difference is `gap`; None: no number worth a name."""
    try:
        return seeds_needed(gap, sd, 0.8, alpha, design)
    except RRError:  # a difference of nothing, or more seeds than anybody trains
        return None
