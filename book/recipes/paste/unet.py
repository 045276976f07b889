"""Skips from early blocks to late ones, as in a U-net, one module per model: needs torch alone.

before:  for block in blocks: h = block(h)
after:   left = []
         for i, block in enumerate(blocks): h = block(self.skips(i, h, left))
"""

import torch
from torch import nn


class Skips(nn.Module):
    """Of L blocks, block L + 1 − b reads h plus w_b times what block b ≤ L/2 left.

    w starts at 1 and does not decay. Of an odd number of blocks the middle one has no partner.
    """

    def __init__(self, n_layer):
        super().__init__()
        self.n_layer = n_layer
        self.weight = nn.Parameter(torch.ones(n_layer // 2))

    def forward(self, i, h, left):
        """What block i = 0, 1, … reads. left: a list, empty before block 0, that each call uses."""
        half = self.n_layer // 2
        if 0 < i <= half:
            left.append(h)
        if i >= self.n_layer - half:
            h = h + self.weight[self.n_layer - 1 - i].to(h.dtype) * left.pop()
        return h
