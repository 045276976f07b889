"""Measurements of a forward and backward pass by depth: norms, gradients, shares, cosines."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..config import RRError, nearest
from ..model.transformer import Model


@dataclass(frozen=True)
class Step:
    """One sublayer's write, seen from outside: tensors (B, T, d); r is None without a gate."""

    kind: str
    sublayer: int
    h: Tensor
    u: Tensor
    r: Tensor | None
    kept: Tensor | float  # coefficient on h: 1 for additive rules, 1 − r for convex ones
    out: Tensor
    pass_: int  # 1 … N


@contextlib.contextmanager
def wrapped(owners: list, name: str, wrap: Callable[[Any, Callable], Callable]) -> Iterator[None]:
    """Replace the method `name` of each owner by wrap(owner, method); put back what was there."""
    before = [(owner, vars(owner).get(name), getattr(owner, name)) for owner in owners]
    for owner, _, method in before:
        setattr(owner, name, wrap(owner, method))
    try:
        yield
    finally:
        for owner, own, _ in before:
            delattr(owner, name)
            if own is not None:  # a caller's own patch
                setattr(owner, name, own)


def trace(model: Model, idx: Tensor, grad: bool = False) -> list[Step]:
    """What every sublayer read, proposed and left behind, for token ids (B, T).

    Looped models give 2·L·N steps, pass by pass. With grad=True the tensors stay in the graph and
    each stream state keeps its gradient. For rules whose state is one tensor.
    """
    steps: list[Step] = []

    def spy(rule: Any, write: Callable) -> Callable:
        def record(state: Tensor, u: Tensor) -> Tensor:
            out = write(state, u)
            if grad:
                out.retain_grad()
            site, r, kept = rule.site, rule.gate(state, u), rule.kept(state, u)
            pass_ = 1 + len(steps) // (2 * site.n_layer)
            steps.append(Step(site.kind, site.sublayer, state, u, r, kept, out, pass_))
            return out

        return record

    rules = model.rules
    for rule in rules:
        if rule.state != "tensor":
            raise TypeError(f"{rule.name} keeps {rule.state} as its state: no single stream")
    with wrapped(rules, "write", spy), torch.enable_grad() if grad else torch.no_grad():
        model.hidden(idx)
    return steps


def rms(x: Tensor) -> float:
    """Root of the mean square over all entries."""
    return x.detach().double().pow(2).mean().sqrt().item()


def norms_by_depth(model: Model, idx: Tensor) -> list[float]:
    """Root mean square of the stream h_l, l = 0 … S, for S = 2·L·N sublayers (the unrolled net).

    idx: token ids (B, T); over all tokens and channels. For rules whose state is one tensor.
    """
    steps = trace(model, idx)
    return [rms(steps[0].h), *(rms(step.out) for step in steps)]


def increment_cosines(model: Model, idx: Tensor, each: str = "sublayer") -> Tensor:
    """Cosines between the increments of the stream, pair by pair: (n, n), float64.

    An increment is what one "sublayer", "block" or "pass" has added to the stream at a token, so
    that n is 2·L·N, L·N or N; entry (i, j) is the mean over tokens of cos(Δh_i, Δh_j). Independent
    increments have cosines near 0, and their sum grows as √n; aligned ones have 1, and it grows as
    n. One that is zero has cosine 0 with all. idx: (B, T). For rules whose state is one tensor.
    """
    sizes = {"sublayer": 1, "block": 2, "pass": 2 * model.config.n_layer}
    if each not in sizes:
        raise RRError(f"unknown increment {each!r}: {nearest(each, sizes)}")
    steps = trace(model, idx)
    ends = torch.stack([steps[0].h, *(s.out for s in steps[sizes[each] - 1 :: sizes[each]])])
    moves = F.normalize(ends.double().diff(dim=0), dim=-1)
    return torch.einsum("ibtd,jbtd->ij", moves, moves) / idx.numel()


