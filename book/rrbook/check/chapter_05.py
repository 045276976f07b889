"""Checks of chapter 5, the value residual."""

from collections.abc import Callable

import torch

import rr
from rrbook import attention

from . import check, exercise


@exercise(
    "ex-05-cache",
    ask="set `answer` to a whole number of bytes",
    nudge="count keys in all blocks, values once, and two bytes per number",
)
def _cache(answer: int) -> bool:
    keys, values = 32 * 4096 // 4, 4096 // 4
    return answer == 2 * (keys + values)


@exercise(
    "ex-05-null",
    ask="set `cosine` to a function of i and j",
    nudge="it differs from the cosine of the two means",
)
def _null(answer: Callable[[int, int], float]) -> bool:
    T = 12
    even = torch.ones(T, T, dtype=torch.float64).tril()
    even = torch.nn.functional.normalize(even / even.sum(1, keepdim=True), dim=-1)
    products = even @ even.T
    pairs = [(i, j) for j in range(2, T + 1) for i in range(1, j)]
    return all(abs(answer(i, j) - products[i - 1, j - 1].item()) < 1e-9 for i, j in pairs)


@exercise(
    "ex-05-budget",
    ask="change solve()",
    nudge="the last block does not have nearly the whole budget",
)
def _budget(answer: rr.Model) -> bool:
    first = attention.mixing(answer)[1:, 0]
    whole = answer.config.n_layer
    return bool(first[-1] > 0.99 * whole and first[:-1].abs().max() < 0.1)


@exercise(
    "ex-05-detach",
    ask="write the class",
    nudge="forward it must be identity, and block 1 must not hear the others",
)
def _detach(
    answer: type[rr.residual.values.ValueRule],
    fresh: Callable[[str], rr.Model],
    idx: torch.Tensor,
    targets: torch.Tensor,
) -> bool:
    model, other = fresh("identity"), fresh("identity")
    for layer in model.layers:
        layer.attn.rule = answer(layer.attn_rule.site, model.config)
    if not torch.equal(model(idx), other(idx)):
        return False
    mine, whole = (attention.value_gradients(net, idx, targets)[0] for net in (model, other))
    return mine is not None and whole is not None and mine < 0.9 * whole
