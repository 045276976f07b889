"""Checks of chapter 8, make it fast."""

from collections.abc import Callable

import torch
from torch import Tensor

from rr.model import costs, sizes
from rr.ops.cross_entropy import whole_cross_entropy
from rr.specs import ModelConfig
from rrstudy.perf.gpus import GPUS

from ..labs.speed import saved_bytes
from . import check, exercise

CARD = 16e9  # bytes of the card of ex-08-card


@exercise(
    "ex-08-vocabulary",
    ask="set `answer` to a whole number",
    nudge="the head's share of all FLOPs at that vocabulary is not a tenth",
)
def _vocabulary(answer: float) -> bool:
    config = sizes.arm("60M", "review", vocab_size=int(answer))
    share = 6 * config.vocab_size * config.d_model / costs.flops_per_token(config)
    return abs(share - 0.1) < 0.001


@exercise(
    "ex-08-mfu",
    ask="write the function",
    nudge="for another arm, rate or card the number is not necessary FLOPs per second over peak",
)
def _mfu(answer: Callable[[ModelConfig, float, str], float]) -> bool:
    config = sizes.arm("150M", "review")
    rates = {"H100": 4e5, "T4": 1e4}
    return all(
        abs(
            answer(config, rate, card) * GPUS[card].flops / rate / costs.flops_per_token(config) - 1
        )
        < 1e-9
        for card, rate in rates.items()
    )


@exercise(
    "ex-08-amdahl",
    ask="set `answer` to a factor",
    nudge="what is left of the whole when that part takes no time?",
)
def _amdahl(answer: float, share: float) -> bool:
    return abs(answer * (1 - share) - 1) < 0.01


@exercise(
    "ex-08-card",
    ask="set `answer` to two names of rungs",
    nudge="compare `total` of each rung, in bytes, with 16e9",
)
def _card(answer: tuple[str, str], need: Callable[[str, str, int], dict]) -> bool:
    published = [name for name, at in sizes.RUNGS.items() if at.published]
    largest = [
        [name for name in published if need(name, path, 4)["total"] < CARD][-1]
        for path in ("eager", "eager:recompute=layer")
    ]
    return list(answer) == largest


@exercise(
    "ex-08-chunks",
    ask="write the function",
    nudge="value or gradients differ from the whole loss, or it keeps more than 128 rows of logits",
)
def _chunks(answer: Callable[[Tensor, Tensor, Tensor], Tensor]) -> bool:
    rows, d, vocabulary = 500, 16, 1000  # no multiple of 128: a mean of means is another mean
    h = torch.randn(rows, d, requires_grad=True, dtype=torch.float64)
    W = torch.randn(vocabulary, d, requires_grad=True, dtype=torch.float64)
    y = torch.randint(vocabulary, (rows,))
    losses = answer(h, W, y), whole_cross_entropy(h, W, y, vocabulary)
    got, want = ([loss, *torch.autograd.grad(loss, (h, W))] for loss in losses)
    kept = saved_bytes(lambda: answer(h, W, y), torch.nn.Module())
    inputs = h.nbytes + W.nbytes
    logits = (kept - inputs) / (vocabulary * h.element_size())  # in rows of logits
    return logits <= 129 and all(map(torch.allclose, got, want))
