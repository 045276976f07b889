"""The gap of two arms during training: losses on identical batches, by bands of steps.

Arms of one seed read the same batches in the same order, so that the difference of their training
losses is paired at every step, like that of their held-out losses at the end.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rr.errors import RRError, RunFailed, nearest
from rrstudy.stats.inference import interval, numbers
from rrstudy.stats.records import read_records
from rrstudy.stats.results import arm_of, rows_of


def read_curves(folder: str | Path) -> list[dict]:
    """One row per run below `folder`: its result, and `curve`, its training losses by step.

    Returns rows as `read_results()` does, with `curve`: {step: nats per token}. A record keeps at
    most 200 lines of a run, chosen and never averaged, so some steps are absent. Of a run with
    several budgets it is the longest, result and curve; branches that decayed earlier are left out.
    Raises RRError where there is no folder, no run, or a result or curve that is corrupt.

    Example:
        >>> import rr
        >>> from rrbook.stats import read_curves
        >>> rows = read_curves(rr.DATA / "measured" / "mini_arms")
        >>> max(len(row["curve"]) for row in rows) <= 200
        True
    """
    rows = []
    for record in read_records(folder):
        if "result.json" not in record:
            continue
        try:
            row = rows_of(record)[-1]  # the last budget: the one whose decay is in the curve
            curve = {
                line["step"]: line["loss"]
                for line in record.curve()
                if "loss" in line and "budget" not in line
            }
        except RunFailed as error:
            raise RRError(f"{error}; make the record again") from None
        except (ValueError, KeyError) as error:
            place = record.place / "result.json"
            raise RRError(f"{place} is corrupt: {error}; make the record again") from None
        rows.append({**row, "id": row["id"].split("/")[0], "curve": curve})
    if not rows:
        raise RRError(f"no result.json below {folder}: expected a folder of finished runs")
    return rows


def _by_seed(records: Iterable[Mapping], arm: str) -> dict[int, Mapping[int, float | None]]:
    curves = {}
    for row in records:
        if arm_of(row) == arm:
            if row["seed"] in curves:
                raise RRError(
                    f"{arm} has two runs of seed {row['seed']}: give the rows of one learning rate "
                    "and one budget"
                )
            curves[row["seed"]] = row["curve"]
    return curves


def gap_by_step(
    records: Sequence[Mapping],
    arm: str,
    baseline: str,
    bands: Sequence[tuple[int, int]],
) -> list[dict]:
    """`arm` − `baseline` in training loss (nats per token), one row per band of steps.

    records: rows of `read_curves()`, one per arm and seed. arm, baseline: their names, as `table()`
    has them. bands: (first, last) steps, both inclusive.

    For each seed that both arms have, the difference is averaged over the steps of a band that both
    curves hold. Returns rows with `first, last`; `steps` (per seed, the fewest); `n`, seeds; `mean,
    lo, hi`, the mean of these averages over the seeds with its 95 % t interval, nats per token. The
    steps of a band share their weights' history, so their number adds nothing to n.

    Raises RRError for an unknown arm, a seed run twice, fewer than two shared seeds, a band
    without a shared step, or a loss that is not finite.

    Example:
        >>> from rrbook.stats import gap_by_step
        >>> curves = {"review": [5.0, 4.0, 3.0], "standard": [5.0, 4.1, 3.2]}
        >>> rows = [
        ...     {"rule": arm, "values": "own", "seed": seed,
        ...      "curve": dict(enumerate(curve))}
        ...     for arm, curve in curves.items()
        ...     for seed in (0, 1)
        ... ]
        >>> round(gap_by_step(rows, "review", "standard", [(1, 2)])[0]["mean"], 2)
        -0.15
    """
    known = {arm_of(row) for row in records}
    for name in (arm, baseline):
        if name not in known:
            raise RRError(f"no arm {name!r} in these runs: {nearest(name, known)}")
    mine, theirs = _by_seed(records, arm), _by_seed(records, baseline)
    seeds = sorted(mine.keys() & theirs.keys())
    out = []
    for first, last in bands:
        gaps, counts = [], []
        for seed in seeds:
            steps = [s for s in mine[seed] if first <= s <= last and s in theirs[seed]]
            if not steps:
                raise RRError(
                    f"steps {first} to {last}: seed {seed} of {arm} and {baseline} share none; "
                    "give a wider band"
                )
            a = numbers([mine[seed][s] for s in steps], f"the curve of {arm}, seed {seed}")
            b = numbers([theirs[seed][s] for s in steps], f"the curve of {baseline}, seed {seed}")
            gaps.append(float((a - b).mean()))
            counts.append(len(steps))
        over = interval(gaps)
        out.append(
            {
                "first": first,
                "last": last,
                "steps": min(counts),
                "n": over.n,
                "mean": over.mean,
                "lo": over.lo,
                "hi": over.hi,
            }
        )
    return out
