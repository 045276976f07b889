"""RMS normalisation, and the gate of the Review rule, which is made of it."""

import torch
from torch import Tensor
from torch.nn import functional as F

EPS = 1e-5  # inside every RMS, in the gate as in the norms (the study's value)


def rms_norm(x: Tensor, gain: Tensor | None = None, eps: float = EPS) -> Tensor:
    """RMS norm, x/√(mean(x²) + eps)·gain over the last axis, computed in at least float32.

    x: (…, d). gain: (d,) or None. eps: 1e-5 unless given. Returns (…, d), float32 for 16-bit x.
    Source: Zhang and Sennrich 2019; eps as in arXiv 2606.31859.

    Example:
        >>> import torch
        >>> from rr.ops import rms_norm
        >>> rms_norm(torch.tensor([3.0, 3.0]))
        tensor([1.0000, 1.0000])
    """
    x = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    return F.rms_norm(x, x.shape[-1:], gain, eps)


def review_gate(h: Tensor, u: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The Review gate r = σ(W [rms(h) ; rms(u)] + b).

    rms(x) = x/√(mean(x²) + 1e-5) over the channels of a token, without a gain: `rr.ops.rms_norm`.
    h, u: the stream and the update, (…, d). weight: W (d, 2d), the half of the state first. bias: b
    (d,). Returns r (…, d); the write is h + r * u. Source: arXiv 2606.31859, equation 3.

    Example:
        >>> import torch
        >>> from rr.ops import review_gate
        >>> h, u = torch.randn(1, 1, 2), torch.randn(1, 1, 2)
        >>> review_gate(h, u, torch.zeros(2, 4), torch.zeros(2))
        tensor([[[0.5000, 0.5000]]])
    """
    return torch.sigmoid(F.linear(torch.cat([rms_norm(h), rms_norm(u)], -1), weight, bias))
