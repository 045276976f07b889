"""Arms of an experiment against one another: every test, corrected for the number of comparisons.

A diverged run, a seed that one arm lacks, a seed that was run twice: each is marked, none is
dropped silently.
"""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real

import numpy as np
import pandas as pd

from rr.errors import RRError, nearest

from .effects import DESIGNS, detectable_gap, sd_interval, seeds_needed
from .frames import as_frame, as_rows
from .inference import (
    bonferroni,
    bootstrap,
    constant,
    differences,
    fraction,
    holm,
    interval,
    paired,
    pooled_sd,
    sign_test,
    welch,
)
from .results import GROUP, TOLD, arm_named, arm_of, group_key

TESTS = ("paired", "welch", "sign")
# what is None where it cannot be computed
NUMBERS = (
    "difference", "lo", "hi", "sd", "p", "holm", "bonferroni", "bootstrap_lo", "bootstrap_hi",
    "p_min", "paired_t", "paired_df", "welch_t", "welch_df",
    *(f"{test}_{kind}" for test in TESTS for kind in ("p", "holm", "bonferroni")),
    "detectable", "detectable_corrected", "needed", "needed_lo", "needed_hi", "needed_corrected",
)  # fmt: skip
STATUSES = ("finished", "diverged", "unfinished")
SAME = "all seeds of {} gave the same loss: was the seed used?"


@dataclass
class Arm:
    """The runs of one arm in one group."""

    name: str
    runs: list[dict]
    value: str

    def seeds(self, status: str | None = None) -> list:
        """Seeds of the runs with this status, or of all."""
        return sorted(r["seed"] for r in self.runs if status in (None, _status(r, self.value)))

    @property
    def twice(self) -> list:
        """Seeds that were run more than once."""
        return sorted(seed for seed, n in Counter(self.seeds()).items() if n > 1)

    @property
    def finished(self) -> dict:
        """Value by seed, of every seed that has exactly one run, which finished."""
        return {
            run["seed"]: run[self.value]
            for run in sorted(self.runs, key=lambda run: run["seed"])
            if _status(run, self.value) == "finished" and run["seed"] not in self.twice
        }

    @property
    def same_losses(self) -> bool:
        """Whether several seeds gave one value."""
        return len(self.values) > 1 and constant(self.values)

    @property
    def values(self) -> list[float]:
        """The values of all runs that finished."""
        return [r[self.value] for r in self.runs if _status(r, self.value) == "finished"]


def _status(run: Mapping, value: str) -> str:
    """Whether a run "finished", "diverged", as one without a value has, or is "unfinished"."""
    number = run[value]
    if number is None or not math.isfinite(number):
        return "unfinished" if run.get("status") == "unfinished" else "diverged"
    return str(run.get("status") or "finished")


