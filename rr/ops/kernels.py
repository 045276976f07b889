"""Which implementation the model's layers compute with, where there is more than one.

Implementations of one operation agree up to rounding, so a run's record names the one it used.
"""

from dataclasses import dataclass

from ..errors import RRError, nearest

LOSSES = ("chunked", "fused", "whole")
RECOMPUTED = ("none", "layer")
ATTENTIONS = ("auto", "blocks")


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
