"""The decoder: its layers, initial weights, compilation, and the ladder of published sizes.

Example:
    >>> import torch
    >>> from rr import ModelConfig
    >>> from rr.model import Model
    >>> shape = ModelConfig(64, n_layer=2, n_head=2, d_model=8, d_ff=16, rule="review")
    >>> Model(shape)(torch.arange(8)[None]).shape  # logits: B, T, V
    torch.Size([1, 8, 64])
"""

from .. import lazy_names

_MODULES = {
    "Model": "transformer",
    "at_loops": "transformer",
    "compile_model": "compile",
    "initialise": "init",
    "site_of": ".residual",
}
__all__ = [*_MODULES]
__getattr__, __dir__ = lazy_names(__name__, _MODULES, __all__)
