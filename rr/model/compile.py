"""Compilation of a model: each block alone, or the whole stack."""

from typing import Any

from ..config import ModelConfig
from ..residual import resolve
from .transformer import Model


def grows(config: ModelConfig) -> bool:
    """Whether the state between blocks grows with depth: list states, dense values."""
    return resolve(config.rule)[0].state == "list" or config.values == "dense"


def compile_model(model: Model, compiler: Any = "inductor") -> None:
    """Compile in place, without graph breaks: each block alone, so that all share one graph.

    Where the state between blocks grows, no two blocks are alike, and the stack is one graph.
    compiler: a backend of `torch.compile`.
    """
    parts = [model.stack] if grows(model.config) else model.every_layer
    for part in parts:
        part.compile(backend=compiler, fullgraph=True, dynamic=False)
