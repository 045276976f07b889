"""Training of one run: the loop, optimiser steps, checkpoints, the run's folder and result.

The package is not called `train`, because `rr.train` is the function that trains a run.
"""

from importlib import import_module

_WHERE = {
    "Backend": "backend",
    "Checkpoints": "checkpoint",
    "OptimizerStep": "step",
    "Score": "evaluate",
    "Verdict": "verify",
    "finished": "run_folder",
    "ordered": "evaluate",
    "parse_backend": "backend",
    "predict": "memory",
    "weights_sha256": "checkpoint",
    "young": "save_interval",
}
__all__ = [*_WHERE]


def __getattr__(name: str):
    # Lazy, so that the package costs nothing to import, and no module needs all the others.
    if name in _WHERE:
        return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
