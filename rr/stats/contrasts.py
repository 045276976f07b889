"""A family of comparisons in one experiment, corrected together."""

import math
from collections.abc import Iterable, Mapping, Sequence

from ..config import RRError, nearest
from .compare import Paired, Welch, interval, paired, welch
from .effects import DESIGNS, detectable_gap
from .many import holm, losses_by_seed
from .tables import arm_of


def contrasts(
    rows: Iterable[Mapping],
    pairs: Sequence[tuple[str, str]],
    value: str = "val_loss",
    level: float = 0.95,
    power: float = 0.8,
    design: str = "paired",
) -> list[dict]:
    """Differences of named arms, one Holm correction over all of them.

    rows: results, one per arm and seed, with `seed`, `value` and either `arm` or `rule, values`,
    from which the arm's name is made as in `table()`. pairs: (arm, baseline), each once. value: the
    key that is compared: nats per token for the loss, a probability for "ece"; None or NaN where a
    run diverged. level: of the intervals. power: of `detectable`. design: "paired", or
    "independent" where runs of one seed share nothing: then the test is Welch's over all finished
    seeds, sd the pooled one of an arm, and n the smaller number of seeds.

    Returns one row per pair:

    * `arm, baseline`, and `n`, the seeds that both finished;
    * `difference, lo, hi, sd, p`: arm − baseline, paired t with its interval;
    * `holm`: p after Holm's correction over all pairs;
    * `detectable`: the true difference that n pairs with this sd find with the given power at level
      1 − `level`, before any correction; `detectable_corrected`: with that level divided by the
      number of pairs, which is the first step of Holm's correction.

    A pair with fewer than two shared seeds has None for all of these and counts in the family as
    p = 1. Raises RRError for an unknown arm or design, a pair given twice (either way round) or an
    arm with two runs of one seed.

    Example:
        >>> from rr.stats import contrasts
        >>> losses = {"review": [3.95, 3.97, 3.96], "constant": [4.00, 4.01, 4.02]}
        >>> rows = [
        ...     {"rule": rule, "values": "own", "seed": seed, "val_loss": loss}
        ...     for rule in losses
        ...     for seed, loss in enumerate(losses[rule])
        ... ]
        >>> row = contrasts(rows, [("review", "constant")])[0]
        >>> round(row["difference"], 3), row["n"]
        (-0.05, 3)
    """
    if design not in DESIGNS:
        raise RRError(f"no design {design!r}: {nearest(str(design), DESIGNS)}")
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
    out = [_contrast(values, arm, base, level, design) for arm, base in pairs]
    corrected = holm(1.0 if row["p"] is None else row["p"] for row in out)
    for row, p in zip(out, corrected, strict=True):
        measured = row["p"] is not None
        row["holm"] = p if measured else None
        for key, tests in (("detectable", 1), ("detectable_corrected", len(out))):
            row[key] = (
                detectable_gap(row["n"], row["sd"], power, (1 - level) / tests, design)
                if measured and row["sd"]
                else None
            )
    return out


def _contrast(
    values: Mapping[str, Mapping], arm: str, base: str, level: float, design: str
) -> dict:
    mine, theirs = (
        {seed: loss for seed, loss in values[name].items() if loss is not None}
        for name in (arm, base)
    )
    if design == "paired":
        seeds = sorted(mine.keys() & theirs.keys())
        mine, theirs = ({seed: losses[seed] for seed in seeds} for losses in (mine, theirs))
    row = {"arm": arm, "baseline": base, "n": min(len(mine), len(theirs))}
    if row["n"] < 2:
        return row | dict.fromkeys(("difference", "lo", "hi", "sd", "p"))
    a, b = list(mine.values()), list(theirs.values())
    test: Paired | Welch
    if design == "paired":
        test = paired(a, b, level)
        sd = test.sd
    else:
        test = welch(a, b, level)
        squares = sum((len(x) - 1) * interval(x).sd ** 2 for x in (a, b))
        sd = math.sqrt(squares / (len(a) + len(b) - 2))
    p = test.p if math.isfinite(test.p) else None  # equal arms without any spread
    return row | {"difference": test.mean, "lo": test.lo, "hi": test.hi, "sd": sd, "p": p}
