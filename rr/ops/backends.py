"""The few operations that the model needs beyond torch's own, each beside its plain reference.

Shapes: B windows, T tokens, d channels, N = B·T tokens in a row, V vocabulary rows.

Two of them, the gated write and the loss, have more than one path to the same mathematics. `use`
chooses; paths differ by rounding, so what a run was computed with belongs into its record. It also
says whether blocks keep what their backward pass needs.
"""

import contextlib
import importlib.util
from collections.abc import Iterator
from types import SimpleNamespace

from ..config import RRError, nearest

GATES = ("reference", "fast", "triton")
LOSSES = ("chunked", "fused", "whole")
RECOMPUTED = ("none", "layer")
chosen = SimpleNamespace(gate="reference", loss="chunked", recompute="none")


@contextlib.contextmanager
def use(
    gate: str | None = None, loss: str | None = None, recompute: str | None = None
) -> Iterator[None]:
    """Within the block the model takes these paths; None leaves one as it is.

    gate: "reference" (concatenated inputs, autograd), "fast" (`gated_write`) or "triton" (the same
    as one kernel; needs Triton and a GPU, or its interpreter). Gates that have no fast path stay on
    the reference. loss: "chunked", "fused" (chunked, the softmax of a chunk compiled into a few
    passes over its logits) or "whole" (all logits at once, autograd). recompute: "none" or "layer"
    (`model.Layer`; the backward pass must be within the block, too). Raises RRError.
    """
    for name, known in ((gate, GATES), (loss, LOSSES), (recompute, RECOMPUTED)):
        if name is not None and name not in known:
            raise RRError(f"unknown path {name!r}: {nearest(name, known)}")
    if gate == "triton" and importlib.util.find_spec("triton") is None:
        raise RRError("gate=triton needs the package triton, which is not installed here")
    before = dict(vars(chosen))
    asked = {"gate": gate, "loss": loss, "recompute": recompute}
    vars(chosen).update({name: word for name, word in asked.items() if word is not None})
    try:
        yield
    finally:
        vars(chosen).update(before)
