"""Chapter 11's explorable: published comparisons under the test and correction of one's choice."""

import math
from collections.abc import Sequence

from rr.errors import RRError

from . import kit

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


def verdict_table(runs: Sequence[dict]) -> kit.Explorable:
    """Explorable: which comparisons of a study hold, by test, correction, sizes and baselines.

    runs: as for `verdict_data`. It starts with Welch's test, uncorrected, over everything. Raises
    RRError as `verdict_data` does.
    """
    data = verdict_data(runs)
    bases = {base: base for arms in data.values() for base in arms if base != "review"}
    return kit.explorable(
        "verdict-table",
        script="evidence.js",
        title="Pick the test, and see the verdict change",
        lead="The same published losses, compared as you choose; it opens with Welch’s test, "
        'uncorrected.<span class="rr-wide"> Gap: Review − baseline, so below zero Review is '
        "better.</span>",
        controls=[
            kit.slider("alpha", "level α", 0.01, 0.1, 0.01, 0.05),
            kit.choice(
                "test",
                "test",
                {
                    "welch": "Welch’s t",
                    "paired": "paired t",
                    "pooled": "paired t, one spread",
                    "sign": "sign test",
                },
                "welch",
            ),
            kit.choice(
                "correction",
                "correction",
                {
                    "none": "none",
                    "bonferroni": "Bonferroni",
                    "holm": "Holm",
                },
                "none",
            ),
            kit.choice("baseline", "baseline", {"both": "both"} | bases, "both"),
            kit.checks("sizes", {rung: rung for rung in data}, list(data)),
        ],
        picture="A row for each comparison: its gap, its p value before and after correction on a "
        "logarithmic axis, and which arm has the lower loss",
        note='<span class="rr-wide">Hollow: p as the test gives it; filled: corrected for the '
        "comparisons picked. Values below a millionth stand at the right edge. </span>“One spread” "
        "pools the "
        "variance of the paired differences over every size, picked or not: more degrees of "
        "freedom, bought with the assumption that the spread is the same.",
        data=data,
    )
