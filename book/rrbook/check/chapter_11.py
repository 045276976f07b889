"""Checks of chapter 11, the evidence."""

import numpy as np
import pandas as pd

from rrstudy import stats

from . import check, exercise


@exercise(
    "ex-11-signs",
    ask="set `answer` to a number of pairs",
    nudge="either so many do not pass the level, or fewer would",
)
def _signs(answer: int) -> bool:
    fewer, enough = (stats.sign_test(range(1, n + 1), [0] * n).p for n in (answer - 1, answer))
    return enough <= 0.05 / 10 < fewer


@exercise(
    "ex-11-family",
    ask="set `answer` to a pair of counts",
    nudge="the smallest p of a family faces the whole family",
)
def _family(answer: tuple[int, int], ten: pd.DataFrame) -> bool:
    p = ten.paired_p
    families = p.xs("standard", level="baseline"), p[["590M", "1B"]]
    return tuple(answer) == tuple(
        sum(q <= 0.05 for q in stats.holm(family.tolist())) for family in families
    )


@exercise(
    "ex-11-wrong",
    ask="set `answer` to the smaller p",
    nudge="every seed needs another seed's partner; there are two ways",
)
def _wrong(answer: float, runs: pd.DataFrame) -> bool:
    here = runs[runs.rung == "1B"].pivot(index="seed", columns="arm", values="val_loss")
    turned = [stats.paired(np.roll(here.standard, k), here.review).p for k in (1, 2)]
    return abs(answer - min(turned)) < 0.002


@exercise(
    "ex-11-plan",
    ask="set `answer` to a pair of gaps, in nats per token",
    nudge="how many pairs are left for each size, and which level for each test?",
)
def _plan(answer: tuple[float, float], between: float) -> bool:
    gaps = [stats.detectable_gap(30 // m, between, alpha=0.05 / m) for m in (5, 3)]
    return np.shape(answer) == (2,) and np.allclose(answer, gaps, rtol=0, atol=2e-4)
