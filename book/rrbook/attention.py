"""Probes of attention: its weights, the values it mixes, and the gradient of W_V.

Shapes: B windows, T tokens, H heads, L blocks. Entropies are in nats.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from rr.analysis.network import Network
from rr.analysis.probes import trace
from rr.model.transformer import Model


class AttentionTrace(NamedTuple):
    """One attention, recorded; e = d/H channels per head, V' the values as a value rule mixes them.

    Example:
        >>> import torch, rr
        >>> from rrbook.attention import trace_attention
        >>> shape = rr.ModelConfig(64, n_layer=2, n_head=2, d_model=8, d_ff=16)
        >>> model = rr.Model(shape)
        >>> first, second = trace_attention(model, torch.arange(6)[None])
        >>> tuple(first.weights.shape), tuple(first.values.shape)
        ((1, 2, 6, 6), (1, 2, 6, 4))
    """

    weights: Tensor  # A (B, H, T, T); rows are queries and sum to 1
    values: Tensor  # V' (B, H_kv, T, e)


class _Spy(TorchFunctionMode):
    """Records the weights of every attention, by calling it again with unit vectors as values."""

    def __init__(self) -> None:
        super().__init__()
        self.traces: list[AttentionTrace] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            q, k, v = args
            unit = torch.eye(k.shape[2], dtype=v.dtype, device=v.device).expand(*k.shape[:3], -1)
            self.traces.append(AttentionTrace(func(q, k, unit, **kwargs), v))
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def trace_attention(model: Model, idx: Tensor) -> list[AttentionTrace]:
    """Weights and values of every attention of the unrolled model, for token ids (B, T).

    Returns L·N traces, pass by pass. Attention runs once more for them, with T unit vectors as its
    values: memory grows as B·H·T² per block.

    Example:
        >>> import torch, rr
        >>> from rrbook.attention import trace_attention
        >>> shape = rr.ModelConfig(64, n_layer=2, n_head=2, d_model=8, d_ff=16)
        >>> model = rr.Model(shape)
        >>> first, second = trace_attention(model, torch.arange(3)[None])
        >>> first.weights[0, 0, 0].tolist()  # the first token sees itself alone
        [1.0, 0.0, 0.0]
    """
    with _Spy() as spy:
        model.hidden(idx)
    return spy.traces


def importance(weights: Tensor) -> Tensor:
    """How much attention each token receives: p_j = mean over heads of Σ_i A_ij / T; (B, T).

    p sums to 1. A is (B, H, T, T). Source: ResFormer (2410.17897).
    """
    return weights.double().mean(1).sum(1) / weights.shape[-1]


def entropy(p: Tensor) -> Tensor:
    """−Σ p ln p over the last axis, nats; 0 ln 0 is 0. Low: concentrated on few tokens.

    p: (…, n), probabilities that sum to 1. Returns (…); exp of it is an effective number of tokens.

    Example:
        >>> import math, torch
        >>> from rrbook.attention import entropy
        >>> round(math.exp(entropy(torch.full((8,), 1 / 8))), 4)
        8.0
    """
    return -torch.special.xlogy(p, p).sum(-1)


def causal_null(tokens: int) -> Tensor:
    """The importance p (T,) of uniform causal attention, float64.

    A_ij = 1/i for j ≤ i, so p_j = (1/T)·Σ_{i ≥ j} 1/i: early tokens receive more attention without
    any preference.
    """
    each = 1 / torch.arange(1, tokens + 1, dtype=torch.float64)
    return each.flip(0).cumsum(0).flip(0) / tokens


def similarity(h: Tensor) -> Tensor:
    """Token similarity: the mean cosine of two different tokens' states in a window; h (B, T, d).

    (‖Σ_i ĥ_i‖² − T) / (T(T − 1)) with ĥ = h/‖h‖, averaged over windows. Source: 2410.17897.
    """
    unit, t = F.normalize(h.double(), dim=-1), h.shape[1]
    return ((unit.sum(1).pow(2).sum(-1) - t) / (t * (t - 1))).mean()


def mixing(model: nn.Module) -> Tensor:
    """Λ (L, L): block n attends over V'_n = Σ_i Λ_ni V_i. Measured by mixing unit vectors.

    model: as the probes take it; Λ is the identity where no value rule is attached. A block without
    values of its own has 0 in its own column. Terms that `after` adds are not included.
    """
    net = Network(model)
    rules = net.value_rules
    if not rules:
        return torch.eye(net.depth)
    vstate, rows = None, []
    for n, (rule, unit) in enumerate(zip(rules, torch.eye(len(rules)), strict=True), 1):
        row, vstate = rule.values(unit if rule.has_own_v(n) else None, vstate)
        rows.append(row.detach())
    return torch.stack(rows)


def value_gradients(model: Model, idx: Tensor, targets: Tensor) -> list[float | None]:
    """‖∂loss/∂W_V‖ of block 1 … L, the Euclidean norm; None where a block has no W_V.

    The loss is the mean over tokens, nats per token, for idx and targets (B, T). W_V is the value
    projection, (H_kv·e, d). The parameters' .grad is unchanged.

    Example:
        >>> import torch, rr
        >>> from rrbook.attention import value_gradients
        >>> shape = rr.ModelConfig(
        ...     64, n_layer=2, n_head=2, d_model=8, d_ff=16, values="svformer"
        ... )
        >>> ids = torch.arange(8)[None]
        >>> norms = value_gradients(rr.Model(shape), ids, ids + 1)
        >>> [norm is None for norm in norms]
        [False, True]
    """
    weights = [layer.attn.qkv.weight for layer in model.layers]
    gradients = torch.autograd.grad(model(idx, targets), weights)
    return [
        gradient.split(list(layer.attn.parts.values()))[-1].double().norm().item()
        if layer.attn.own_v
        else None
        for gradient, layer in zip(gradients, model.layers, strict=True)
    ]


def by_block(model: Model, idx: Tensor) -> dict[str, list[float]]:
    """ResFormer's (2410.17897) measures of attention for block 1 … L, means over the windows.

    entropy          of the tokens' importance, nats
    first_importance importance of the first token over the mean of all (large: a sink)
    first_value      norm of the first token's V' over the mean of the others' (small: a drain)
    similarity       token similarity of the stream after the block
    first_state      the same ratio for the states after the block (large: a peak)
    """
    measures: dict[str, list[float]] = {}
    after = [step.out for step in trace(model, idx)[1::2]]
    for (weights, values), h in zip(trace_attention(model, idx), after, strict=True):
        p = importance(weights)
        row = {
            "entropy": entropy(p).mean(),
            "first_importance": p[:, 0].mean() * p.shape[1],
            "first_value": _first_over_others(values.transpose(1, 2).flatten(2)),
            "similarity": similarity(h),
            "first_state": _first_over_others(h),
        }
        for name, value in row.items():
            measures.setdefault(name, []).append(value.item())
    return measures


def _first_over_others(x: Tensor) -> Tensor:
    """‖x_1‖ over the mean of ‖x_2‖ … ‖x_T‖, (B, T, d), averaged over windows."""
    norms = x.double().norm(dim=-1)
    return (norms[:, 0] / norms[:, 1:].mean(1)).mean()
