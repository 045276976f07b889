"""Tables: one row per arm of each group of comparable runs, compared with its baseline.

A diverged run, a seed that one arm lacks, a seed that was run twice: each is marked, none is
dropped silently.
"""

import itertools
import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..config import RRError, nearest
from .compare import bootstrap, differences, paired, welch
from .many import holm
from .results import GROUP, TOLD

TESTS = ("p", "welch_p")  # each corrected over the comparisons of the table: holm, welch_holm
FEW = "fewer than two pairs: no test"


def _named(rule: str) -> str:
    """A rule's name in tables: that of `folder/my_rule.py:Class` without its folder."""
    path, dot_py, rest = rule.partition(".py:")
    return f"{Path(path).name}{dot_py}{rest}"


def arm_of(row: Mapping) -> str:
    """The name of a run's arm: its rule, with its value rule where that is not `own`.

    A row of another trainer's logs names its arm itself.
    """
    if "rule" not in row:
        return row["arm"]
    rule, values = _named(row["rule"]), _named(row["values"])
    return rule if values == "own" else f"{rule} + {values}"


def _contents(row: dict) -> tuple[str, str]:
    """Hashes of the reader's own rules; "" where a rule ships with `rr`."""
    return row.get("rule_content", ""), row.get("values_content", "")


def group_key(row: dict) -> tuple[str, ...]:
    """A key that is equal for two runs exactly where they are comparable."""
    return tuple(v if isinstance(v := row[name], str) else json.dumps(v) for name in GROUP) + tuple(
        json.dumps(row.get(name)) for name in TOLD
    )


def table(rows: Sequence[dict], baseline: str = "standard") -> list[dict]:
    """One tidy row per arm of each comparable group of runs, the baseline first.

    rows: as `read_results()` gives them. baseline: the rule that the others are compared with. Runs
    are comparable where rung, protocol, corpus, tokenizer, loops, batch, steps, flavour, precision,
    warm-up, optimiser and evaluation agree. An arm is a rule with its value rule, "review +
    identity", with its learning rate where it was run at several, and with its content where a
    reader's own rule changed.

    Returns rows with the group's fields, then

    * `arm, rule, values, lr`; `seeds`: with a finite loss; `n, mean`: of val_loss over those seeds,
      nats per token; `diverged`: seeds;
    * `baseline`: the arm compared with; `pairs`: seeds that both finished; `missing`: seeds that
      the baseline has and this arm has not run;
    * `difference, lo, hi, sd, t, df, p`: arm − baseline over the pairs, paired t with its interval;
    * `bootstrap_lo, bootstrap_hi`: percentile interval of the same mean, which over n pairs covers
      at most 1 − 2^(1−n);
    * `welch_t, welch_df, welch_p`: unpaired, over all finished seeds of both;
    * `holm, welch_holm`: p-values after Holm's correction for the table's `comparisons`: every arm
      that has run two seeds of its baseline. One without a p, because runs diverged, counts as
      p = 1, so that a failure never eases the correction of the others.

    What cannot be computed is None, and `notes` says why. A run found twice (same id) counts once;
    a seed with two different runs is noted and not compared. A baseline that was run at several
    learning rates is compared at the arm's own, or, where the two share fewer than two seeds there,
    at the one with most shared seeds. Raises RRError where no group has the baseline.

    Example:
        >>> import rr
        >>> from rr.stats import read_results, table
        >>> rows = read_results(rr.DATA / "measured" / "mini_arms")
        >>> table(rows)[0]["arm"]
        'standard (lr 0.0005)'
    """
    unique, baseline = list({row["id"]: row for row in rows}.values()), _named(baseline)
    groups = defaultdict(lambda: defaultdict(list))
    for row in unique:
        groups[group_key(row)][arm_of(row)].append(row)
    if not any(baseline in arms for arms in groups.values()):
        known = {arm for arms in groups.values() for arm in arms}
        raise RRError(f"no baseline {baseline!r} in these results: {nearest(baseline, known)}")
    out = []
    for key in sorted(groups):
        arms = {}
        (first, *_), *_ = groups[key].values()
        for name, runs in groups[key].items():
            rates = sorted({run["lr"] for run in runs})
            contents = sorted({_contents(run) for run in runs})
            for lr, content in itertools.product(rates, contents):
                label = name if len(rates) == 1 else f"{name} (lr {lr:g})"
                if len(contents) > 1:
                    label += f" [{' '.join(part[:6] for part in content if part)}]"
                same = [r for r in runs if r["lr"] == lr and _contents(r) == content]
                arms |= {label: same} if same else {}
        out += _compare({name: first.get(name) for name in GROUP + TOLD}, arms, baseline)
    _correct(out)
    return out


