"""Which implementation the model's layers compute with, where there is more than one.

Implementations of one operation agree up to rounding, so a run's record names the one it used.
"""

from dataclasses import dataclass

import torch

from ..errors import RRError, nearest

LOSSES = ("chunked", "fused", "whole")
RECOMPUTED = ("none", "layer")
ATTENTIONS = ("auto", "blocks")


def once(instead: str) -> None:
    """In a backward pass by hand: refuse `create_graph`, since it has no graph of its own."""
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise RRError(f"no second derivative is computed here: first model.use(Kernels({instead}))")


@dataclass(frozen=True)
class Kernels:
    """Implementations that a model is built with, or given later by `Model.use`.

    loss: "chunked", "fused" (chunked, with the softmax of a chunk compiled; on a CPU in rows) or
    "whole" (all logits at once, autograd). recompute: "layer" computes each block again in the
    backward pass, "none" keeps its activations. attention: in training, "auto" (torch's kernel for
    the device) or "blocks" (`blocked_attention`). Raises RRError for other words.
    """

    loss: str = "chunked"
    recompute: str = "none"
    attention: str = "auto"

    def __post_init__(self) -> None:
        known = {"loss": LOSSES, "recompute": RECOMPUTED, "attention": ATTENTIONS}
        for name, words in known.items():
            word = getattr(self, name)
            if word not in words:
                raise RRError(f"unknown {name} implementation {word!r}: {nearest(word, words)}")


DEFAULT = Kernels()
