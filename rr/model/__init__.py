"""The decoder: its layers, initial weights, compilation, and the ladder of published sizes."""

from importlib import import_module

_WHERE = {
    "Model": "transformer",
    "at_loops": "transformer",
    "compile_model": "compile",
    "initialise": "init",
    "site_of": ".residual",
}
__all__ = [*_WHERE]


def __getattr__(name: str):
    # Lazy, so that plans, which need the ladder alone, do not import torch.
    if name in _WHERE:
        return getattr(import_module(f".{_WHERE[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
