"""Compilation of a model by blocks or as one graph."""

from typing import Any

from ..config import ModelConfig
from ..residual import resolve
from .transformer import Model


def grows(config: ModelConfig) -> bool:
    """Whether what flows between blocks grows with depth: list streams, dense values."""
    return resolve(config.rule)[0].state == "list" or config.values == "dense"


def compile_model(model: Model, compiler: Any = "inductor") -> None:
    """Compile in place, without graph breaks: each block alone, so that all share one graph.

    Where what flows between blocks grows, no two are alike, and the stack is one graph. compiler:
    a backend of `torch.compile`.
    """
    parts = [model.stack] if grows(model.config) else model.every_layer
    for part in parts:
        part.compile(backend=compiler, fullgraph=True, dynamic=False)
