"""The decoder: its layers, initial weights, compilation, and the ladder of published sizes."""

from ..residual import site_of
from .compile import compile_model
from .init import initialise
from .transformer import Model, at_loops

__all__ = ["Model", "at_loops", "compile_model", "initialise", "site_of"]
