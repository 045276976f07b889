"""The gap of two arms during training: losses on identical batches, by bands of steps.

Arms of one seed read the same batches in the same order, so that the difference of their training
losses is paired at every step, like that of their held-out losses at the end.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ..config import RRError, nearest
from .compare import interval, numbers
from .results import scan
from .tables import arm_of


def read_curves(folder: str | Path) -> list[dict]:
    """One row per run below `folder`: its result, and `curve`, {step: training loss in nats}.

    A record keeps at most 200 lines of a run, chosen and never averaged, so some steps are absent;
    decay branches are left out. Raises RRError where there is no folder, no run, or a result or
    curve that is damaged.
    """
    found = scan(folder)
    if found.damaged:
        path, why = found.damaged[0]
        raise RRError(f"{path} is damaged: {why}; make the record again")
    rows = []
    for path in sorted(Path(folder).rglob("result.json")):
        row = scan(path.parent).rows[0]
        rows.append({**row, "id": row["id"].split("/")[0], "curve": _curve(path, row)})
    if not rows:
        raise RRError(f"no result.json below {folder}: a folder of finished runs is expected")
    return rows


def _curve(result: Path, row: Mapping) -> dict[int, float | None]:
    path = result.with_name("metrics.jsonl")
    try:
        text = path.read_bytes()
        if row.get("curve_sha256") not in (None, hashlib.sha256(text).hexdigest()):
            raise ValueError("it is not the curve of this result")
        lines = [json.loads(line) for line in text.decode().splitlines()]
        return {line["step"]: line["loss"] for line in lines
                if "loss" in line and "budget" not in line}  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RRError(f"{path} is damaged: {error}; make the record again") from None


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
    level: float = 0.95,
) -> list[dict]:
    """`arm` − `baseline` in training loss (nats per token), one row per band of steps.

    records: rows of `read_curves`, one per arm and seed. For each seed that both arms have, the
    difference is averaged over the steps first … last that both curves hold; `mean, lo, hi` are the
    mean and t interval of these averages over the `n` seeds. Row: `first, last, steps` (per seed,
    the fewest), `n, mean, lo, hi`. The steps of a band share their weights' history, so their
    number adds nothing to n.

    Raises RRError for an unknown arm, a seed run twice, fewer than two shared seeds, a band
    without a shared step, or a loss that is not finite.
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
        over = interval(gaps, level)
        out.append({"first": first, "last": last, "steps": min(counts), "n": over.n,
                    "mean": over.mean, "lo": over.lo, "hi": over.hi})  # fmt: skip
    return out
