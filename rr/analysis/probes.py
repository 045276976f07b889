"""Measurements of a forward and backward pass by depth: norms, gradients, shares, mixing, cosines.

Each takes an `rr.Model`, a model that a rule is attached to (`rr.attach`), or any other module that
holds one `rr.Residuals` and is called as model(idx); for losses it must return logits. The latter
two are measured in the mode that they are in: where they have dropout, call model.eval() first.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import RRError, nearest
from .network import Network, hooked


@dataclass(frozen=True)
class WriteTrace:
    """One write of a sublayer's update, recorded; tensors are (B, T, d).

    With a gate, out = kept ⊙ h + r ⊙ u.

    Example:
        >>> import torch, rr
        >>> from rr.analysis import trace
        >>> shape = rr.ModelConfig(64, n_layer=2, n_head=2, d_model=8, d_ff=16)
        >>> model = rr.Model(shape)
        >>> write = trace(model, torch.arange(8)[None])[0]
        >>> write.kind, write.sublayer, torch.equal(write.out, write.h + write.u)
        ('attn', 1, True)
    """

    kind: str  # "attn" or "mlp"
    sublayer: int  # 1 … 2L
    h: Tensor  # the stream before the write
    u: Tensor  # the update
    r: Tensor | None  # the coefficient on u, broadcastable to it; None without a gate
    kept: Tensor | float  # coefficient on h: 1 for additive rules, 1 − r for convex ones
    out: Tensor  # the stream after the write
    pass_: int  # 1 … N


def trace(model: nn.Module, idx: Tensor, grad: bool = False) -> list[WriteTrace]:
    """Record every sublayer's state, update and write, for token ids (B, T).

    grad: with True the tensors stay in the graph, and each stream state keeps its gradient. Returns
    S = 2·L·N traces, pass by pass.

    Raises RRError for rules whose state is not one tensor: "streams" (as `hyper-connections`),
    "pair" (as `parallel`) and "list" (as `attnres`); `rr.residual.RULES[name].state` says it.

    Example:
        >>> import torch, rr
        >>> from rr.analysis import trace
        >>> shape = rr.ModelConfig(64, n_layer=2, n_head=2, d_model=8, d_ff=16)
        >>> model = rr.Model(shape)
        >>> [write.kind for write in trace(model, torch.arange(8)[None])]
        ['attn', 'mlp', 'attn', 'mlp']
    """
    traces: list[WriteTrace] = []

    def record(rule: Any, args: tuple, out: Tensor) -> None:
        state, u = args
        if grad:
            out.retain_grad()
        site, r, kept = rule.site, rule.gate(state, u), rule.kept(state, u)
        pass_ = 1 + len(traces) // (2 * site.n_layer)
        traces.append(WriteTrace(site.kind, site.sublayer, state, u, r, kept, out, pass_))

    net = Network(model)
    if net.final.state != "tensor":
        raise no_stream(net.final)
    with hooked(net.rules, record), torch.enable_grad() if grad else torch.no_grad():
        net.run(idx)
    return traces


def no_stream(rule: Any) -> RRError:
    """What the probes raise for a rule whose state they cannot follow; `rule`: the final one."""
    if rule.state == "streams":
        return RRError(f"{rule.name} keeps streams, no single stream: use stream_lens")
    return RRError(f"{rule.name} keeps a {rule.state} of tensors, no single stream to probe")


def rms(x: Tensor) -> float:
    """Root of the mean square over all entries of x, one number: √(mean(x²)).

    The rms(x) of a rule's equation is another thing: x divided by that root of each token,
    `rr.ops.rms_norm`.

    Example:
        >>> import torch
        >>> from rr.analysis import rms
        >>> rms(torch.tensor([1.0, -7.0]))
        5.0
    """
    return x.detach().double().pow(2).mean().sqrt().item()


def norms_by_depth(model: nn.Module, idx: Tensor) -> list[float]:
    """Root mean square of the stream h_l, l = 0 … S, for S = 2·L·N sublayers (the unrolled net).

    Over all tokens and channels of idx (B, T); entry 0 is the embedding's. Raises RRError for
    rules whose state is not one tensor, as `trace()` does.

    Example:
        >>> import torch, rr
        >>> from rr.analysis import norms_by_depth
        >>> shape = rr.ModelConfig(
        ...     64, n_layer=1, n_head=2, d_model=8, d_ff=16, rule="constant:c=0"
        ... )
        >>> ids = torch.arange(8)[None]
        >>> at_embedding, *after = norms_by_depth(rr.Model(shape), ids)
        >>> [norm == at_embedding for norm in after]  # c = 0 writes nothing
        [True, True]
    """
    steps = trace(model, idx)
    return [rms(steps[0].h), *(rms(step.out) for step in steps)]


def increment_cosines(model: nn.Module, idx: Tensor, each: str = "sublayer") -> Tensor:
    """Cosines between the increments of the stream, pair by pair: (n, n), float64.

    An increment is what one "sublayer", "block" or "pass" has added to the stream at a token, so
    that n is 2·L·N, L·N or N; entry (i, j) is the mean over tokens of cos(Δh_i, Δh_j). Independent
    increments have cosines near 0, and their sum grows as √n; aligned ones have 1, and it grows as
    n. One that is zero has cosine 0 with all.

    each: "sublayer", "block" or "pass". Raises RRError for another word, and for rules whose state
    is not one tensor, as `trace()` does.

    Example:
        >>> import torch, rr
        >>> from rr.analysis import increment_cosines
        >>> shape = rr.ModelConfig(64, n_layer=2, n_head=2, d_model=8, d_ff=16)
        >>> model = rr.Model(shape)
        >>> cosines = increment_cosines(model, torch.arange(8)[None], "block")
        >>> [round(one, 6) for one in cosines.diag().tolist()]
        [1.0, 1.0]
    """
    sizes = {"sublayer": 1, "block": 2, "pass": 2 * Network(model).depth}
    if each not in sizes:
        raise RRError(f"unknown increment {each!r}: {nearest(each, sizes)}")
    steps = trace(model, idx)
    ends = torch.stack([steps[0].h, *(s.out for s in steps[sizes[each] - 1 :: sizes[each]])])
    moves = F.normalize(ends.double().diff(dim=0), dim=-1)
    return torch.einsum("ibtd,jbtd->ij", moves, moves) / moves[0, ..., 0].numel()


def gradient_by_depth(model: nn.Module, idx: Tensor, targets: Tensor) -> list[float]:
    """‖∂loss/∂h_l‖ for l = 0 … S (S = 2L·N): the gradient of the loss at each depth.

    The loss is the mean over tokens, nats per token, for idx and targets (B, T). Euclidean norm
    over all B·T·d entries of the stream after sublayer l, for "streams" over all n·B·T·d; entry 0
    is the embedding's. The parameters' .grad is unchanged.

    Raises RRError for rules whose state is a "pair" (as `parallel`) or a "list" (as `attnres`).

    Example:
        >>> import torch, rr
        >>> from rr.analysis import gradient_by_depth
        >>> shape = rr.ModelConfig(
        ...     64, n_layer=1, n_head=2, d_model=8, d_ff=16, rule="constant:c=0"
        ... )
        >>> ids = torch.arange(8)[None]
        >>> *before, last = gradient_by_depth(rr.Model(shape), ids, ids + 1)
        >>> [norm == last for norm in before]  # with c = 0 nothing is written
        [True, True]
    """
    net = Network(model)
    if net.final.state not in ("tensor", "streams"):
        raise no_stream(net.final)
    streams: list[Tensor] = []

    def written(rule: nn.Module, args: tuple, out: Tensor) -> None:
        streams.append(out)

    with net.opened(streams.append), hooked(net.rules, written), torch.enable_grad():
        loss = net.loss(idx, targets)
    if net.final.state == "streams" and net.final.streams(streams[0]).shape != streams[0].shape:
        raise RRError(f"{net.final.name} carries more than its streams: no one gradient by depth")
    return [g.double().norm().item() for g in torch.autograd.grad(loss, streams)]


def jacobian_gain(model: nn.Module, idx: Tensor, probes: int = 8, seed: int = 0) -> float:
    """Root-mean-square singular value of ∂h_S/∂h_0, the *total* Jacobian of the stack.

    Estimated as sqrt(mean_v ‖Jᵀv‖² / ‖v‖²) over random normal v of the state's shape; 1 means that
    perturbations of the embedding reach the last state at their own size.

    probes: how many v, one backward pass each. seed: of the draws. Raises RRError for rules whose
    state is not one tensor, as `trace()` does.

    Example:
        >>> import torch, rr
        >>> from rr.analysis import jacobian_gain
        >>> shape = rr.ModelConfig(
        ...     64, n_layer=1, n_head=2, d_model=8, d_ff=16, rule="constant:c=0"
        ... )
        >>> ids = torch.arange(8)[None]
        >>> jacobian_gain(rr.Model(shape), ids)  # c = 0 writes nothing
        1.0
    """
    kept: list[Tensor] = []

    def leaf(state: Tensor) -> Tensor:
        kept.append(state.detach().requires_grad_())
        return kept[0]

    with Network(model).opened(leaf), torch.enable_grad():
        steps = trace(model, idx, grad=True)
    last = steps[-1].out
    source = torch.Generator().manual_seed(seed)
    total = 0.0
    for i in range(probes):
        v = torch.randn(last.shape, generator=source).to(last)
        (back,) = torch.autograd.grad(last, kept[0], v, retain_graph=i + 1 < probes)
        total += (back.double().pow(2).sum() / v.double().pow(2).sum()).item()
    return (total / probes) ** 0.5


def embedding_share(model: nn.Module, idx: Tensor) -> float:
    """‖(∏ kept_l) ⊙ h_0‖ / ‖h_S‖: the share of the embedding in the last state.

    kept_l is the coefficient on h in write l; Euclidean norms over all entries. Raises RRError
    for rules whose state is not one tensor, as `trace()` does.

    Example:
        >>> import torch, rr
        >>> from rr.analysis import embedding_share
        >>> shape = rr.ModelConfig(
        ...     64, n_layer=1, n_head=2, d_model=8, d_ff=16, rule="constant:c=0"
        ... )
        >>> ids = torch.arange(8)[None]
        >>> embedding_share(rr.Model(shape), ids)  # c = 0 writes nothing
        1.0
    """
    steps = trace(model, idx)
    left = steps[0].h.double()
    for step in steps:
        left = left * step.kept
    return (left.norm() / steps[-1].out.double().norm()).item()


@torch.no_grad()
def depth_attention(model: nn.Module, idx: Tensor) -> Tensor:
    """Weights of depth attention: the mean over tokens of α, (S + 1, sources), float64.

    Row l − 1 is sublayer l, the last row the head. Column 0 is the embedding, column i block i of
    sublayers (with size=1: sublayer i); sources that a sublayer does not read have 0. Raises
    RRError for other rules than `attnres`. Source: Attention Residuals (2603.15031).

    Example:
        >>> import torch, rr
        >>> from rr.analysis import depth_attention
        >>> each = "attnres:size=1"
        >>> shape = rr.ModelConfig(
        ...     64, n_layer=1, n_head=2, d_model=8, d_ff=16, rule=each
        ... )
        >>> model = rr.model.initialise(rr.Model(shape), seed=0)
        >>> depth_attention(model, torch.arange(8)[None])[1].tolist()  # of the MLP
        [0.5, 0.5, 0.0]
    """
    net = Network(model)
    if net.final.name != "attnres":
        raise RRError(f"{net.final.name} has no depth attention: use a model with attnres")
    if net.final.opt.block:
        raise RRError("attnres with block attends at some sublayers alone: use size here")
    readers: list[Any] = [*net.rules, net.final]
    rows = [
        rule.weights(state).double().mean((1, 2, 3))
        for rule, state in zip(readers, _read(net, idx), strict=True)
    ]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).cpu()


class StreamMixing(NamedTuple):
    """Coefficients of hyper-connections by sublayer, means over tokens, float64.

    Sublayer l reads A_mᵀH from the n streams H, mixes them to A_rᵀH and writes B uᵀ. Source:
    Hyper-Connections (2409.19606).

    Example:
        >>> import torch, rr
        >>> from rr.analysis import stream_mixing
        >>> rule = "hyper-connections:streams=2"
        >>> shape = rr.ModelConfig(
        ...     64, n_layer=1, n_head=2, d_model=8, d_ff=16, rule=rule
        ... )
        >>> model = rr.model.initialise(rr.Model(shape), seed=0)
        >>> mixing = stream_mixing(model, torch.arange(8)[None])
        >>> mixing.read.tolist()  # each sublayer its stream
        [[1.0, 0.0], [0.0, 1.0]]
    """

    read: Tensor  # A_m (S, n)
    mix: Tensor  # A_r (S, n, n)
    spread: Tensor  # B (S, n)


@torch.no_grad()
def stream_mixing(model: nn.Module, idx: Tensor) -> StreamMixing:
    """The learned mixing of streams by each of S = 2·L·N sublayers, for token ids (B, T).

    For hyper-connections; with sinkhorn=1, which is mHC (2512.24880), `mix` is nearly doubly
    stochastic. Raises RRError for other rules.

    Example:
        >>> import torch, rr
        >>> from rr.analysis import stream_mixing
        >>> rule = "hyper-connections:streams=2,sinkhorn=1"
        >>> shape = rr.ModelConfig(
        ...     64, n_layer=1, n_head=2, d_model=8, d_ff=16, rule=rule
        ... )
        >>> model = rr.model.initialise(rr.Model(shape), seed=0)
        >>> mix = stream_mixing(model, torch.arange(8)[None]).mix
        >>> [[round(total, 3) for total in row] for row in mix.sum(-1).tolist()]
        [[1.0, 1.0], [1.0, 1.0]]
    """
    net = Network(model)
    if net.final.state != "streams":
        raise RRError(f"{net.final.name} has no streams: use a model with hyper-connections")
    if not hasattr(net.final, "coefficients"):
        raise RRError(f"{net.final.name} never mixes its streams: see stream_lens")
    called: list[Any] = [net.rules[i % len(net.rules)] for i in range(net.sublayers)]
    parts = [
        [
            one.double().reshape(-1, *one.shape[-2:]).mean(0).cpu()
            for one in rule.coefficients(state)
        ]
        for rule, state in zip(called, _read(net, idx), strict=False)  # the head reads, too
    ]
    read, mix, spread = (torch.stack(side) for side in zip(*parts, strict=True))
    return StreamMixing(read.squeeze(-1), mix, spread.squeeze(-1))


class StreamLens(NamedTuple):
    """What there is to look at in place of "the residual stream" of a model with n streams.

    S = 2·L·N sublayers; tensors are (…, B, T, d). No one of these is the stream: a sublayer sees
    its own read, the mean is what all streams have in common, and the head weighs them anew.

    Example:
        >>> import torch, rr
        >>> from rr.analysis import stream_lens
        >>> rule = "hyper-connections:streams=2"
        >>> shape = rr.ModelConfig(
        ...     64, n_layer=1, n_head=2, d_model=8, d_ff=16, rule=rule
        ... )
        >>> model = rr.model.initialise(rr.Model(shape), seed=0)
        >>> [tuple(part.shape) for part in stream_lens(model, torch.arange(4)[None])]
        [(2, 1, 4, 8), (3, 1, 4, 8), (3, 1, 4, 8)]
    """

    reads: Tensor  # what each sublayer reads, its norm included, (S, B, T, d)
    mean: Tensor  # of the streams, before the first sublayer and after each, (S + 1, B, T, d)
    head: Tensor  # what the head would read then, its norm included, (S + 1, B, T, d)


@torch.no_grad()
def stream_lens(model: nn.Module, idx: Tensor) -> StreamLens:
    """Each sublayer's read, the mean stream, and the head's read at every depth, for ids (B, T).

    Multiply `head` with the head's weights, as the logit lens does: its last row gives the model's
    own logits, earlier ones what the head would say if the network ended there. Raises RRError for
    rules without streams, whose stream `trace` records.

    Example:
        >>> import torch, rr
        >>> from rr.analysis import stream_lens
        >>> shape = rr.ModelConfig(
        ...     64, n_layer=1, n_head=2, d_model=8, d_ff=16, rule="gated-residual"
        ... )
        >>> model = rr.model.initialise(rr.Model(shape), seed=0)
        >>> ids = torch.arange(4)[None]
        >>> torch.equal(stream_lens(model, ids).head[-1], model.hidden(ids))
        True
    """
    net = Network(model)
    if net.final.state != "streams":
        raise RRError(f"{net.final.name} has one stream or none: use trace")
    states = _read(net, idx)
    called = [net.rules[i % len(net.rules)] for i in range(net.sublayers)]
    return StreamLens(
        torch.stack([rule.read(s)[0] for rule, s in zip(called, states, strict=False)]),
        torch.stack([net.final.streams(state).mean(-2) for state in states]),
        torch.stack([net.final.read(state)[0] for state in states]),
    )


def _read(net: Network, idx: Tensor) -> list[Any]:
    """What each sublayer reads, and at last the head: the opened state, then every write."""
    states: list[Any] = []

    def written(rule: nn.Module, args: tuple, out: Any) -> None:
        states.append(out)

    with net.opened(states.append), hooked(net.rules, written):
        net.run(idx)
    return states
