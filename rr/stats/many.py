"""Several comparisons together: every test of each, corrected for their number."""

import math
from collections.abc import Iterable, Mapping, Sequence

from ..config import RRError, nearest
from .compare import bootstrap, differences, paired, sign_test, signed_rank, welch
from .effects import cohen_dz, hedges_g

TESTS = ("paired", "welch", "signed_rank", "sign")


def _probabilities(p: Iterable[float]) -> list[float]:
    p = list(p)
    for i, value in enumerate(p):
        if not (isinstance(value, int | float) and 0 <= value <= 1):
            raise RRError(
                f"p-values must be from 0 to 1, got {value!r} at place {i + 1} of {len(p)}: "
                "a test that could not be made counts as 1"
            )
    return [float(value) for value in p]


def bonferroni(p: Iterable[float]) -> list[float]:
    """Adjusted p-values min(1, m·p) of m tests.

    If only adjusted p ≤ α are claimed, the chance of any false claim is at most α. Holds under any
    dependence among the tests. Raises RRError for values outside [0, 1]. Source: Dunn 1961.

    Example:
        >>> from rr.stats import bonferroni
        >>> bonferroni([0.01, 0.04])
        [0.02, 0.08]
    """
    p = _probabilities(p)
    return [min(1.0, len(p) * value) for value in p]


def holm(p: Iterable[float]) -> list[float]:
    """Holm's step-down adjusted p-values, in the order given.

    With p sorted ascending, q_(i) = max over j ≤ i of min(1, (m − j + 1)·p_(j)). The same
    guarantee as Bonferroni's under any dependence, and never less power. Raises RRError for values
    outside [0, 1]. Source: Holm 1979.

    Example:
        >>> from rr.stats import holm
        >>> holm([0.01, 0.04])
        [0.02, 0.04]
    """
    p = _probabilities(p)
    adjusted, floor = [0.0] * len(p), 0.0
    for place, i in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        floor = max(floor, min(1.0, (len(p) - place) * p[i]))
        adjusted[i] = floor
    return adjusted


def losses_by_seed(rows: Iterable[Mapping], value: str, where: str) -> dict[int, float | None]:
    """Value by seed; None where the run diverged."""
    values = {}
    for row in rows:
        if row["seed"] in values:
            raise RRError(f"{where} has two runs of seed {row['seed']}: give one per seed")
        number: float | None = row[value]
        if number is None or not math.isfinite(number):
            values[row["seed"]] = None
        else:
            values[row["seed"]] = float(number)
    return values


def family(
    rows: Sequence[Mapping],
    arm: str,
    baselines: Sequence[str],
    by: str = "rung",
    value: str = "val_loss",
    level: float = 0.95,
) -> list[dict]:
    """`arm` against each baseline in each group, by every test, corrected over all of them.

    rows: one per run, with the keys "arm", "seed" and those named by `by` and `value`. arm,
    baselines: names of arms. by: the key of the groups; arms are compared within one. value: the
    key that is compared, in nats per token; None or NaN: diverged. level: of the intervals.

    Returns one row per comparison, groups in the order met:

    * the group under the name `by`, `arm, baseline`;
    * `pairs`: seeds that both finished; `unpaired`: seeds that only one finished; `diverged`:
      (arm, seed);
    * `difference, lo, hi, sd`: arm − baseline over the pairs, t interval; `bootstrap_lo,
      bootstrap_hi`: percentile interval; `dz, g`: as `cohen_dz()` and `hedges_g()`;
    * for each test of paired, welch (all finished seeds of both), signed_rank and sign: `TEST_p`,
      `TEST_holm`, `TEST_bonferroni`; `paired_t, paired_df, welch_t, welch_df`;
    * `p_min`: the smallest p that the signs of so many pairs can give; `notes`.

    A comparison that cannot be made (missing arm, fewer than two pairs) stays, marked in `notes`,
    with p None; it counts in the family as p = 1, so that a failure never eases the correction of
    the others. Raises RRError where the arm or a baseline is in no group, or a seed is twice in
    one.

    Example:
        >>> from rr.stats import family
        >>> losses = {"review": [3.95, 3.97, 3.96], "constant": [4.00, 4.01, 4.02]}
        >>> rows = [
        ...     {"arm": arm, "rung": "mini", "seed": seed, "val_loss": loss}
        ...     for arm in losses
        ...     for seed, loss in enumerate(losses[arm])
        ... ]
        >>> row = family(rows, "review", ["constant"])[0]
        >>> row["pairs"], round(row["difference"], 3)
        ([0, 1, 2], -0.05)
    """
    known = {row["arm"] for row in rows}
    for name in (arm, *baselines):
        if name not in known:
            raise RRError(f"no arm {name!r} in these runs: {nearest(name, known)}")
    out = []
    for group in dict.fromkeys(row[by] for row in rows):
        inside = [row for row in rows if row[by] == group]
        runs = {
            name: losses_by_seed(
                [r for r in inside if r["arm"] == name], value, f"{name} at {group}"
            )
            for name in (arm, *baselines)
        }
        for base in baselines:
            named = {by: group, "arm": arm, "baseline": base}
            out.append(named | _compare(runs, arm, base, level))
    for test in TESTS:
        p = [1.0 if row[f"{test}_p"] is None else row[f"{test}_p"] for row in out]
        for name, adjust in (("holm", holm), ("bonferroni", bonferroni)):
            for row, adjusted in zip(out, adjust(p), strict=True):
                row[f"{test}_{name}"] = None if row[f"{test}_p"] is None else adjusted
    return out


