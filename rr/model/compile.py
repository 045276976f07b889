"""Compilation of a model: each block alone, or the whole stack."""

from typing import Any

from ..residual.stack import grows
from .transformer import Model


def compile_model(model: Model, compiler: Any = "inductor") -> None:
    """Compile in place, without graph breaks: each block alone, so that all share one graph.

    Where the state between blocks grows with depth (rules with a "list" state, dense values), no
    two blocks are alike, and the stack is one graph. A graph break raises torch's own error on the
    first call. compiler: a backend of `torch.compile`.

    Example:
        >>> import rr
        >>> config = rr.ModelConfig(64, n_layer=2, n_head=2, d_model=8, d_ff=16)
        >>> model = rr.model.initialise(rr.Model(config), seed=0)
        >>> rr.model.compile_model(model, compiler="eager")  # in place
    """
    parts = [model.stack] if grows(model.config) else model.every_layer
    for part in parts:
        part.compile(backend=compiler, fullgraph=True, dynamic=False)
