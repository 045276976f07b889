"""Checks of chapter 14, emergence."""

import numpy as np
import pandas as pd

from ..explorables.emergence import WINDOW, toy_gap
from ..stats.emergence import ARMS, PAIRS, at_fixed_ratio
from . import check, exercise


@exercise(
    "ex-14-steps",
    ask="set `answer` to a number of steps",
    nudge="tokens per parameter times parameters are tokens: how many does a step read?",
)
def _steps(answer: float, study: pd.DataFrame) -> bool:
    fair = study.ratio.iloc[0] * study["size"].iloc[-1] / WINDOW
    return abs(answer / fair - 1) < 0.01


@exercise(
    "ex-14-speed",
    ask="set `answer` to a factor above 1",
    nudge="with that speed-up the gap changes by another amount from the first size to the last",
)
def _speed(answer: float, study: pd.DataFrame) -> bool:
    first, last = (toy_gap(study.ratio.iloc[i], 0, answer, 0, 0.3) for i in (0, -1))
    published = study.gap.iloc[-1] - study.gap.iloc[0]
    return abs((last - first) / published - 1) < 0.02


@exercise(
    "ex-14-budget",
    ask="set `answer` to a ratio of two factors",
    nudge="six cells over nine: the factor is the second of the two numbers",
)
def _budget(answer: float, sizes: np.ndarray) -> bool:
    two, three = (
        at_fixed_ratio(
            np.repeat(sizes, len(steps)), np.tile(steps, len(sizes)), np.zeros(3 * len(steps))
        )[1]
        for steps in ([2000, 8000], [2000, 4000, 8000])
    )
    return abs(answer - two / three) < 0.01


@exercise(
    "ex-14-half",
    ask="set `answer` to a count",
    nudge="take the differences of arms that learn alike",
)
def _half(answer: int) -> bool:
    learns = dict.fromkeys(ARMS, True) | {"standard": False}
    return answer == sum(learns[a] == learns[b] for a, b in PAIRS)
