"""The residual stream of MUDDFormer (arXiv 2502.12170), one per block: needs torch alone.

before the blocks:  outputs = [x]
before:             x = block(x)
after:              outputs = outputs + [block(x)]
                    x = self.mix[i - 1](outputs)  # i = 1, 2, …
"""

import torch
from torch import nn
from torch.nn import functional as F


class DepthMix(nn.Module):
    """After block i, from 1: a weighted sum of the embedding and all block outputs, newest last.

    A number per output, 1 for the newest and 0 for others at the start, plus one that the token
    decides. MUDD mixes the inputs of queries, keys and values so, too: these are left out.
    """

    def __init__(self, dim, i):
        super().__init__()
        hidden = (4 * (i + 1) // 64 + 1) * 64
        self.alpha = nn.Parameter(F.one_hot(torch.tensor(i), i + 1).float())
        self.first = nn.Parameter(torch.randn(hidden, dim) / dim**0.5)
        self.second = nn.Parameter(torch.zeros(i + 1, hidden))

    def forward(self, outputs):
        newest = outputs[-1].float()
        seen = F.gelu(F.linear(F.rms_norm(newest, newest.shape[-1:], eps=1e-5), self.first))
        weights = (F.linear(seen, self.second) + self.alpha).to(outputs[-1].dtype)
        return sum(w.unsqueeze(-1) * x for w, x in zip(weights.unbind(-1), outputs, strict=True))
