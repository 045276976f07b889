"""Checks of chapter 1, the residual stream."""

from collections.abc import Callable, Sequence

import torch

import rr
from rr.analysis import probes

from . import check, exercise


@exercise(
    "ex-01-share",
    ask="set `answer` to a function of S",
    nudge="count the terms of the sum; each has the same share",
)
def _share(answer: Callable[[int], float]) -> bool:
    toy = torch.randn(65, 20000, generator=torch.Generator().manual_seed(0))
    for s in (4, 64):
        last = toy[: s + 1].sum(0)
        if abs(answer(s) - float(toy[0] @ last / last.pow(2).sum())) > 0.02:
            return False
    return True


@exercise(
    "ex-01-gain",
    ask="set `answer` to a number",
    nudge="squares add: the sum of 64 must come to the sum of 4",
)
def _gain(
    answer: float, loud: type[rr.Rule], build: Callable[..., rr.Model], x: torch.Tensor
) -> bool:
    growth = []
    original = loud.branch_gain
    try:
        for sublayers, gain in ((4, 1.0), (64, float(answer))):
            loud.branch_gain = lambda self, site, gain=gain: gain
            steps = probes.trace(build("loud", sublayers), x)
            growth.append(probes.rms(steps[-1].out) / probes.rms(steps[0].h))
    finally:
        loud.branch_gain = original
    return abs(growth[1] / growth[0] - 1) < 0.15


@exercise(
    "ex-01-mix",
    ask="write both classes and register Mix as mix",
    nudge="is the sum h + u? And `kept` is the coefficient of the old state in the new one",
)
def _mix(answer: tuple[type[rr.Rule], type[rr.Rule]], model: rr.Model, x: torch.Tensor) -> bool:
    total = answer[0](model.rules[0].site, model.config)
    h, u = torch.randn(2, 3, model.config.d_model, generator=torch.Generator().manual_seed(0))
    if not torch.equal(total.write(h, u), h + u) or total.kept(h, u) != 1:
        return False
    steps = probes.trace(model, x)
    grown = probes.rms(steps[-1].out) / probes.rms(steps[0].h)
    direct = probes.embedding_share(model, x) * grown
    return abs(direct - 0.5 ** len(steps)) < 1e-8


@exercise(
    "ex-01-lesion",
    ask="set `answer` to a list of eight losses, in nats per token",
    nudge="skip a write by `rule.write = lambda state, u: state`, and undo it before the next",
)
def _lesion(answer: Sequence[float], whole: float, unigram: float) -> bool:
    below = sum(loss < unigram for loss in answer)
    differ = max(answer) - min(answer) > 0.1  # one sublayer's write is worth more than another's
    return len(answer) == 8 and min(answer) > whole - 0.05 and differ and below >= 7
