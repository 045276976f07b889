"""Measurements of a forward and backward pass by depth: norms, gradients, shares, cosines."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..config import RRError, nearest
from ..model.transformer import Model


@dataclass(frozen=True)
class WriteTrace:
    """One write of a sublayer's update, recorded: tensors (B, T, d); r is None without a gate.

    Example:
        >>> import torch, rr
        >>> from rr.analysis import trace
        >>> model = rr.Model(rr.ModelConfig(64, n_layer=2, n_head=2, d_model=8, d_ff=16))
        >>> write = trace(model, torch.arange(8)[None])[0]
        >>> write.kind, write.sublayer, torch.equal(write.out, write.h + write.u)
        ('attn', 1, True)
    """

    kind: str
    sublayer: int
    h: Tensor
    u: Tensor
    r: Tensor | None
    kept: Tensor | float  # coefficient on h: 1 for additive rules, 1 − r for convex ones
    out: Tensor
    pass_: int  # 1 … N


@contextlib.contextmanager
def hooked(modules: Iterable[nn.Module], hook: Callable, before: bool = False) -> Iterator[None]:
    """Within the block each module has this forward hook; with `before`, a forward pre-hook.

    hook(module, args, output) sees every call and may return another output; a pre-hook is
    hook(module, args). On a residual rule args are (state, u) and the output is the new state.

    Example:
        >>> import torch
        >>> from rr.analysis import hooked
        >>> layer, seen = torch.nn.Linear(2, 4), []
        >>> with hooked([layer], lambda module, args, output: seen.append(tuple(output.shape))):
        ...     output = layer(torch.ones(3, 2))
        >>> seen
        [(3, 4)]
    """
    handles = [
        module.register_forward_pre_hook(hook) if before else module.register_forward_hook(hook)
        for module in modules
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def trace(model: Model, idx: Tensor, grad: bool = False) -> list[WriteTrace]:
    """Record every sublayer's state, update and write, for token ids (B, T).

    Looped models give 2·L·N traces, pass by pass. With grad=True the tensors stay in the graph and
    each stream state keeps its gradient. For rules whose state is one tensor.

    Example:
        >>> import torch, rr
        >>> from rr.analysis import trace
        >>> model = rr.Model(rr.ModelConfig(64, n_layer=2, n_head=2, d_model=8, d_ff=16))
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

    rules = model.rules
    for rule in rules:
        if rule.state != "tensor":
            raise TypeError(f"{rule.name} keeps {rule.state} as its state: no single stream")
    with hooked(rules, record), torch.enable_grad() if grad else torch.no_grad():
        model.hidden(idx)
    return traces


def rms(x: Tensor) -> float:
    """Root of the mean square over all entries.

    Example:
        >>> import torch
        >>> from rr.analysis import rms
        >>> rms(torch.tensor([1.0, -7.0]))
        5.0
    """
    return x.detach().double().pow(2).mean().sqrt().item()


def norms_by_depth(model: Model, idx: Tensor) -> list[float]:
    """Root mean square of the stream h_l, l = 0 … S, for S = 2·L·N sublayers (the unrolled net).

    idx: token ids (B, T); over all tokens and channels. For rules whose state is one tensor.

    Example:
        >>> import torch, rr
        >>> from rr.analysis import norms_by_depth
        >>> shape = rr.ModelConfig(64, n_layer=1, n_head=2, d_model=8, d_ff=16, rule="constant:c=0")
        >>> at_embedding, *after = norms_by_depth(rr.Model(shape), torch.arange(8)[None])
        >>> [norm == at_embedding for norm in after]  # with c = 0 nothing is written
        [True, True]
    """
    steps = trace(model, idx)
    return [rms(steps[0].h), *(rms(step.out) for step in steps)]


def increment_cosines(model: Model, idx: Tensor, each: str = "sublayer") -> Tensor:
    """Cosines between the increments of the stream, pair by pair: (n, n), float64.

    An increment is what one "sublayer", "block" or "pass" has added to the stream at a token, so
    that n is 2·L·N, L·N or N; entry (i, j) is the mean over tokens of cos(Δh_i, Δh_j). Independent
    increments have cosines near 0, and their sum grows as √n; aligned ones have 1, and it grows as
    n. One that is zero has cosine 0 with all. idx: (B, T). For rules whose state is one tensor.

    Example:
        >>> import torch, rr
        >>> from rr.analysis import increment_cosines
        >>> model = rr.Model(rr.ModelConfig(64, n_layer=2, n_head=2, d_model=8, d_ff=16))
        >>> cosines = increment_cosines(model, torch.arange(8)[None], "block")
        >>> [round(one, 6) for one in cosines.diag().tolist()]
        [1.0, 1.0]
    """
    sizes = {"sublayer": 1, "block": 2, "pass": 2 * model.config.n_layer}
    if each not in sizes:
        raise RRError(f"unknown increment {each!r}: {nearest(each, sizes)}")
    steps = trace(model, idx)
    ends = torch.stack([steps[0].h, *(s.out for s in steps[sizes[each] - 1 :: sizes[each]])])
    moves = F.normalize(ends.double().diff(dim=0), dim=-1)
    return torch.einsum("ibtd,jbtd->ij", moves, moves) / idx.numel()