def _compare(group: dict, arms: dict[str, list[dict]], baseline: str) -> list[dict]:
    references = {label for label, runs in arms.items() if arm_of(runs[0]) == baseline}
    out = []
    for label in sorted(arms, key=lambda label: (label not in references, label)):
        runs = sorted(arms[label], key=lambda run: (run["seed"], run["id"]))
        finished = [run for run in runs if run["status"] == "finished"]
        losses = [run["val_loss"] for run in finished]
        row = {
            **group,
            "arm": label,
            "rule": runs[0]["rule"],
            "values": runs[0]["values"],
            "lr": runs[0]["lr"],
            "seeds": [run["seed"] for run in finished],
            "n": len(finished),
            "mean": math.fsum(losses) / len(losses) if losses else None,
            "diverged": [run["seed"] for run in runs if run["status"] == "diverged"],
            "baseline": None,
            "pairs": [],
            "missing": [],
            **dict.fromkeys(("difference", "lo", "hi", "sd", "t", "df", "p", "holm")),
            **dict.fromkeys(("bootstrap_lo", "bootstrap_hi")),
            **dict.fromkeys(("welch_t", "welch_df", "welch_p", "welch_holm", "comparisons")),
            "notes": [],
        }
        twice = _twice(runs)
        row["notes"] += [f"seed {seed} was run more than once: not paired" for seed in twice]
        if label not in references:
            _against(row, runs, {name: arms[name] for name in references})
        out.append(row)
    return out


def _twice(runs: list[dict]) -> list[int]:
    seeds = [run["seed"] for run in runs]
    return sorted({seed for seed in seeds if seeds.count(seed) > 1})


def _reference(row: dict, runs: list[dict], references: dict[str, list[dict]]) -> str | None:
    """The baseline's arm to compare with; None, and a note, where none can be chosen."""
    if not references:
        row["notes"].append("no baseline to compare with")
        return None
    mine = {run["seed"] for run in runs}
    shared = {
        name: len(mine & {run["seed"] for run in theirs}) for name, theirs in references.items()
    }
    own = [name for name, theirs in references.items() if theirs[0]["lr"] == row["lr"]]
    best = [name for name in references if shared[name] == max(shared.values())]
    chosen = own if max((shared[name] for name in own), default=0) >= 2 or len(best) > 1 else best
    if not chosen:
        row["notes"].append("no baseline to compare with: none at this learning rate")
        return None
    if len(chosen) > 1:
        row["notes"].append("the baseline's rule has changed: several candidates")
        return None
    return chosen[0]


def _against(row: dict, runs: list[dict], references: dict[str, list[dict]]) -> None:
    """Fill in the comparison of one arm with its baseline."""
    name = _reference(row, runs, references)
    if name is None:
        return
    row["baseline"], others = name, references[name]
    mine, theirs = _by_seed(runs), _by_seed(others)
    run_by_me, run_by_them = {run["seed"] for run in runs}, {run["seed"] for run in others}
    row["pairs"] = sorted(mine.keys() & theirs.keys())
    row["missing"] = sorted(run_by_them - run_by_me)
    diverged = sorted(
        run["seed"] for run in others if run["status"] == "diverged" and run["seed"] in run_by_me
    )
    if diverged:
        row["notes"].append(f"{name} diverged at seed {_listed(diverged)}")
    alone = sorted(run_by_me - run_by_them)
    if alone:
        row["notes"].append(f"seed {_listed(alone)} not run by {name}")
    if len(run_by_me & run_by_them) >= 2:
        row["comparisons"] = 1  # counted over the table when all are there
    if min(len(mine), len(theirs)) >= 2:
        apart = welch(mine.values(), theirs.values())
        # JSON has no infinity: t is None where no arm has any spread
        row |= {
            "welch_t": _finite(apart.t),
            "welch_df": _finite(apart.df),
            "welch_p": _finite(apart.p),
        }
    if len(row["pairs"]) < 2:
        row["notes"].append(FEW)
        return
    a, b = [mine[s] for s in row["pairs"]], [theirs[s] for s in row["pairs"]]
    test, drawn = paired(a, b), bootstrap(differences(a, b), method="percentile")
    row |= {
        "difference": test.mean,
        "lo": test.lo,
        "hi": test.hi,
        "sd": test.sd,
        "t": _finite(test.t),
        "df": test.df,
        "p": _finite(test.p),
        "bootstrap_lo": drawn.lo,
        "bootstrap_hi": drawn.hi,
    }


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))


def _finite(x: float) -> float | None:
    return x if math.isfinite(x) else None


def _correct(rows: list[dict]) -> None:
    """Apply Holm over the table's comparisons, per test; a comparison without a p counts as 1."""
    family = [row for row in rows if row["comparisons"]]
    for row in rows:
        row["comparisons"] = len(family) if row["comparisons"] else None
    for test, corrected in zip(TESTS, ("holm", "welch_holm"), strict=True):
        adjusted = holm(1.0 if row[test] is None else row[test] for row in family)
        for row, p in zip(family, adjusted, strict=True):
            row[corrected] = None if row[test] is None else p


def _by_seed(runs: list[dict]) -> dict[int, float]:
    """Losses of the seeds that have exactly one run, which finished."""
    twice = _twice(runs)
    return {
        run["seed"]: run["val_loss"]
        for run in runs
        if run["status"] == "finished" and run["seed"] not in twice
    }
