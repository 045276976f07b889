"""The few operations that the model needs beyond torch's own, each beside its plain reference.

Shapes: B windows, T tokens, d channels, N = B·T tokens in a row, V vocabulary rows.

Two of them, the gated write and the loss, have more than one path to the same mathematics. `use`
chooses; paths differ by rounding, so what a run was computed with belongs into its record. It also
says whether blocks keep what their backward pass needs.
"""

import contextlib
import functools
import importlib.util
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import torch
from torch import Tensor
from torch.nn import functional as F

from .config import RRError, nearest

EPS = 1e-5  # inside every RMS, in the gate as in the norms (the study's value)

GATES = ("reference", "fast", "triton")
LOSSES = ("chunked", "fused", "whole")
RECOMPUTED = ("none", "layer")
chosen = SimpleNamespace(gate="reference", loss="chunked", recompute="none")


@contextlib.contextmanager
def use(
    gate: str | None = None, loss: str | None = None, recompute: str | None = None
) -> Iterator[None]:
    """Within the block the model takes these paths; None leaves one as it is.

    gate: "reference" (concatenated inputs, autograd), "fast" (`gated_write`) or "triton" (the same
    as one kernel; needs Triton and a GPU, or its interpreter). Gates that have no fast path stay on
    the reference. loss: "chunked", "fused" (chunked, the softmax of a chunk compiled into a few
    passes over its logits) or "whole" (all logits at once, autograd). recompute: "none" or "layer"
    (`model.Layer`; the backward pass must be within the block, too). Raises RRError.
    """
    for name, known in ((gate, GATES), (loss, LOSSES), (recompute, RECOMPUTED)):
        if name is not None and name not in known:
            raise RRError(f"unknown path {name!r}: {nearest(name, known)}")
    if gate == "triton" and importlib.util.find_spec("triton") is None:
        raise RRError("gate=triton needs the package triton, which is not installed here")
    before = dict(vars(chosen))
    asked = {"gate": gate, "loss": loss, "recompute": recompute}
    vars(chosen).update({name: word for name, word in asked.items() if word is not None})
    try:
        yield
    finally:
        vars(chosen).update(before)


def sums(device: torch.device) -> torch.dtype:
    """In what losses are added up on a device: float64, or float32 on mps, which has no more."""
    return torch.float32 if device.type == "mps" else torch.float64


def rms_norm(x: Tensor, gain: Tensor | None = None, eps: float = EPS) -> Tensor:
    """`x / sqrt(mean(x²) + eps) · gain` over the last axis, computed in at least float32.

    x: (…, d), gain: (d,) or None. Source: Zhang and Sennrich 2019; eps as in arXiv 2606.31859.
    """
    x = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    return F.rms_norm(x, x.shape[-1:], gain, eps)


