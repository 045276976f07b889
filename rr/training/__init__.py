"""Training of one run: the loop, optimiser steps, checkpoints, the run's folder and result.

The package is not called `train`, because `rr.train` is the function that trains a run.

Example:
    >>> import tempfile, rr
    >>> from rr.training import finished
    >>> tiny = "nano:d_model=16,n_layer=1,n_head=1,d_ff=32,seq_len=16"
    >>> run = rr.plan(tiny, steps=2, batch=1, eval_batches=1)
    >>> with tempfile.TemporaryDirectory() as out:
    ...     folder = rr.train(run, out, log=lambda line: None)  # again: nothing is left to do
    ...     finished(folder)["tokens"]  # two steps of one window
    32
"""

from .. import lazy_names

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
__getattr__, __dir__ = lazy_names(__name__, _WHERE, __all__)