def gradient_by_depth(model: Model, idx: Tensor, targets: Tensor) -> list[float]:
    """‖∂loss/∂h_l‖ for l = 0 … S (S = 2L·N): the gradient of the loss at each depth.

    Euclidean norm over all entries of the stream after sublayer l; entry 0 is the embedding's.
    The parameters' .grad is unchanged. For rules whose state is no list.

    Example:
        >>> import torch, rr
        >>> from rr.analysis import gradient_by_depth
        >>> shape = rr.ModelConfig(64, n_layer=1, n_head=2, d_model=8, d_ff=16, rule="constant:c=0")
        >>> ids = torch.arange(8)[None]
        >>> *before, last = gradient_by_depth(rr.Model(shape), ids, ids + 1)
        >>> [norm == last for norm in before]  # with c = 0 nothing is written
        [True, True]
    """
    if model.final_rule.state not in ("tensor", "streams"):
        raise TypeError(f"{model.final_rule.name} keeps a list as its state: no single stream")
    streams: list[Tensor] = []

    def opened(layer: nn.Module, args: tuple) -> None:
        if not streams:  # later passes begin with the state that the last write left
            streams.append(args[0])

    def written(rule: nn.Module, args: tuple, out: Tensor) -> None:
        streams.append(out)

    with (
        hooked(model.layers[:1], opened, before=True),
        hooked(model.rules, written),
        torch.enable_grad(),
    ):
        loss = model(idx, targets)
    return [g.double().norm().item() for g in torch.autograd.grad(loss, streams)]


def jacobian_gain(model: Model, idx: Tensor, probes: int = 8, seed: int = 0) -> float:
    """Root-mean-square singular value of ∂h_S/∂h_0, the *total* Jacobian of the stack.

    Estimated as sqrt(mean_v ‖Jᵀv‖² / ‖v‖²) over `probes` random v; 1 means that perturbations of
    the embedding reach the last state at their own size. idx: (B, T).

    Example:
        >>> import torch, rr
        >>> from rr.analysis import jacobian_gain
        >>> shape = rr.ModelConfig(64, n_layer=1, n_head=2, d_model=8, d_ff=16, rule="constant:c=0")
        >>> jacobian_gain(rr.Model(shape), torch.arange(8)[None])  # with c = 0 nothing is written
        1.0
    """
    kept: list[Tensor] = []

    def leaf(layer: nn.Module, args: tuple) -> tuple | None:
        if kept:  # a later pass
            return None
        kept.append(args[0].detach().requires_grad_())
        return kept[0], *args[1:]

    with hooked(model.layers[:1], leaf, before=True), torch.enable_grad():
        steps = trace(model, idx, grad=True)
    last = steps[-1].out
    source = torch.Generator().manual_seed(seed)
    total = 0.0
    for i in range(probes):
        v = torch.randn(last.shape, generator=source).to(last)
        (back,) = torch.autograd.grad(last, kept[0], v, retain_graph=i + 1 < probes)
        total += (back.double().pow(2).sum() / v.double().pow(2).sum()).item()
    return (total / probes) ** 0.5


def embedding_share(model: Model, idx: Tensor) -> float:
    """‖(∏ kept_l) ⊙ h_0‖ / ‖h_S‖: the share of the embedding in the last state.

    kept_l is the coefficient on h in write l; Euclidean norms over all entries. idx: (B, T).

    Example:
        >>> import torch, rr
        >>> from rr.analysis import embedding_share
        >>> shape = rr.ModelConfig(64, n_layer=1, n_head=2, d_model=8, d_ff=16, rule="constant:c=0")
        >>> embedding_share(rr.Model(shape), torch.arange(8)[None])  # with c = 0 nothing is written
        1.0
    """
    steps = trace(model, idx)
    left = steps[0].h.double()
    for step in steps:
        left = left * step.kept
    return (left.norm() / steps[-1].out.double().norm()).item()


def updates_by_depth(model: Model, idx: Tensor, targets: Tensor) -> tuple[list[float], list[float]]:
    """rms of each update u_l, and ‖∂loss/∂u_l‖ over all its entries, for l = 1 … S.

    Unlike the stream's, they exist under every rule. idx, targets: (B, T). The parameters' .grad is
    unchanged.
    """
    updates: list[Tensor] = []

    def record(rule: nn.Module, args: tuple, out: Any) -> None:
        updates.append(args[1])

    with hooked(model.rules, record), torch.enable_grad():
        loss = model(idx, targets)
    slopes = torch.autograd.grad(loss, updates)
    return [rms(u) for u in updates], [g.double().norm().item() for g in slopes]


@torch.no_grad()
def depth_attention(model: Model, idx: Tensor) -> Tensor:
    """Weights of depth attention: the mean over tokens of α, (S + 1, sources), float64.

    Row l − 1 is sublayer l, the last row the head. Column 0 is the embedding, column i block i of
    sublayers (with size=1: sublayer i); sources that a sublayer does not read have 0. idx: (B, T).

    Example:
        >>> import torch, rr
        >>> from rr.analysis import depth_attention
        >>> each = "attnres:size=1"
        >>> shape = rr.ModelConfig(64, n_layer=1, n_head=2, d_model=8, d_ff=16, rule=each)
        >>> model = rr.model.initialise(rr.Model(shape), seed=0)
        >>> depth_attention(model, torch.arange(8)[None])[1].tolist()  # of the MLP
        [0.5, 0.5, 0.0]
    """
    if model.final_rule.name != "attnres":
        raise RRError(f"{model.final_rule.name} has no depth attention: use a model with attnres")
    states: list[list[Tensor]] = []  # what each rule reads: the embedding, then every write

    def opened(layer: nn.Module, args: tuple) -> None:
        states.append(args[0])

    def written(rule: nn.Module, args: tuple, out: list[Tensor]) -> None:
        states.append(out)

    with hooked(model.layers[:1], opened, before=True), hooked(model.rules, written):
        model.hidden(idx)
    readers: list[Any] = [*model.rules, model.final_rule]
    rows = [
        rule.weights(state).double().mean((1, 2, 3))
        for rule, state in zip(readers, states, strict=True)
    ]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).cpu()