def compare(
    runs: pd.DataFrame | Iterable[Mapping],
    baseline: str | None = None,
    pairs: Sequence[tuple[str, str]] | None = None,
    by: str | Sequence[str] | None = None,
    design: str = "paired",
    value: str = "val_loss",
    level: float = 0.95,
    power: float = 0.8,
) -> pd.DataFrame:
    """Compare arms: every arm with one `baseline`, or chosen `pairs` of (arm, baseline).

    runs: of `read_results()` or `read_table()`, or rows of your own: one per run, with `seed`, the
    key `value`, either `arm` or `rule` and `values`, and maybe `status`. value: what is compared,
    nats per token for the loss; None or NaN where a run diverged. design: "paired" where runs of
    one seed saw the same data in the same order, the difference is the mean over shared seeds and
    the test paired t; "independent": Welch's test over all finished seeds. level: of all intervals;
    tests are at α = 1 − level. power: of `detectable` and `needed`.

    by: columns within which runs are compared. With a baseline the default are those that make
    runs of `rr` comparable (rung, protocol, corpus, tokenizer, loops, batch, steps, flavour,
    precision, warm-up, optimiser, evaluation, settings that no option gives), and an arm is a rule
    with its value rule, "review + identity", with its learning rate where it was run at several (it
    meets the baseline at its own rate, or, where they share fewer than two seeds there, at the one
    with most shared seeds), and its content where a reader's own rule changed. With pairs the
    default is one group.

    Returns a DataFrame. With a baseline it has one row per arm of each group, the baseline first;
    with pairs one row per pair and group:

    * the columns of `by`; `arm, baseline` (None in the baseline's own row), `design, level, power`;
    * `seeds`, finished; `n, mean, mean_lo, mean_hi` of the value over them, t interval;
      `n_baseline`: those of the baseline; `diverged, unfinished`: seeds;
    * where paired, else empty: `missing`: seeds that the baseline has and the arm has not run;
      `pairs`: seeds that both finished; `differences` at each;
    * `difference, lo, hi, sd`: arm − baseline with its interval (sd: of the differences, or pooled
      within an arm);
    * `p, holm, bonferroni`: of the design's test; `TEST_p, TEST_holm, TEST_bonferroni` for TEST in
      paired, welch and sign; `paired_t, paired_df, welch_t, welch_df`; `p_min`: the smallest p that
      the signs of so many pairs can give;
    * `bootstrap_lo, bootstrap_hi`: percentile interval over the pairs, which covers at most
      1 − 2^(1−n);
    * `detectable`: the true difference that so many seeds find with this power; `needed`: seeds per
      arm that find a true difference as large as the observed one; `needed_lo, needed_hi`: what the
      interval of sd makes of it; `_corrected`: the same at the first step of Holm's correction;
    * `comparisons`: their number, which the corrections are for: with a baseline every arm that has
      run two seeds of it, with pairs all. One without a p counts as p = 1, so that a failure never
      eases the correction of the others. None where the row does not count;
    * `notes`: why something is missing (NaN).

    Where the losses of an arm, or the differences, are equal but for rounding, there is no test, no
    interval and no number of seeds, and a note asks whether the seed was used. A run found twice
    (same `id`, same value) counts once; a seed with two different runs, or with two values of one
    run, is noted and not paired, or refused where pairs are given. Raises RRError for an unknown
    arm or design, for a pair given twice, and for a run without its arm, seed or value, with text
    for a value, or with another status.

    Example:
        >>> from rrstudy.stats import compare
        >>> losses = {"review": [3.95, 3.97, 3.95], "constant": [4.00, 4.01, 4.02]}
        >>> rows = [
        ...     {"arm": arm, "seed": seed, "val_loss": loss}
        ...     for arm in losses
        ...     for seed, loss in enumerate(losses[arm])
        ... ]
        >>> table = compare(rows, baseline="constant")
        >>> table.set_index("arm").difference.round(3)["review"]
        np.float64(-0.053)
    """
    rows = _checked(runs, value)
    fraction(level, "level")
    if design not in DESIGNS:
        raise RRError(f"no design {design!r}: {nearest(str(design), DESIGNS)}")
    if (baseline is None) == (pairs is None):
        raise RRError("give either a baseline or pairs of (arm, baseline)")
    known = {name for row in rows for name in row}
    if by is None:
        own = baseline is not None and any("rule" in row for row in rows)
        by = [name for name in GROUP + TOLD if own and name in known]
    else:
        by = [by] if isinstance(by, str) else list(by)
        if absent := [name for name in by if name not in known]:
            raise RRError(f"no column {absent[0]!r} to group by: {nearest(absent[0], known)}")
    if pairs is None:
        name = str(baseline)
        # An arm of a tidy table is any text; a name without options is canonical without torch.
        if (":" in name or " + " in name) and any("rule" in row for row in rows):
            name = arm_named(name)
        out = _with_baseline(rows, name, list(by), design, value, level)
    else:
        out = _with_pairs(rows, pairs, list(by), design, value, level)
    _correct(out, design)
    for row in out:
        _plan(row, design, level, power)
    return as_frame(out)


