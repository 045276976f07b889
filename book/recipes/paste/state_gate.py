"""A gate that reads only the stream, one per sublayer: needs torch alone.

before:  h = h + attention(norm(h))
after:   h = self.gate(h, attention(norm(h)))
"""

import torch
from torch import nn
from torch.nn import functional as F


class StateGate(nn.Module):
    """h + σ(W rms(h) + b) ⊙ u: the gate starts at ½, or at σ(bias). W decays, b does not."""

    def __init__(self, dim, bias=0.0):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim, dim))
        self.bias = nn.Parameter(torch.full((dim,), bias))

    def forward(self, h, u):
        seen = F.rms_norm(h.float(), h.shape[-1:], eps=1e-5)
        gate = torch.sigmoid(F.linear(seen, self.weight, self.bias))
        return h + gate.to(u.dtype) * u
