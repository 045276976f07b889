"""Checks of chapter 6, looped transformers."""

from collections.abc import Callable

import torch

import rr
from rr.analysis import probes
from rr.model import costs

from . import check, exercise


@exercise(
    "ex-06-epsilon",
    ask="set `answer` to one number",
    nudge="N divides it, and the root of the depth over the reference depth",
)
def _epsilon(answer: float) -> bool:
    return abs(answer - 8**-1 * (48 / 12) ** -0.5) < 1e-9


@exercise(
    "ex-06-cosine",
    ask="set `answer` to a cosine",
    nudge="with this cosine the stream would have another size",
)
def _cosine(answer: float, size: float) -> bool:
    squared = 1 + 64 + 64 * 63 * answer
    return squared > 0 and abs(squared**0.5 / size - 1) < 0.06


@exercise(
    "ex-06-copies",
    ask="set `answer` to a function of L, N and d",
    nudge="count the models' parameters: does each pass have a gain, too?",
)
def _copies(answer: Callable[[int, int, int], int]) -> bool:
    def counted(rule: str, L: int, N: int, d: int) -> int:
        body = f"nano:n_layer={L},d_model={d},n_head=2"
        return costs.count(rr.plan(body, rule, loops=N).model)

    return all(
        answer(*shape) == counted("review:per_pass=1", *shape) - counted("review", *shape)
        for shape in ((2, 3, 64), (1, 1, 32), (3, 2, 32))
    )


@exercise(
    "ex-06-hidden",
    ask="set `answer` to two numbers",
    nudge="the first is a ratio of rms over all tokens; for the second shrink the state alone",
)
def _hidden(
    answer: tuple[float, float],
    four: rr.Model,
    twelve: rr.Model,
    idx: torch.Tensor,
    at_size: Callable[..., float],
) -> bool:
    size = probes.norms_by_depth(twelve, idx)[-1] / probes.norms_by_depth(four, idx)[-1]
    cost = at_size(twelve) - at_size(twelve, 1 / size)
    return abs(answer[0] / size - 1) < 0.02 and abs(answer[1] - cost) < 2e-3
