"""Operations that the model needs beyond torch's own, each with a plain reference implementation.

Shapes: B windows, T tokens, d channels, N = B·T tokens in a row, V vocabulary rows.

Example:
    >>> import torch
    >>> from rr.ops import rms_norm
    >>> rms_norm(torch.tensor([3.0, -4.0])).square().mean().round(decimals=4)
    tensor(1.)
"""

from .attention import attention, blocked_attention
from .cross_entropy import linear_cross_entropy, token_losses, whole_cross_entropy
from .norm import EPS, rms_norm

__all__ = [
    "EPS",
    "attention",
    "blocked_attention",
    "linear_cross_entropy",
    "rms_norm",
    "token_losses",
    "whole_cross_entropy",
]
