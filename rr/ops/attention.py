"""torch's attention, padded to sizes that a GPU's kernels take, and one for a CPU's compiler."""

import torch
from torch import Tensor
from torch.nn import functional as F

from .kernels import once

ALIGNED = 8  # channels: cuDNN, FlashAttention and the float32 kernel want a multiple of it
ROWS = 128  # queries in a block, or an eighth of a longer window: the graph grows with the blocks
BLOCKS = 8


def attention(q: Tensor, k: Tensor, v: Tensor, **options) -> Tensor:
    """softmax(q kᵀ / √e) v for q, k, v (B, H, T, e), as `scaled_dot_product_attention` does.

    options: its own. On CUDA heads whose size is no multiple of 8 are padded with zeros, which
    change no score and add channels of zeros that are cut off again. Else torch would fall back to
    a kernel that stores the (T, T) scores: of the published rungs all standard arms and most of
    highway have such heads, Review has none. On a CPU padding gains nothing: heads of 61 to 100
    channels took 0.79 to 1.13 times as long without it (tests/benchmarks/padding.py).

    Example:
        >>> import torch
        >>> from rr.ops import attention
        >>> q = k = v = torch.randn(1, 1, 3, 5)
        >>> attention(q, k, v, is_causal=True).shape
        torch.Size([1, 1, 3, 5])
    """
    if q.device.type == "cuda":
        return padded_attention(q, k, v, **options)
    return F.scaled_dot_product_attention(q, k, v, **options)


def padded_attention(q: Tensor, k: Tensor, v: Tensor, **options) -> Tensor:
    """`attention` with padded heads, on any device; equal up to rounding."""
    size = q.shape[-1]
    spare = -size % ALIGNED
    if not spare:
        return F.scaled_dot_product_attention(q, k, v, **options)
    q, k, v = (F.pad(t, (0, spare)) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, scale=size**-0.5, **options)[..., :size]


class _BlockedAttention(torch.autograd.Function):
    """Keeps q, k, v, the result and one number per query; the backward pass computes the rest."""

    @staticmethod
    def forward(ctx, q, k, v):
        wide = torch.promote_types(q.dtype, torch.float32)
        mixed, sizes = [], []
        for start, end in _blocks(q.shape[2]):
            scores = _scores(q, k, start, end, wide)
            top = scores.amax(-1, keepdim=True)
            weights = (scores - top).exp()
            total = weights.sum(-1, keepdim=True)
            mixed.append((weights / total).to(v.dtype) @ v[:, :, :end])
            sizes.append(top + total.log())
        result, log_total = torch.cat(mixed, 2), torch.cat(sizes, 2)
        ctx.save_for_backward(q, k, v, result, log_total)
        return result

    @staticmethod
    def backward(ctx, grad):
        once("attention='auto'")
        q, k, v, result, log_total = ctx.saved_tensors
        dtype, wide = q.dtype, log_total.dtype
        along = (grad.to(wide) * result).sum(-1, keepdim=True)
        grad_q = []
        grad_k, grad_v = (torch.zeros_like(t, dtype=wide) for t in (k, v))
        for start, end in _blocks(q.shape[2]):
            rows, keys, values = grad[:, :, start:end], k[:, :, :end], v[:, :, :end]
            weights = (_scores(q, k, start, end, wide) - log_total[:, :, start:end]).exp()
            through = (rows @ values.transpose(-1, -2)).to(wide) - along[:, :, start:end]
            through = (weights * through * q.shape[-1] ** -0.5).to(dtype)
            grad_q.append(through @ keys)
            grad_k[:, :, :end] += through.transpose(-1, -2) @ q[:, :, start:end]
            grad_v[:, :, :end] += weights.to(dtype).transpose(-1, -2) @ rows
        return torch.cat(grad_q, 2), grad_k.to(dtype), grad_v.to(dtype)


def _scores(q: Tensor, k: Tensor, start: int, end: int, wide: torch.dtype) -> Tensor:
    """`Q Kᵀ / √e` of one block of queries, −∞ where a key is later than its query."""
    place = torch.arange(end, device=q.device)
    scores = (q[:, :, start:end] @ k[:, :, :end].transpose(-1, -2)).to(wide) * q.shape[-1] ** -0.5
    return scores.masked_fill(place > place[start:, None], -torch.inf)


def _blocks(length: int) -> list[tuple[int, int]]:
    """First and last query (exclusive) of each block."""
    rows = max(ROWS, -(-length // BLOCKS))
    return [(start, min(start + rows, length)) for start in range(0, length, rows)]


def blocked_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention, softmax(q kᵀ/√e + mask) v, one block of queries at a time.

    The mask is fixed: a query sees the keys up to its own position. q: (B, H, T, e), e channels per
    head. k, v: (B, H_kv, T, e), H a multiple of H_kv: query heads j·H/H_kv … (j + 1)·H/H_kv − 1
    share head j of both. Returns (B, H, T, e). Products run in the dtype of q, the softmax in at
    least float32. Like torch's own kernel it keeps no (T, T) weights for the backward pass.
    Differentiable once: a second derivative is refused.

    Example:
        >>> import torch
        >>> from rr.ops import blocked_attention
        >>> q, k, v = torch.randn(3, 1, 2, 300, 8).unbind()
        >>> flash = torch.nn.functional.scaled_dot_product_attention(
        ...     q, k, v, is_causal=True
        ... )
        >>> torch.allclose(blocked_attention(q, k, v), flash, atol=1e-6)
        True
    """
    heads = q.shape[1]
    if k.shape[1] != heads:
        k, v = (t.repeat_interleave(heads // t.shape[1], 1) for t in (k, v))
    return _BlockedAttention.apply(q, k, v)
