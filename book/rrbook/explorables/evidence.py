"""Chapter 11's explorable: published comparisons under the test and correction of one's choice."""

import math
from collections.abc import Sequence
from typing import Any

from rr.config import RRError

from . import kit

TESTS = {
    "welch": "Welch’s t",
    "paired": "Paired t",
    "pooled": "Paired t with one spread for all sizes",
    "sign": "Sign test",
}
CORRECTIONS = {"none": "uncorrected", "bonferroni": "Bonferroni", "holm": "Holm"}
FIELDS = ("rung", "arm", "seed", "val_loss")


def verdict_data(runs: Sequence[dict]) -> dict[str, dict[str, list[float]]]:
    """rung -> arm -> losses (nats per token) in the order of their seeds.

    runs: dicts with `rung`, `arm`, `seed`, `val_loss`; one arm is "review". Raises RRError where a
    field or an arm is missing, a loss is not finite, or arms of a rung have other seeds.
    """
    table: dict[str, dict[str, dict[int, float]]] = {}
    for place, run in enumerate(runs):
        missing = [name for name in FIELDS if name not in run]
        if missing:
            raise RRError(f"run {place} has no {', '.join(missing)}")
        rung, arm, seed, loss = (run[name] for name in FIELDS)
        if not math.isfinite(loss):
            raise RRError(f"{arm} at {rung}, seed {seed}: the loss is not finite")
        seeds = table.setdefault(str(rung), {}).setdefault(str(arm), {})
        if seed in seeds:
            raise RRError(f"{arm} at {rung} has two runs of seed {seed}: give one run per seed")
        seeds[seed] = float(loss)
    for rung, arms in table.items():
        if "review" not in arms or len(arms) < 2:
            raise RRError(f"{rung} has {', '.join(arms)}: review and a baseline are needed")
        if len({tuple(sorted(seeds)) for seeds in arms.values()}) > 1 or len(arms["review"]) < 2:
            raise RRError(f"arms of {rung} need the same seeds, at least two, to be paired")
    return {
        rung: {arm: [seeds[s] for s in sorted(seeds)] for arm, seeds in arms.items()}
        for rung, arms in table.items()
    }


def _chance(data: dict, rung: str, base: str, test: str) -> float:
    # statistics need SciPy, which the other explorables do not
    from scipy.special import stdtr

    from rr import stats

    theirs, mine = data[rung][base], data[rung]["review"]
    if test == "welch":
        return stats.welch(theirs, mine).p
    if test == "sign":
        return stats.sign_test(theirs, mine).p
    if test == "paired":
        return stats.paired(theirs, mine).p
    every = [stats.differences(arms[base], arms["review"]) for arms in data.values()]
    sd, df = stats.pooled_sd(every)
    gap = stats.interval(stats.differences(theirs, mine)).mean
    return float(2 * stdtr(df, -abs(gap) / (sd / math.sqrt(len(mine)))))


def verdict_numbers(data: dict, values: dict[str, Any]) -> list[dict]:
    """One row per comparison of Review with a baseline: `rung, base, gap, p, q, verdict`.

    values: `test` ("welch", "paired", "pooled": paired, with the spread of differences pooled over
    all sizes of `data`, or "sign"), `correction` ("none", "bonferroni", "holm"), `alpha`,
    `baseline` (its name, or "both"), and for each rung whether it is picked. gap: review −
    baseline (nats per token); p two-sided; q corrected for the comparisons picked; verdict: the arm
    of lower loss where q ≤ alpha, else "undecided".
    """
    from rr import stats

    rows = [
        {
            "rung": rung,
            "base": base,
            "gap": sum(b - a for a, b in zip(theirs, arms["review"], strict=True)) / len(theirs),
            "p": _chance(data, rung, base, values["test"]),
        }
        for rung, arms in data.items()
        if values[rung]
        for base, theirs in arms.items()
        if base != "review" and values["baseline"] in ("both", base)
    ]
    adjust = {"none": list, "bonferroni": stats.bonferroni, "holm": stats.holm}
    for row, q in zip(rows, adjust[values["correction"]](r["p"] for r in rows), strict=True):
        row["q"] = q
        better = "review" if row["gap"] < 0 else row["base"]
        row["verdict"] = better if q <= values["alpha"] else "undecided"
    return rows


def verdict_sentence(data: dict, values: dict[str, Any]) -> str:
    """The result in words; arguments as in `verdict_numbers`."""
    rows = verdict_numbers(data, values)
    if not rows:
        return "No size is picked: there is nothing to test."

    def count(found: list[dict], word: str) -> str:
        if not found:
            return f"{word} in none"
        named = ", ".join(f"{row['rung']} against {row['base']}" for row in found)
        return f"{word} in {len(found)} ({named})"

    better = [row for row in rows if row["verdict"] == "review"]
    worse = [row for row in rows if row["verdict"] == row["base"]]
    undecided = len(rows) - len(better) - len(worse)
    return (
        f"{TESTS[values['test']]}, {CORRECTIONS[values['correction']]}, {len(rows)} "
        f"{'test' if len(rows) == 1 else 'tests'} at α = {kit.number(values['alpha'])}: Review’s "
        f"loss is {count(better, 'lower')} and {count(worse, 'higher')}; undecided: {undecided}."
    )


def verdict_table(runs: Sequence[dict]) -> kit.Explorable:
    """Explorable: which comparisons of a study hold, by test, correction, sizes and baselines.

    runs: as for `verdict_data`. It starts with Welch's test, uncorrected, over everything. Raises
    RRError as `verdict_data` does.
    """
    data = verdict_data(runs)
    bases = {base: base for arms in data.values() for base in arms if base != "review"}
    start = {"test": "welch", "correction": "none", "alpha": 0.05, "baseline": "both"}
    start |= dict.fromkeys(data, True)
    said = verdict_sentence(data, start)
    return kit.explorable(
        "verdict-table",
        script="evidence.js",
        title="Pick the test, and see the verdict change",
        lead="The same published losses, compared as you choose; it opens with Welch’s test, "
        'uncorrected.<span class="rr-wide"> Gap: Review − baseline, so below zero Review is '
        "better.</span>",
        controls=[
            kit.slider("alpha", "level α", 0.01, 0.1, 0.01, start["alpha"]),
            kit.choice(
                "test",
                "test",
                {
                    "welch": "Welch’s t",
                    "paired": "paired t",
                    "pooled": "paired t, one spread",
                    "sign": "sign test",
                },
                start["test"],
            ),
            kit.choice(
                "correction",
                "correction",
                {
                    "none": "none",
                    "bonferroni": "Bonferroni",
                    "holm": "Holm",
                },
                start["correction"],
            ),
            kit.choice("baseline", "baseline", {"both": "both"} | bases, start["baseline"]),
            kit.checks("sizes", {rung: rung for rung in data}, list(data)),
        ],
        picture="A row for each comparison: its gap, its p value before and after correction on a "
        "logarithmic axis, and which arm has the lower loss",
        said=said,
        note='<span class="rr-wide">Hollow: p as the test gives it; filled: corrected for the '
        "comparisons picked. Values below a millionth stand at the right edge. </span>“One spread” "
        "pools the "
        "variance of the paired differences over every size, picked or not: more degrees of "
        "freedom, bought with the assumption that the spread is the same.",
        data=data,
    )
