"""The decoder: its layers, initial weights, compilation, and the ladder of published sizes."""

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
