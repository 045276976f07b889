"""Residual rules: what a sublayer reads from the stream, and how its update is written back.

Importing this package registers every rule in `RULES`.
"""

from . import additive, depth, gates, orthogonal, parallel, skips, streams
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

__all__ = [
    "REGISTRY",
    "RULES",
    "Described",
    "Option",
    "Residuals",
    "Rule",
    "Site",
    "additive",
    "allow_rule",
    "as_allowed",
    "canonical",
    "content",
    "depth",
    "gates",
    "make",
    "orthogonal",
    "parallel",
    "register",
    "resolve",
    "site_of",
    "skips",
    "streams",
]
