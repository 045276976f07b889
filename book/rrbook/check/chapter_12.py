"""Checks of chapter 12, the audit."""

from collections.abc import Sequence

import pandas as pd

from rr.model import costs, sizes
from rrstudy import stats

from ..explorables.audit import verdict
from . import check, exercise


@exercise(
    "ex-12-seven",
    ask="set `answer` to a number of tokens",
    nudge="with that vocabulary the gates are not seven hundredths of all parameters",
)
def _seven(answer: int) -> bool:
    shape = sizes.arm("60M:d_model=512", "review", protocol="paper")
    total = costs.count(shape) + (answer - shape.vocab_size) * shape.d_model
    return abs(costs.rule_params(shape) / total - 0.07) < 0.0005


@exercise(
    "ex-12-about",
    ask="set `answer` to one of the four verdicts",
    nudge="round both values, then apply the rule of the chapter",
)
def _about(answer: str, p: Sequence[float]) -> bool:
    return answer == verdict([f"{value:.2f}" == "0.07" for value in p])


@exercise(
    "ex-12-fair",
    ask="set `answer` to a number of paired seeds",
    nudge="pool the spread of all ten comparisons, then ask for the seeds that find the gain",
)
def _fair(answer: int, runs: pd.DataFrame, gain: float) -> bool:
    differences = [
        stats.differences(here[here.arm == base].val_loss, here[here.arm == "review"].val_loss)
        for _, here in runs.groupby("rung")
        for base in ("standard", "highway")
    ]
    return answer == stats.seeds_needed(float(gain), stats.pooled_sd(differences)[0])
