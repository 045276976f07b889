"""mHC (arXiv 2512.24880), one per sublayer: needs torch alone.

before the blocks:  streams = x.unsqueeze(-2).repeat(1, 1, 4, 1)
before:             h = h + attention(norm(h))
after:              streams = self.connection(streams, lambda x: attention(norm(x)))
after the blocks:   h = streams.sum(-2)
"""

import torch
from torch import nn
from torch.nn import functional as F


class ManifoldConnection(nn.Module):
    """Reads n streams, mixes them by a doubly stochastic matrix, and adds the update to each.

    index: of the sublayer, 0, 1, …: at the start it reads mostly stream index mod n.
    """

    def __init__(self, dim, index, n=4):
        super().__init__()
        reads = F.one_hot(torch.tensor(index % n), n).float()[:, None]
        start = [6 * reads - 3, 6 * torch.eye(n) - 3, torch.zeros(n, 1)]
        self.static = nn.Parameter(torch.cat(start, 1))
        self.dynamic = nn.Parameter(torch.zeros(n * dim, n * (n + 2)))
        self.scale = nn.Parameter(torch.full((3,), 0.01))

    def forward(self, streams, branch):
        n, whole = streams.shape[-2], streams.float().flatten(-2)
        seen = F.rms_norm(whole, whole.shape[-1:], eps=1e-5) @ self.dynamic
        scale = torch.cat([self.scale[:1], self.scale[1:2].expand(n), self.scale[2:]])
        logits = self.static + scale * seen.unflatten(-1, (n, n + 2))
        read, mix, write = logits.split([1, n, 1], -1)
        for _ in range(20):  # Sinkhorn: rows, then columns
            mix = mix.log_softmax(-1).log_softmax(-2)
        weights = torch.cat([read.sigmoid(), mix.exp(), 2 * write.sigmoid()], -1)
        read, mix, write = weights.to(streams.dtype).split([1, n, 1], -1)
        u = branch((read * streams).sum(-2))
        return mix.transpose(-1, -2) @ streams + write * u.unsqueeze(-2)
