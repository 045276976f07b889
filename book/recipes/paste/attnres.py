"""Attention residuals (arXiv 2603.15031), one per sublayer and one before the head: torch alone.

before the blocks:  updates = [x]
before:             h = h + attention(norm(h))
after:              updates = updates + [attention(norm(self.look(updates)))]
after the blocks:   h = self.last_look(updates), then the norm before the head
"""

import torch
from torch import nn
from torch.nn import functional as F


class DepthAttention(nn.Module):
    """Per token a softmax over all earlier updates, the embedding among them.

    The query starts at 0, so that the weights start equal: the mean of the updates is their sum
    divided by their number, which a norm after it takes out.
    """

    def __init__(self, dim):
        super().__init__()
        self.query = nn.Parameter(torch.zeros(dim))
        self.key_gain = nn.Parameter(torch.ones(dim))

    def forward(self, updates):
        values = torch.stack(updates)
        keys = F.rms_norm(values.float(), values.shape[-1:], self.key_gain, eps=1e-5)
        weights = (keys * self.query).sum(-1, keepdim=True).softmax(0)
        return (weights.to(values.dtype) * values).sum(0)
