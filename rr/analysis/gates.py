"""The gates of a model, recorded: the values of r, and what each logit is made of.

For models whose rules are additive gates, h + r ⊙ u with r (B, T, d) in (0, 1), and one pass.
S = 2L sublayers, B windows of T tokens, d channels.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import RRError
from ..residual.gates import Gated
from . import probes
from .network import Network

BATCH = 8  # windows per forward pass


def gates_of(model: nn.Module) -> list[Gated]:
    """The model's gates, by sublayer; RRError unless they are additive and passed once.

    model: here and below as the probes take it, an attached one too.
    """
    net = Network(model)
    rules = [rule for rule in net.rules if isinstance(rule, Gated) and not rule.convex]
    if net.final.site.n_loops != 1:
        loops = net.final.site.n_loops
        raise RRError(f"gates can be analysed for one pass, got n_loops={loops}")
    if len(rules) < len(net.rules):
        raise RRError(f"{net.final.name} is no additive gate: use review, state-gate or the like")
    return rules


def parts(rule: Gated, h: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gate's logit as a + c + b: a (B, T, d) of the state, c of the update, b (d,) the bias.

    The logit is linear in what the gate reads, and a zero vector stays zero when it is normalised;
    so a + b is the logit of gate(h, 0), c + b that of gate(0, u). In double precision: near r = 1
    single precision would leave a few digits.
    """
    wide, h, u = copy.deepcopy(rule).double(), h.double(), u.double()
    zero = torch.zeros_like(h[:1, :1])
    b = wide.gate(zero, zero).logit()
    a = wide.gate(h, zero.expand_as(h)).logit() - b
    return a, wide.gate(zero.expand_as(u), u).logit() - b, b


@dataclass(frozen=True)
class GateTrace:
    """The gates of a forward pass, recorded: one entry per sublayer, first axis S.

    A gate's logit is a(h) + c(u) + b: a reads the state h, c the update u, and b is the bias, so
    that r = σ(a + c + b). means[:, 0] is the mean of a over tokens, means[:, 1] that of c, and cov
    their covariance over tokens, for each channel. r and held are in the model's precision, means
    and cov in float64.

    Example:
        >>> import torch, rr
        >>> from rr.analysis import trace_gates
        >>> shape = rr.ModelConfig(
        ...     64, n_layer=1, n_head=2, d_model=8, d_ff=16, rule="review"
        ... )
        >>> model = rr.model.initialise(rr.Model(shape), seed=0)
        >>> gates = trace_gates(model, torch.arange(6)[None])
        >>> gates.kinds, tuple(gates.r.shape), tuple(gates.cov.shape)
        (('attn', 'mlp'), (2, 1, 6, 8), (2, 2, 2, 8))
    """

    r: Tensor  # (S, B, T, d); with granularity=scalar (S, B, T, 1)
    held: Tensor  # (S, B, T): 1 − ‖r ⊙ u‖/‖u‖, the share of the update's length held back
    means: Tensor  # (S, 2, d): means over tokens of a and of c
    cov: Tensor  # (S, 2, 2, d): their covariance over tokens, channel by channel
    kinds: tuple[str, ...]  # S words, "attn" or "mlp"


def trace_gates(model: nn.Module, idx: Tensor) -> GateTrace:
    """Run the windows idx (B, T) and record the gates.

    Raises RRError unless every rule is an additive gate (`highway`, `state-gate`, `update-gate`,
    `review`) and the stack is passed once: `review-convex`, `highway-carry`, `gtrxl` and rules
    without a gate are refused.

    Example:
        >>> import torch, rr
        >>> from rr.analysis import trace_gates
        >>> shape = rr.ModelConfig(
        ...     64, n_layer=1, n_head=2, d_model=8, d_ff=16, rule="review"
        ... )
        >>> model = rr.model.initialise(rr.Model(shape), seed=0)
        >>> trace_gates(model, torch.arange(6)[None]).r.unique().tolist()
        [0.5]
    """
    rules, r, held, pairs = gates_of(model), [], [], []
    with torch.no_grad():
        for x in idx.split(BATCH):
            steps = probes.trace(model, x)
            r.append(torch.stack([step.r for step in steps if step.r is not None]))
            lengths = [
                torch.stack([(c * s.u).norm(dim=-1), s.u.norm(dim=-1)])
                for s, c in zip(steps, r[-1], strict=True)
            ]
            held.append(torch.stack([1 - written / length for written, length in lengths]))
            sums = []
            for rule, step in zip(rules, steps, strict=True):
                both = torch.stack(parts(rule, step.h, step.u)[:2]).flatten(1, 2)
                products = torch.einsum("atd,btd->abd", both, both)
                sums.append(torch.cat([both.sum(1)[None], products]))
            pairs.append(torch.stack(sums))  # (S, 3, 2, d): sums, then sums of products
    summed: Any = sum(pairs)
    total = summed / idx.numel()
    means, products = total[:, 0], total[:, 1:]
    cov = products - means[:, :, None] * means[:, None]
    return GateTrace(torch.cat(r, 1), torch.cat(held, 1), means, cov, tuple(s.kind for s in steps))
