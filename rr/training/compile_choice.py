"""Whether compiling a run's model on a CPU saves more time than it takes.

    eager seconds ≈ FLOPs of the run / (rate of a float32 product here · SHARE)
    compile where GAIN · eager seconds > seconds to compile, (cold + (n − 1) · WARM) / n

The rate in float32 also where products are in bf16: most of an eager step is not products, and a
matrix unit that makes those in bf16 seven times as fast leaves the rest as it is.

cold: the seconds last measured on this machine for this model, else `COLD`. Inductor keeps its
graphs on disk, so of the n runs of this shape that a sweep trains, one compiles and the others load
what it compiled: the sweep tells each of them n, and so they decide alike.
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
SHARE = {"bf16": 0.7, "fp32": 0.45}  # that an eager step reaches: in bf16 0.4 to 1.2 were measured
GAIN = 0.3  # share of an eager step's time that is saved: 0.27 to 0.67 were measured
COLD = 45.0  # seconds for a model that was never compiled here; 35 to 50 were measured
WARM = 8.0  # seconds where its graphs are on disk
RUNS = "RR_RUNS_OF_SHAPE"  # environment variable: the runs of this shape that a sweep trains


def choose(
    run: Run, eager: str, cache: str | Path | None = None, log: Callable[[str], None] = print
) -> str:
    """The backend of a new run on a CPU, in one process: `eager`, or `COMPILED` where that pays.

    Logs one line where it compiles, with both times. It stays eager where no C++ compiler is found.
    In a sweep (`RUNS`) the time to compile is shared by the runs of one shape.

    Example:
        >>> import rr
        >>> from rr.training import compile_choice
        >>> compile_choice.choose(rr.plan("nano", steps=1), "eager")
        'eager'
    """
    tokens = run.recipe.segments[-1].end * run.recipe.batch * run.model.seq_len
    flops = flops_per_token(run.model) * tokens
    precision = resolve_precision(torch.device("cpu"), run.recipe.precision)
    predicted = flops / (SHARE.get(precision, SHARE["fp32"]) * product_rate("fp32", size=512))
    known = known_value("compile-seconds", shape(run), torch.__version__, cache)
    cold = COLD if known is None else known
    runs = int(os.environ.get(RUNS, 1))
    compiling = (cold + (runs - 1) * min(cold, WARM)) / runs
    if GAIN * predicted <= compiling or not _has_compiler():
        return eager
    source = "assumed" if known is None else "measured here"
    shared = "" if runs == 1 else f", mean of the {runs} runs of this shape"
    log(
        f"about {predicted:.0f} s without compilation, {compiling:.0f} s to compile "
        f"({source}{shared}): selected backend {COMPILED}"
    )
    return COMPILED


def remember(run: Run, seconds: float, cache: str | Path | None = None) -> None:
    """Keep the measured seconds that compiling this run's model took, for the next `choose`."""
    store_value("compile-seconds", shape(run), torch.__version__, max(0.0, seconds), cache)


def shape(run: Run) -> str:
    """What a run's graphs are compiled for: equal texts, equal graphs."""
    return str(asdict(run.model) | {"batch": run.recipe.batch, "precision": run.recipe.precision})


def _has_compiler() -> bool:
    """Whether Inductor can build its kernels: a C++ compiler and Python's headers."""
    names = os.environ.get("CXX"), "g++", "clang++"
    header = Path(sysconfig.get_path("include")) / "Python.h"
    return header.exists() and any(name and shutil.which(name) for name in names)