def _checked(runs: pd.DataFrame | Iterable[Mapping], value: str) -> list[dict]:
    """The runs as rows, one that was found twice (same `id`, same end) once.

    Two ends of one id, as of two machines, both stay: their seed was run more than once. RRError
    names what is wrong.
    """
    rows = as_rows(runs)
    for row in rows:
        arm = ("rule", "values") if "rule" in row else ("arm",)
        if missing := [name for name in ("seed", value, *arm) if name not in row]:
            raise RRError(
                f"a run without {missing[0]!r}: every run needs its seed, its {value} and its arm, "
                "or its rule and values"
            )
        if not isinstance(row[value], Real | None):
            raise RRError(f"{value} must be a number, None where there is none, got {row[value]!r}")
        if row.get("status") and row["status"] not in STATUSES:
            raise RRError(f"status must be one of {', '.join(STATUSES)}, got {row['status']!r}")
    ends = {}
    for place, row in enumerate(rows):
        status = _status(row, value)
        end = status, row[value] if status == "finished" else None
        ends[place if row.get("id") is None else row["id"], end] = row
    return list(ends.values())


# ---- Which arm with which ------------------------------------------------------------------------


def _groups(rows: Sequence[dict], by: Sequence[str]) -> dict[tuple, list[dict]]:
    groups = defaultdict(list)
    for row in rows:
        groups[group_key(row, by)].append(row)
    return groups


def _with_pairs(
    rows: Sequence[dict], pairs: Sequence[tuple], by: list[str], design: str, value: str, level
) -> list[dict]:
    known = {arm_of(row) for row in rows}
    seen: set[frozenset[str]] = set()
    for pair in pairs:
        for name in pair:
            if name not in known:
                raise RRError(f"no arm {name!r} in these runs: {nearest(name, known)}")
        if len(set(pair)) < 2 or frozenset(pair) in seen:
            raise RRError(f"{' − '.join(pair)} is not a new comparison: give each pair once")
        seen.add(frozenset(pair))
    out = []
    for members in _groups(rows, by).values():
        group = {name: members[0].get(name) for name in by}
        arms = {
            name: Arm(name, [row for row in members if arm_of(row) == name], value)
            for name in dict.fromkeys(itertools.chain.from_iterable(pairs))
        }
        for arm in arms.values():
            if arm.twice:
                raise RRError(f"{arm.name} has two runs of seed {arm.twice[0]}: give one per seed")
        for name, base in pairs:
            row: dict = group | _described(arms[name], design, level)
            _compare(row, arms[name], arms[base], design, level)
            row["notes"] += [f"no runs of {a}" for a in (name, base) if not arms[a].runs]
            out.append(row | {"comparisons": 1})
    return out


def _with_baseline(
    rows: Sequence[dict], baseline: str, by: list[str], design: str, value: str, level: float
) -> list[dict]:
    known = {arm_of(row) for row in rows}
    if baseline not in known:
        raise RRError(f"no baseline {baseline!r} in these runs: {nearest(baseline, known)}")
    groups = _groups(rows, by)
    out = []
    for key in sorted(groups):
        members = groups[key]
        group = {name: members[0].get(name) for name in by}
        arms = _labelled(members, value)
        references = [arm for arm in arms if arm_of(arm.runs[0]) == baseline]
        for arm in sorted(arms, key=lambda arm: (arm not in references, arm.name)):
            row: dict = group | _described(arm, design, level)
            row["notes"] += [
                f"seed {seed} was run more than once: not paired" for seed in arm.twice
            ]
            if arm not in references:
                reference = _reference(row, arm, references)
                if reference is not None:
                    row["comparisons"] = _compare(row, arm, reference, design, level)
            out.append(row)
    return out


def _contents(row: Mapping) -> tuple[str, str]:
    """Hashes of the reader's own rules; "" where a rule ships with `rr`."""
    return row.get("rule_content") or "", row.get("values_content") or ""