def gradient_by_depth(model: Model, idx: Tensor, targets: Tensor) -> list[float]:
    """‖∂loss/∂h_l‖ for l = 0 … S (S = 2L·N): how much of the loss's gradient reaches each depth.

    Euclidean norm over all entries of the stream after sublayer l; entry 0 is the embedding's.
    The gradients that the parameters hold stay as they are. For rules whose state is no list.
    """
    if model.final_rule.state not in ("tensor", "streams"):
        raise TypeError(f"{model.final_rule.name} keeps a list as its state: no single stream")
    streams: list[Tensor] = []

    def after(owner: Any, method: Callable) -> Callable:
        def kept(*args: Any) -> Tensor:
            streams.append(method(*args))
            return streams[-1]

        return kept

    with (
        wrapped([model.final_rule], "open", after),
        wrapped(model.rules, "write", after),
        torch.enable_grad(),
    ):
        loss = model(idx, targets)
    return [g.double().norm().item() for g in torch.autograd.grad(loss, streams)]


def jacobian_gain(model: Model, idx: Tensor, probes: int = 8, seed: int = 0) -> float:
    """Root-mean-square singular value of ∂h_S/∂h_0, the *total* Jacobian of the stack.

    Estimated as sqrt(mean_v ‖Jᵀv‖² / ‖v‖²) over `probes` random v; 1 means that perturbations of
    the embedding reach the last state at their own size. idx: (B, T).
    """
    kept: list[Tensor] = []

    def leaf(owner: Any, method: Callable) -> Callable:
        def opened(x0: Tensor) -> Tensor:
            kept.append(method(x0.detach()).requires_grad_())
            return kept[0]

        return opened

    with wrapped([model.final_rule], "open", leaf), torch.enable_grad():
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
    """‖(∏ kept_l) ⊙ h_0‖ / ‖h_S‖: what is left of the embedding itself in the last state.

    kept_l is the coefficient on h in write l; Euclidean norms over all entries. idx: (B, T).
    """
    steps = trace(model, idx)
    left = steps[0].h.double()
    for step in steps:
        left = left * step.kept
    return (left.norm() / steps[-1].out.double().norm()).item()


def updates_by_depth(model: Model, idx: Tensor, targets: Tensor) -> tuple[list[float], list[float]]:
    """rms of each update u_l, and ‖∂loss/∂u_l‖ over all its entries, for l = 1 … S.

    Unlike the stream's, they exist under every rule. idx, targets: (B, T). The gradients that the
    parameters hold stay as they are.
    """
    updates: list[Tensor] = []

    def spy(rule: Any, write: Callable) -> Callable:
        def record(state: Any, u: Tensor) -> Any:
            updates.append(u)
            return write(state, u)

        return record

    with wrapped(model.rules, "write", spy), torch.enable_grad():
        loss = model(idx, targets)
    slopes = torch.autograd.grad(loss, updates)
    return [rms(u) for u in updates], [g.double().norm().item() for g in slopes]


@torch.no_grad()
def depth_attention(model: Model, idx: Tensor) -> Tensor:
    """Where depth attention looks: the mean over tokens of α, (S + 1, sources), float64.

    Row l − 1 is sublayer l, the last row the head. Column 0 is the embedding, column i block i of
    sublayers (with size=1: sublayer i); what a sublayer does not see is 0. idx: (B, T).
    """
    if model.final_rule.name != "attnres":
        raise RRError(f"{model.final_rule.name} has no depth attention: attnres is accepted")
    rows: list[Tensor] = []

    def spy(rule: Any, read: Callable) -> Callable:
        def record(state: list[Tensor]) -> Any:
            rows.append(rule.weights(state).double().mean((1, 2, 3)))
            return read(state)

        return record

    with wrapped([*model.rules, model.final_rule], "read", spy):
        model.hidden(idx)
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).cpu()