def review_gate(h: Tensor, u: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`r = σ(W [rms(h) ; rms(u)] + b)`, (B, T, d). The reference path.

    weight: (d, 2d), state half first; bias: (d,). Source: arXiv 2606.31859, equation 3.
    """
    return torch.sigmoid(F.linear(torch.cat([rms_norm(h), rms_norm(u)], -1), weight, bias))


class _GatedWrite(torch.autograd.Function):
    """The gated write with its algebra done by hand; see `gated_write`.

    With s(x) = 1 / sqrt(mean(x²) + eps), W rms(x) = s(x) · W x: raw rows, scaled after.
    The sum of both inputs is one accumulated product, s_u · (W_h (s_h/s_u · h) + W_u u), so that
    neither normalised inputs nor their concatenation exist. Saved for backward: h and u as they
    came, r in the dtype of the products, and one float a token for each norm.
    """

    @staticmethod
    def forward(ctx, h, u, weight, bias, reads, convex, dtype):
        d = h.shape[-1]
        seen = [x for x, name in ((h, "state"), (u, "update")) if name in reads]
        scales = [_scale(x) for x in seen]
        rows = weight.to(dtype).split(d, 1)  # (d, d) an input
        z = seen[-1].to(dtype) @ rows[-1].t()
        if len(seen) == 2:
            z.addmm_((h * (scales[0] / scales[1])).to(dtype), rows[0].t())
        r = torch.sigmoid(z * scales[-1] + bias)
        ctx.save_for_backward(h, u, weight, r.to(dtype), *scales)
        ctx.reads, ctx.convex, ctx.dtype = reads, convex, dtype
        return (h + r * (u - h if convex else u)).to(h.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        h, u, weight, r, *scales = ctx.saved_tensors
        d, dtype, last = h.shape[-1], ctx.dtype, scales[-1]
        r = r.to(last.dtype)
        grad_v = grad * r
        grad_z = grad_v * (1 - r) * (u - h if ctx.convex else u)
        grad_bias = grad_z.sum(0)
        grad_z = (grad_z * last).to(dtype)
        # both inputs at once: the only buffer of width 2d, and a brief one
        through = (grad_z @ weight.to(dtype)).split(d, -1)
        grads = {"state": grad - grad_v if ctx.convex else grad, "update": grad_v}
        parts = []
        for name, scale, g in zip(ctx.reads, scales, through, strict=True):
            x = h if name == "state" else u
            if scale is not last:
                g = g * (scale / last)
            along = (x * g).sum(-1, keepdim=True) * (scale.square() / d)
            grads[name] = grads[name] + g - along * x
            x = x if scale is last else x * (scale / last)
            parts.append(grad_z.t() @ x.to(dtype))
        grad_weight = torch.cat(parts, 1).to(weight.dtype)
        grads = grads["state"].to(h.dtype), grads["update"].to(u.dtype)
        return *grads, grad_weight, grad_bias.to(weight.dtype), None, None, None


def _scale(x: Tensor) -> Tensor:
    """`1 / sqrt(mean(x²) + eps)` over the last axis, which stays as 1; at least float32."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    return torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)


def gated_write(
    h: Tensor,
    u: Tensor,
    weight: Tensor,
    bias: Tensor,
    reads: tuple[str, ...] = ("state", "update"),
    convex: bool = False,
) -> Tensor:
    """`h + r ⊙ u`, or `h + r ⊙ (u − h)` if convex, with r = σ(W [rms(h) ; rms(u)] + b), (B, T, d).

    The path that `use` chose, "fast" or "triton"; the reference is `review_gate` and the rules'
    plain writes. weight: (d, d·inputs), the halves in the order of `reads`, which names what the
    gate sees; bias: (d,). Products run in autocast's dtype, else in the weight's; the rest in at
    least float32. Differentiable once. Source of the equation: arXiv 2606.31859.
    """
    device, d = h.device.type, h.shape[-1]
    dtype = weight.dtype
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    rows = h.reshape(-1, d), u.reshape(-1, d)
    with torch.autocast(device, enabled=False):
        if chosen.gate == "triton":
            from .kernels import gated_write as kernel  # only here: Triton is not everywhere

            return kernel(*rows, weight, bias, reads, convex, EPS, dtype).view(h.shape)
        return _GatedWrite.apply(*rows, weight, bias, reads, convex, dtype).view(h.shape)


class _LinearCrossEntropy(torch.autograd.Function):
    """Head and loss, a chunk of tokens at a time; gradients are formed on the way forward.

    The whole (N, V) logits never exist: memory is one chunk of them. Products run in the dtype of
    `hidden`, the softmax and both sums in at least float32.
    """

    @staticmethod
    def forward(ctx, hidden, weight, targets, vocab_size, chunk, fused):
        n, wide = hidden.shape[0], torch.promote_types(hidden.dtype, torch.float32)
        rows = weight.to(hidden.dtype)
        grad_hidden = torch.empty_like(hidden)
        grad_weight = None
        total = torch.zeros((), dtype=wide, device=hidden.device)
        # float16 holds nothing below 6e-8: there the mean's 1/n waits until the loss is scaled.
        now, ctx.later = (1, n) if hidden.dtype == torch.float16 else (n, None)
        softmax = _fused_softmax() if fused else _softmax
        for start in range(0, n, chunk):
            part = slice(start, start + chunk)
            target = targets[part, None]
            # No name here for the (chunk, V) logits: they go as soon as the softmax has read them.
            loss, grad = softmax(F.linear(hidden[part], rows), target, vocab_size, now)
            total += loss
            torch.mm(grad, rows, out=grad_hidden[part])
            if grad_weight is None:
                grad_weight = (grad.t() @ hidden[part]).to(wide)
            elif wide == hidden.dtype:
                grad_weight.addmm_(grad.t(), hidden[part])
            else:
                grad_weight += grad.t() @ hidden[part]
        ctx.save_for_backward(grad_hidden, grad_weight.to(weight.dtype))
        return total / n

    @staticmethod
    def backward(ctx, grad_loss):
        grad_hidden, grad_weight = ctx.saved_tensors
        if ctx.later is not None:
            grad_loss = grad_loss / ctx.later
        return grad_hidden * grad_loss, grad_weight * grad_loss, None, None, None, None


def _softmax(logits: Tensor, target: Tensor, vocab_size: int, now: int) -> tuple[Tensor, Tensor]:
    """Summed losses of a chunk, and (softmax − one-hot) / now in the dtype of its logits (N, V)."""
    dtype = logits.dtype
    logits = logits.to(torch.promote_types(dtype, torch.float32))
    logits[:, vocab_size:] = -torch.inf  # padding rows never get probability
    log_z = logits.logsumexp(-1, keepdim=True)
    loss = (log_z - logits.gather(1, target)).sum()
    grad = logits.sub_(log_z).exp_()  # in place
    grad.scatter_add_(1, target, torch.full_like(log_z, -1.0))
    return loss, grad.div_(now).to(dtype)


def _softmax_at_once(
    logits: Tensor, target: Tensor, vocab_size: int, now: int
) -> tuple[Tensor, Tensor]:
    """The same without writes in place, which a compiler turns into three passes over logits."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    columns = torch.arange(wide.shape[1], dtype=torch.int32, device=wide.device)
    wide = wide.masked_fill(columns >= vocab_size, -torch.inf)
    top = wide.amax(-1, keepdim=True)
    log_z = top + (wide - top).exp().sum(-1, keepdim=True).log()
    loss = (log_z - wide.gather(1, target)).sum()
    p = (wide - log_z).exp()
    grad = torch.where(columns == target.to(torch.int32), p - 1, p) / now
    return loss, grad.to(logits.dtype)


@functools.cache
def _fused_softmax() -> Callable:
    """`_softmax_at_once` by Inductor; compiled at its first call, once a shape."""
    return torch.compile(_softmax_at_once, dynamic=False)


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, vocab_size: int, chunk: int | None = None
) -> Tensor:
    """Mean of −log softmax(hidden Wᵀ)[target], in nats a token, without the whole logits.

    hidden: (N, d); weight: (V, d) with V ≥ vocab_size; targets: (N,) below vocab_size. Rows of
    `weight` from vocab_size on are padding and are left out of the softmax. chunk: tokens at once;
    by default 1024, and 2048 where the softmax is fused, which then takes as many bytes. The loss
    is float32 (float64 for float64 inputs) whatever the dtype of `hidden`. Where `use` chose
    "whole" it is `whole_cross_entropy`.
    """
    if chosen.loss == "whole":
        return whole_cross_entropy(hidden, weight, targets, vocab_size)
    fused = chosen.loss == "fused"
    chunk = chunk or (2048 if fused else 1024)
    if torch.is_autocast_enabled(hidden.device.type):
        hidden = hidden.to(torch.get_autocast_dtype(hidden.device.type))
    with torch.autocast(hidden.device.type, enabled=False):
        if torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad):
            return _LinearCrossEntropy.apply(hidden, weight, targets, vocab_size, chunk, fused)
        total = torch.zeros((), dtype=sums(hidden.device), device=hidden.device)
        for part in range(0, hidden.shape[0], chunk):
            losses = token_losses(hidden[part : part + chunk], weight, targets[part : part + chunk],
                                  vocab_size)[0]
            total += losses.to(total.dtype).sum()
        wide = torch.promote_types(hidden.dtype, torch.float32)
        return (total / hidden.shape[0]).to(wide)


def whole_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, vocab_size: int
) -> Tensor:
    """The same mean loss from all (N, vocab_size) logits at once, by autograd. The reference path.

    Shapes as in `linear_cross_entropy`. Memory: the logits, their log-softmax and its gradient.
    """
    logits = F.linear(hidden, weight[:vocab_size])
    return F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), targets)


def token_losses(
    hidden: Tensor, weight: Tensor, targets: Tensor, vocab_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Each token's loss (nats), the model's top-1 confidence, and whether the top-1 was right.

    Shapes as in `linear_cross_entropy`; three tensors of (N,). For evaluation, in chunks.
    """
    logits = F.linear(hidden, weight.to(hidden.dtype))[:, :vocab_size]
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    log_z = logits.logsumexp(-1)
    best, choice = logits.max(-1)
    loss = log_z - logits.gather(1, targets[:, None])[:, 0]
    return loss, (best - log_z).exp(), choice == targets