def _labelled(rows: Sequence[dict], value: str) -> list[Arm]:
    """The arms of a group; one with several learning rates or contents is several."""
    by_name = defaultdict(list)
    for row in rows:
        by_name[arm_of(row)].append(row)
    arms = []
    for name, runs in by_name.items():
        rates = sorted({run.get("lr") or 0.0 for run in runs}) if "rule" in runs[0] else [None]
        contents = sorted({_contents(run) for run in runs})
        for rate, content in itertools.product(rates, contents):
            label = name if len(rates) == 1 else f"{name} (lr {rate:g})"
            if len(contents) > 1:
                label += f" [{' '.join(part[:6] for part in content if part)}]"
            same = [
                run
                for run in runs
                if (rate is None or (run.get("lr") or 0.0) == rate) and _contents(run) == content
            ]
            if same:
                arms.append(Arm(label, same, value))
    return arms


def _described(arm: Arm, design: str, level: float) -> dict:
    """A row about one arm, nothing compared yet."""
    runs, values = arm.runs, arm.values
    mean = interval(values, level) if len(values) > 1 else None
    row: dict = {"arm": arm.name}
    if runs and "rule" in runs[0]:
        row |= {name: runs[0].get(name) for name in ("rule", "values", "lr")}
    return row | {
        "baseline": None,
        "design": design,
        "level": level,
        "power": None,
        "seeds": arm.seeds("finished"),
        "n": len(values),
        "n_baseline": None,
        "mean": math.fsum(values) / len(values) if values else None,
        "mean_lo": _finite(mean.lo) if mean else None,
        "mean_hi": _finite(mean.hi) if mean else None,
        **{status: arm.seeds(status) for status in ("diverged", "unfinished")},
        "missing": [],
        "pairs": [],
        "differences": [],
        **dict.fromkeys(NUMBERS),
        "comparisons": None,
        "notes": [SAME.format(arm.name)] if arm.same_losses else [],
    }


def _reference(row: dict, arm: Arm, references: Sequence[Arm]) -> Arm | None:
    """The baseline's arm to compare with; None, and a note, where none can be chosen."""
    if not references:
        row["notes"].append("no baseline to compare with")
        return None
    shared = {one.name: len(set(arm.seeds()) & set(one.seeds())) for one in references}
    own = [one for one in references if one.runs[0].get("lr") == arm.runs[0].get("lr")]
    best = [one for one in references if shared[one.name] == max(shared.values())]
    enough = max((shared[one.name] for one in own), default=0) >= 2
    chosen = own if enough or len(best) > 1 else best
    if not chosen:
        row["notes"].append("no baseline to compare with: none at this learning rate")
        return None
    if len(chosen) > 1:
        row["notes"].append("the baseline's rule has changed: several candidates")
        return None
    return chosen[0]


# ---- One comparison ------------------------------------------------------------------------------


def _compare(row: dict, arm: Arm, base: Arm, design: str, level: float) -> int | None:
    """Fill in the comparison of an arm with its baseline; 1 where both have run two seeds of it."""
    mine, theirs = arm.finished, base.finished
    mine_run, theirs_run = set(arm.seeds()), set(base.seeds())
    shared = sorted(mine.keys() & theirs.keys())
    row |= {
        "baseline": base.name,
        "n_baseline": len(base.values),
        "pairs": shared if design == "paired" else [],
        "missing": sorted(theirs_run - mine_run) if design == "paired" else [],
    }
    if lost := [seed for seed in base.seeds("diverged") if seed in mine_run]:
        row["notes"].append(f"{base.name} diverged at seed {_listed(lost)}")
    if short := [seed for seed in base.seeds("unfinished") if seed in mine_run]:
        row["notes"].append(f"{base.name} is unfinished at seed {_listed(short)}")
    alone = sorted(mine_run - theirs_run)
    if alone and theirs_run and design == "paired":
        row["notes"].append(f"seed {_listed(alone)} not run by {base.name}")
    if base.same_losses:
        row["notes"].append(SAME.format(base.name))
    _test(row, mine, theirs, shared, design, level)
    more = _more_params(arm, base)
    if more is not None and row["difference"] is not None:
        row["notes"].append(f"{100 * abs(more):.0f} % {'more' if more > 0 else 'fewer'} parameters")
    if arm.same_losses or base.same_losses:  # copies of one run are no sample
        row |= dict.fromkeys(name for name in NUMBERS if name not in ("difference", "sd"))
    common = mine_run & theirs_run
    counted = len(common) if design == "paired" else min(len(mine_run), len(theirs_run))
    return 1 if counted >= 2 else None


