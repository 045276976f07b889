"""Checks of chapter 0, a transformer in twenty minutes."""

import math

from . import check, exercise


@exercise(
    "ex-00-mask",
    ask="set `answer` to the number of shares",
    nudge="each token reads itself and all tokens before it",
)
def _mask(answer: int) -> bool:
    return answer == 64 * 65 // 2


@exercise(
    "ex-00-perplexity",
    ask="set `answer` to the per cent",
    nudge="divide the two perplexities, and see what is missing to one",
)
def _perplexity(answer: float) -> bool:
    return abs(answer - 100 * (1 - math.exp(-0.1))) < 0.1


@exercise(
    "ex-00-weights",
    ask="set `answer` to the number of entries",
    nudge="count d × d matrices: four in attention, and the MLP's two count four each",
)
def _weights(answer: int) -> bool:
    return answer == 12 * 512**2


@exercise(
    "ex-00-paths",
    ask="set `answer` to a pair of numbers",
    nudge="choose the one sublayer that is passed through; then let each choose freely",
)
def _paths(answer: tuple[int, int]) -> bool:
    return tuple(answer) == (8, 2**8)
