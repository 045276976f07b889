"""A Review residual (arXiv 2606.31859), one per sublayer: needs torch alone.

before:  h = h + attention(norm(h))
after:   h = self.review(h, attention(norm(h)))
"""

import torch
from torch import nn
from torch.nn import functional as F


class Review(nn.Module):
    """h + σ(W [rms(h); rms(u)] + b) ⊙ u: the gate starts at ½, or at σ(bias)."""

    def __init__(self, dim, bias=0.0):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim, 2 * dim))
        self.bias = nn.Parameter(torch.full((dim,), bias))

    def forward(self, h, u):
        seen = [F.rms_norm(x.float(), x.shape[-1:], eps=1e-5) for x in (h, u)]
        gate = torch.sigmoid(F.linear(torch.cat(seen, -1), self.weight, self.bias))
        return h + gate.to(u.dtype) * u
