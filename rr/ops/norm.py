"""RMS normalisation."""

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
