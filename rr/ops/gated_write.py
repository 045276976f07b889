"""The gated write h + r ⊙ u and the Review gate, with their gradients."""

import torch
from torch import Tensor
from torch.nn import functional as F

from .norm import EPS, rms_norm


def review_gate(h: Tensor, u: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The Review gate r = σ(W [rms(h) ; rms(u)] + b), the reference implementation.

    rms(x) = x/√(mean(x²) + 1e-5) over the channels of a token, without a gain: `rr.ops.rms_norm`.
    h, u: the stream and the update, (…, d). weight: W (d, 2d), the half of the state first. bias: b
    (d,). Returns r (…, d); the write is h + r * u. `rr.ops.gated_write.gated_write` is both in one,
    with a backward pass of its own. Source: arXiv 2606.31859, equation 3.

    Example:
        >>> import torch
        >>> from rr.ops import review_gate
        >>> h, u = torch.randn(1, 1, 2), torch.randn(1, 1, 2)
        >>> review_gate(h, u, torch.zeros(2, 4), torch.zeros(2))
        tensor([[[0.5000, 0.5000]]])
    """
    return torch.sigmoid(F.linear(torch.cat([rms_norm(h), rms_norm(u)], -1), weight, bias))


class _GatedWrite(torch.autograd.Function):
    """The gated write with a hand-derived backward pass; see `gated_write`.

    With s(x) = 1 / sqrt(mean(x²) + eps), W rms(x) = s(x) · W x: raw rows, scaled after.
    The sum of both inputs is one accumulated product, s_u · (W_h (s_h/s_u · h) + W_u u), so that
    neither normalised inputs nor their concatenation are stored. Saved for backward: h and u, r in
    the dtype of the products, and one float per token for each norm.
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
        written = h + r * (u - h if convex else u)
        # torch.compile of torch 2.11.0 loses the gradient of a result of `to` without effect
        return written if written.dtype == h.dtype else written.to(h.dtype)

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

    The fast implementation; the reference is `review_gate` and the rules' plain writes. weight:
    (d, d·inputs), the halves in the order of `reads`, which names what the gate reads; bias: (d,).
    Products run in autocast's dtype, else in the weight's; the rest in at least float32.
    Differentiable once. Source of the equation: arXiv 2606.31859.
    """
    d, dtype = h.shape[-1], _product_dtype(h, weight)
    with torch.autocast(h.device.type, enabled=False):
        rows = h.reshape(-1, d), u.reshape(-1, d)
        return _GatedWrite.apply(*rows, weight, bias, reads, convex, dtype).view(h.shape)


def triton_gated_write(
    h: Tensor,
    u: Tensor,
    weight: Tensor,
    bias: Tensor,
    reads: tuple[str, ...] = ("state", "update"),
    convex: bool = False,
) -> Tensor:
    """`gated_write` as one Triton kernel. Raises RRError where the kernel cannot run."""
    from . import gated_write_triton as kernel  # not at the top: Triton is optional

    d, dtype = h.shape[-1], _product_dtype(h, weight)
    with torch.autocast(h.device.type, enabled=False):
        rows = h.reshape(-1, d), u.reshape(-1, d)
        return kernel.gated_write(*rows, weight, bias, reads, convex, EPS, dtype).view(h.shape)


def _product_dtype(h: Tensor, weight: Tensor) -> torch.dtype:
    """The dtype of matrix products: autocast's where it is enabled, else the weight's."""
    if torch.is_autocast_enabled(h.device.type):
        return torch.get_autocast_dtype(h.device.type)
    return weight.dtype