def _finite(x: float) -> float | None:
    return x if math.isfinite(x) else None


def _compare(runs: dict[str, dict], arm: str, base: str, level: float) -> dict:
    mine, theirs = runs[arm], runs[base]
    done = {name: {s: v for s, v in runs[name].items() if v is not None} for name in (arm, base)}
    pairs = sorted(done[arm].keys() & done[base].keys())
    row = {
        "pairs": pairs,
        "unpaired": sorted(done[arm].keys() ^ done[base].keys()),
        "diverged": [(n, s) for n in (arm, base) for s, v in runs[n].items() if v is None],
        **dict.fromkeys(("difference", "lo", "hi", "sd", "bootstrap_lo", "bootstrap_hi")),
        **dict.fromkeys(("dz", "g", "p_min", "paired_t", "paired_df", "welch_t", "welch_df")),
        **{f"{test}_p": None for test in TESTS},
        "notes": [],
    }
    row["notes"] += [f"no runs of {name}" for name in (arm, base) if not runs[name]]
    row["notes"] += [f"{name}: seed {seed} diverged" for name, seed in row["diverged"]]
    if mine and theirs and row["unpaired"]:
        row["notes"].append(f"not paired: seed {', '.join(map(str, row['unpaired']))}")
    all_mine, all_theirs = list(done[arm].values()), list(done[base].values())
    if min(len(all_mine), len(all_theirs)) < 2:
        row["notes"].append("fewer than two finished seeds in an arm: no test")
        return row
    apart = welch(all_mine, all_theirs, level)
    row |= {"welch_t": _finite(apart.t), "welch_df": _finite(apart.df), "welch_p": _finite(apart.p)}
    if len(set(all_mine)) > 1 or len(set(all_theirs)) > 1:
        row["g"] = hedges_g(all_mine, all_theirs, level).value
    if len(pairs) < 2:
        row["notes"].append("fewer than two pairs: no paired test")
        return row
    a, b = [done[arm][s] for s in pairs], [done[base][s] for s in pairs]
    test, ranks = paired(a, b, level), signed_rank(a, b)
    drawn = bootstrap(differences(a, b), level, "percentile")
    row |= {
        "difference": test.mean,
        "lo": test.lo,
        "hi": test.hi,
        "sd": test.sd,
        "bootstrap_lo": drawn.lo,
        "bootstrap_hi": drawn.hi,
        "dz": cohen_dz(a, b, level).value if test.sd else None,
        "paired_t": _finite(test.t),
        "paired_df": test.df,
        "paired_p": _finite(test.p),
        "signed_rank_p": ranks.p,
        "sign_p": sign_test(a, b).p,
        "p_min": ranks.p_min,
    }
    return row
