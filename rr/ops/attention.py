"""torch's attention, with heads padded to sizes that the fused kernels of a GPU take."""

from torch import Tensor
from torch.nn import functional as F

ALIGNED = 8  # channels: cuDNN, FlashAttention and the float32 kernel want a multiple of it


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
