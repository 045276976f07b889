"""The gate of the Review rule."""

import torch
from torch import Tensor
from torch.nn import functional as F

from .norm import rms_norm


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
