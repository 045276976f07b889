"""A family of comparisons in one experiment, corrected together."""

from collections.abc import Iterable, Mapping, Sequence

from ..config import RRError, nearest
from .compare import paired
from .effects import detectable_gap
from .many import holm, losses_by_seed
from .tables import arm_of


def contrasts(
    rows: Iterable[Mapping],
    pairs: Sequence[tuple[str, str]],
    value: str = "val_loss",
    level: float = 0.95,
    power: float = 0.8,
) -> list[dict]:
    """Paired differences of named arms, one Holm correction over all of them.

    rows: results, one per arm and seed (arms as `stats.table` names them), with `value`: nats per
    token for the loss, a probability for "ece"; None or NaN where a run diverged. pairs: (arm,
    baseline), each once. One row per pair: `arm, baseline, n` (seeds that both finished),
    `difference, lo, hi, sd, p` (arm − baseline, paired t), `holm` (p over the whole family) and
    `detectable`, the true difference that n pairs with this sd find with the given power at level
    1 − `level`, before any correction; `detectable_corrected` with that level divided by the number
    of pairs, which is the first step of Holm's correction.

    A pair with fewer than two shared seeds has None for all of these and counts in the family as
    p = 1. Raises RRError for an unknown arm, a pair given twice (either way round) or an arm with
    two runs of one seed.
    """
    runs: dict[str, list[Mapping]] = {}
    for row in rows:
        runs.setdefault(arm_of(row), []).append(row)
    seen: set[frozenset[str]] = set()
    for pair in pairs:
        for name in pair:
            if name not in runs:
                raise RRError(f"no arm {name!r} in these runs: {nearest(name, runs)}")
        if len(set(pair)) < 2 or frozenset(pair) in seen:
            raise RRError(f"{' − '.join(pair)} is not a new comparison: give each pair once")
        seen.add(frozenset(pair))
    values = {name: losses_by_seed(mine, value, name) for name, mine in runs.items()}
    out = [_contrast(values, arm, base, level) for arm, base in pairs]
    corrected = holm(1.0 if row["p"] is None else row["p"] for row in out)
    for row, p in zip(out, corrected, strict=True):
        measured = row["p"] is not None
        row["holm"] = p if measured else None
        for key, tests in (("detectable", 1), ("detectable_corrected", len(out))):
            row[key] = (
                detectable_gap(row["n"], row["sd"], power, (1 - level) / tests)
                if measured and row["sd"] else None
            )  # fmt: skip
    return out


def _contrast(values: Mapping[str, Mapping], arm: str, base: str, level: float) -> dict:
    mine, theirs = values[arm], values[base]
    seeds = [s for s in sorted(mine) if mine[s] is not None and theirs.get(s) is not None]
    row = {"arm": arm, "baseline": base, "n": len(seeds)}
    if len(seeds) < 2:
        return row | dict.fromkeys(("difference", "lo", "hi", "sd", "p"))
    test = paired([mine[s] for s in seeds], [theirs[s] for s in seeds], level)
    return row | {"difference": test.mean, "lo": test.lo, "hi": test.hi, "sd": test.sd, "p": test.p}
