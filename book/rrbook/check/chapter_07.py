"""Checks of chapter 7, depth attention."""

from collections.abc import Callable

import torch

import rr
from rr.analysis import probes
from rr.ops import rms_norm

from . import check, exercise


@exercise(
    "ex-07-count",
    ask="set `answer` to a whole number",
    nudge="count the readers: the head is one too",
)
def _count(answer: int) -> bool:
    model = rr.Model(rr.plan("nano:n_layer=12,d_model=768,n_head=12", "attnres").model)
    own = [p.numel() for n, p in model.named_parameters() if n.endswith(("query", "key_gain"))]
    return answer == sum(own)


@exercise(
    "ex-07-half",
    ask="set `answer` to the smallest such k",
    nudge="divide the stream by k and normalise it: one below must leave at least half",
)
def _half(answer: int) -> bool:
    x = torch.full((1000,), 0.03, dtype=torch.float64)
    above, below = (rms_norm(x / k).mean().item() for k in (answer - 1, answer))
    return above >= 0.5 > below


@exercise(
    "ex-07-sum",
    ask="write the class",
    nudge="at the start the logits differ from the standard network's, or no query changes them",
)
def _sum(answer: type[rr.Rule], fresh: Callable[[str], rr.Model], idx: torch.Tensor) -> bool:
    model, source = fresh("attnres"), torch.Generator().manual_seed(0)
    for rule in (*model.rules, model.final_rule):
        rule.__class__ = answer
    with torch.no_grad():
        start = model(idx)
        for rule in (*model.rules, model.final_rule):
            rule.query.copy_(torch.randn(rule.query.shape, generator=source))
        attends = (model(idx) - start).abs().max().item() > 1e-3
        return attends and (start - fresh("standard")(idx)).abs().max().item() < 1e-9


@exercise(
    "ex-07-effect",
    ask="set `answer` to two indices",
    nudge="one index is the largest mean weight at the head, the other the largest loss without",
)
def _effect(
    answer: tuple[int, int],
    trained: rr.Model,
    idx: torch.Tensor,
    loss_without: Callable[[int], float],
) -> bool:
    weights = probes.depth_attention(trained, idx)[-1]
    missed = max(range(len(weights)), key=loss_without)
    return tuple(answer) == (int(weights.argmax()), missed)