def _more_params(arm: Arm, base: Arm) -> float | None:
    """By which share an arm is larger than its baseline; None up to 3 %, or where it is untold.

    So far may an arm of `nano` be from Review's size, half a step of the MLP's width.
    """
    sizes = [one.runs[0].get("params") if one.runs else None for one in (arm, base)]
    mine, theirs = (size if isinstance(size, int | float) else 0 for size in sizes)
    more = mine / theirs - 1 if mine and theirs else 0
    return more if abs(more) > 0.03 else None


def _test(row: dict, mine: dict, theirs: dict, shared: list, design: str, level: float) -> None:
    """Every test of one comparison, those that can be made."""
    all_a, all_b = list(mine.values()), list(theirs.values())
    enough = min(len(all_a), len(all_b)) >= 2
    if enough and not (constant(all_a) and constant(all_b)):
        unpaired = welch(all_a, all_b, level)
        row |= {"welch_t": unpaired.t, "welch_df": unpaired.df, "welch_p": unpaired.p}
    if len(shared) >= 2:
        a, b = [mine[seed] for seed in shared], [theirs[seed] for seed in shared]
        test, signs, gaps = paired(a, b, level), sign_test(a, b), differences(a, b)
        row["paired_df"] = test.df
        if test.sd:
            resampled = bootstrap(gaps, level)
            row |= {"paired_t": test.t, "paired_p": test.p}
            row |= {"sign_p": signs.p, "p_min": signs.p_min}
            row |= {"bootstrap_lo": resampled.lo, "bootstrap_hi": resampled.hi}
        if design == "paired":
            row |= {"difference": test.mean, "sd": test.sd, "differences": gaps.tolist()}
            row |= {"lo": _finite(test.lo), "hi": _finite(test.hi), "p": row["paired_p"]}
            if not test.sd and not row["notes"]:
                row["notes"].append(f"all {test.n} differences are equal: no test")
            return
    if design == "paired":
        row["notes"].append("fewer than two pairs: no test")
    elif not enough:
        row["notes"].append("fewer than two finished seeds in an arm: no test")
    else:
        over = welch(all_a, all_b, level)
        sd = pooled_sd([all_a, all_b])[0] if not math.isnan(over.p) else 0.0
        row |= {"difference": over.mean, "lo": _finite(over.lo), "hi": _finite(over.hi)}
        row |= {"sd": sd, "p": row["welch_p"], "tested": (len(all_a), len(all_b))}


def _finite(x: float) -> float | None:
    return x if math.isfinite(x) else None


def _listed(seeds: Iterable) -> str:
    return ", ".join(map(str, seeds))


# ---- All comparisons together --------------------------------------------------------------------


def _correct(rows: list[dict], design: str) -> None:
    """Correct each test for the number of comparisons; one without a p counts as p = 1."""
    family = [row for row in rows if row["comparisons"]]
    for row in family:
        row["comparisons"] = len(family)
    for test in TESTS:
        p = [1.0 if row[f"{test}_p"] is None else row[f"{test}_p"] for row in family]
        for name, adjust in (("holm", holm), ("bonferroni", bonferroni)):
            for row, adjusted in zip(family, adjust(p), strict=True):
                row[f"{test}_{name}"] = None if row[f"{test}_p"] is None else adjusted
    test = "paired" if design == "paired" else "welch"
    for row in family:
        row |= {name: row[f"{test}_{name}"] for name in ("holm", "bonferroni")}


