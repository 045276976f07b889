"""Residual rules: what a sublayer reads from the stream, and how its update is written back.

Importing this package registers every rule: `RULES` has the residual rules by name, `REGISTRY` the
value rules, too. Below the classes and functions each rule stands with its equation, its options
and its costs.

Example:
    >>> import torch
    >>> from rr.residual import Residuals
    >>> layers = Residuals("review", dim=16, n_layer=1, n_head=2)  # two sublayers
    >>> state = layers.open(torch.randn(2, 5, 16))  # B, T, d
    >>> for layer in layers:
    ...     state = layer(state, torch.tanh)  # in place of tanh: your attention, your MLP
    >>> layers.close(state).shape
    torch.Size([2, 5, 16])
"""

from . import additive, depth, gates, norms, orthogonal, parallel, skips, streams, values
from .base import (
    REGISTRY,
    RULES,
    Described,
    Option,
    Rule,
    Site,
    canonical,
    content,
    make,
    register,
    resolve,
)
from .own import allow as allow_rule
from .own import as_allowed
from .stack import Residuals, site_of
from .values import ValueRule

__all__ = [
    "REGISTRY",
    "RULES",
    "Described",
    "Option",
    "Residuals",
    "Rule",
    "Site",
    "ValueRule",
    "additive",
    "allow_rule",
    "as_allowed",
    "canonical",
    "content",
    "depth",
    "gates",
    "make",
    "norms",
    "orthogonal",
    "parallel",
    "register",
    "resolve",
    "site_of",
    "skips",
    "streams",
    "values",
]
