"""Training of one run: the loop, optimiser steps, checkpoints, the run's folder and result.

The package is not called `train`, because `rr.train` is the function that trains a run.
"""

from .. import lazy_names

_MODULES = {
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
__all__ = [*_MODULES]
__getattr__, __dir__ = lazy_names(__name__, _MODULES, __all__)