def _plan(row: dict, design: str, level: float, power: float) -> None:
    """What so many seeds can find, and how many the observed difference would take."""
    row["power"] = power
    sizes = row.pop("tested", ())
    if row["p"] is None:
        return
    if design == "paired":
        n = len(row["pairs"])
        df = n - 1
    else:
        n, df = min(sizes), sum(sizes) - 2
    sd, alpha, tests = row["sd"], 1 - level, row["comparisons"] or 1
    row["detectable"] = detectable_gap(n, sd, power, alpha, design)
    row["detectable_corrected"] = detectable_gap(n, sd, power, alpha / tests, design)
    sd_lo, sd_hi = sd_interval(sd, df, level)
    for name, noise, level_of_test in (
        ("needed", sd, alpha),
        ("needed_corrected", sd, alpha / tests),
        ("needed_lo", sd_lo, alpha),
        ("needed_hi", sd_hi, alpha),
    ):
        try:
            row[name] = seeds_needed(row["difference"], noise, power, level_of_test, design)
        except RRError:  # a difference of nothing, or more seeds than anybody trains
            row[name] = None


def spread(
    runs: pd.DataFrame | Iterable[Mapping], design: str, value: str = "val_loss"
) -> tuple[float, int, str]:
    """The standard deviation that `power()` needs, from runs at hand.

    "independent": of one arm over its seeds, pooled over the arms, Σ(n_i − 1) degrees of freedom;
    one arm run twice is enough. "paired": of the differences at equal seeds, pooled over all pairs
    of arms that share two seeds or more; df are what a level for each arm and each seed leaves of
    the runs, (k − 1)·(n − 1) where k arms have the same n seeds. Learning rates are separate arms;
    a run found twice (same `id`, same value) counts once.

    Returns sd, its degrees of freedom and words that name its source. Raises RRError where no arm
    (or pair) has two values, where all values are equal but for rounding, which is no spread, for
    runs that cannot be compared with each other, and as `compare()` for a run.

    Example:
        >>> from rrstudy.stats import spread
        >>> rows = [{"arm": "a", "seed": s, "val_loss": x} for s, x in enumerate([3.1, 3.3])]
        >>> sd, df, source = spread(rows, "independent")
        >>> round(sd, 3), df
        (0.141, 1)
    """
    if design not in DESIGNS:
        raise RRError(f"no design {design!r}: {nearest(str(design), DESIGNS)}")
    rows = _checked(runs, value)
    if len(_groups(rows, GROUP + TOLD)) > 1:
        differ = [name for name in GROUP + TOLD if len(_groups(rows, [name])) > 1]
        raise RRError(f"the runs differ in their {', '.join(differ)}: give those of one group")
    groups, used = [], set()
    arms = _labelled(rows, value)
    for arm in arms:
        if arm.same_losses:
            raise RRError(SAME.format(arm.name))
    if design == "independent":
        for arm in arms:
            if len(arm.finished) > 1:
                groups.append(list(arm.finished.values()))
                used.add(arm.name)
        if not groups:
            raise RRError("no arm has two runs that finished: a spread needs them")
        sd, df = pooled_sd(groups)
        runs_used = sum(map(len, groups))
        return sd, df, f"{runs_used} runs of {_listed(sorted(used))}"
    joined = set()  # (arm, seed)
    for one, other in itertools.combinations(arms, 2):
        a, b = one.finished, other.finished
        shared = sorted(a.keys() & b.keys())
        if len(shared) < 2:
            continue
        groups.append(differences([a[s] for s in shared], [b[s] for s in shared]))
        size = max(abs(x) for x in (*one.values, *other.values))
        if constant(groups[-1], size):
            raise RRError(f"all differences of {one.name} and {other.name} are equal: no spread")
        joined |= {(name, seed) for name in (one.name, other.name) for seed in shared}
    if not groups:
        raise RRError(
            "no two arms share two seeds that finished: a spread of differences needs them"
        )
    sd, _ = pooled_sd(groups)
    # a level for each arm and each seed is fitted; arms that share no seed are further layouts
    effects = sorted({("arm", arm) for arm, _ in joined} | {("seed", seed) for _, seed in joined})
    layout = [
        [effect in (("arm", arm), ("seed", seed)) for effect in effects] for arm, seed in joined
    ]
    df = len(joined) - int(np.linalg.matrix_rank(np.array(layout, float)))
    return sd, df, f"differences at equal seeds of {_listed(sorted({arm for arm, _ in joined}))}"
