"""Checks of chapter 2, the gate equation."""

from collections.abc import Callable

import torch

import rr
from rr.model import costs

from . import check, exercise, writes_like


@exercise(
    "ex-02-count",
    ask="set `answer` to a pair",
    nudge="count both gates of a block, with their biases, and take the share of body and gates",
)
def _count(answer: tuple[int, float]) -> bool:
    block = rr.plan("nano:d_model=1536,n_layer=1,n_head=2").model
    return answer[0] == costs.rule_params(block) and abs(answer[1] - 1 / 4) < 0.001


@exercise(
    "ex-02-imitate",
    ask="set `answer` to one bias",
    nudge="the logits still differ by more than a hundred-thousandth",
)
def _imitate(answer: float, fresh: Callable[[str], rr.Model], idx: torch.Tensor) -> bool:
    with torch.no_grad():
        gap = fresh(f"review:bias={float(answer)}")(idx) - fresh("standard")(idx)
    return gap.abs().max().item() < 1e-5


@exercise(
    "ex-02-update",
    ask="write the class",
    nudge="it starts at h + u/2; then the gate is σ(W [rms(h), rms(u)] + b), W of d by 2d",
)
def _review(answer: type[rr.Rule]) -> bool:
    return writes_like(answer, "review")


@exercise(
    "ex-02-agree",
    ask="set `features` to a function of h and u",
    nudge="at most d features, with which the gate is right in nine cases of ten",
)
def _agree(answer: Callable, learn: Callable[..., float]) -> bool:
    if answer(torch.ones(3, 8), torch.ones(3, 8)).shape[1] > 8:
        return False
    return learn(lambda h, u: h[:, 0] * u[:, 0] > 0, answer) > 0.9
