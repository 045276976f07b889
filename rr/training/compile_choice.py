"""Whether compiling a run's model on a CPU saves more time than it takes.

    eager seconds ≈ FLOPs of the run / (rate of a matrix product here · SHARE)
    compile where GAIN · eager seconds > seconds to compile

The seconds to compile are those last measured on this machine for this model, else `COLD`. Inductor
keeps its graphs on disk, so a second run of a model that was compiled once starts within seconds.
"""

import os
import shutil
import sysconfig
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch

from ..config import Run
from ..data.cache import known_value, store_value
from ..model.ladder import flops_per_token
from .device import product_rate, resolve_precision

COMPILED = "compiled:attention=blocks"  # the backend that is chosen
SHARE = 0.35  # of a large product's rate that an eager step reaches: 0.2 to 0.5 were measured
GAIN = 0.25  # least share of an eager step's time that a compiled one was measured to save
COLD = 45.0  # seconds for a model that was never compiled here; 35 to 50 were measured


def choose(
    run: Run, eager: str, cache: str | Path | None = None, log: Callable[[str], None] = print
) -> str:
    """The backend of a new run on a CPU, in one process: `eager`, or `COMPILED` where that pays.

    Logs one line where it compiles, with both times. It stays eager where no C++ compiler is found.

    Example:
        >>> import rr
        >>> from rr.training import compile_choice
        >>> compile_choice.choose(rr.plan("nano", steps=1), "eager")
        'eager'
    """
    tokens = run.recipe.segments[-1].end * run.recipe.batch * run.model.seq_len
    flops = flops_per_token(run.model) * tokens
    precision = resolve_precision(torch.device("cpu"), run.recipe.precision)
    predicted = flops / (SHARE * product_rate(precision, size=512))
    known = known_value("compile-seconds", _key(run), torch.__version__, cache)
    compiling = COLD if known is None else known
    if GAIN * predicted <= compiling or not _has_compiler():
        return eager
    source = "assumed" if known is None else "measured here"
    log(
        f"about {predicted:.0f} s without compilation, {compiling:.0f} s to compile ({source}): "
        f"selected backend {COMPILED}"
    )
    return COMPILED


def remember(run: Run, seconds: float, cache: str | Path | None = None) -> None:
    """Keep the measured seconds that compiling this run's model took, for the next `choose`."""
    store_value("compile-seconds", _key(run), torch.__version__, max(0.0, seconds), cache)


def _key(run: Run) -> str:
    return str(asdict(run.model) | {"batch": run.recipe.batch, "precision": run.recipe.precision})


def _has_compiler() -> bool:
    """Whether Inductor can build its kernels: a C++ compiler and Python's headers."""
    names = os.environ.get("CXX"), "g++", "clang++"
    header = Path(sysconfig.get_path("include")) / "Python.h"
    return header.exists() and any(name and shutil.which(name) for name in names)
