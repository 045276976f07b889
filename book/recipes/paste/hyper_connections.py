"""Hyper-connections (arXiv 2409.19606), one per sublayer: needs torch alone.

before the blocks:  streams = x.unsqueeze(-2).repeat(1, 1, 4, 1)
before:             h = h + attention(norm(h))
after:              streams = self.connection(streams, lambda x: attention(norm(x)))
after the blocks:   h = streams.sum(-2)
"""

import torch
from torch import nn
from torch.nn import functional as F


class HyperConnection(nn.Module):
    """Reads a mix of n streams, mixes them, and adds the update to each with a weight.

    index: of the sublayer, 0, 1, …: at the start it reads stream index mod n.
    """

    def __init__(self, dim, index, n=4):
        super().__init__()
        reads = F.one_hot(torch.tensor(index % n), n).float()[:, None]
        self.static = nn.Parameter(torch.cat([reads, torch.eye(n), torch.ones(n, 1)], 1))
        self.dynamic = nn.Parameter(torch.zeros(dim, n + 2))
        self.scale = nn.Parameter(torch.full((2,), 0.01))

    def forward(self, streams, branch):
        normed = F.rms_norm(streams.float(), streams.shape[-1:], eps=1e-5)
        n = streams.shape[-2]
        scale = torch.cat([self.scale[:1].expand(n + 1), self.scale[1:]])
        weights = (self.static + scale * torch.tanh(normed @ self.dynamic)).to(streams.dtype)
        read, mix, write = weights.split([1, n, 1], -1)
        u = branch((read * streams).sum(-2))
        return mix.transpose(-1, -2) @ streams + write * u.unsqueeze(-2)
