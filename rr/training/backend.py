"""The backend of a run: how a training step is computed, its named presets and their checks.

A backend says nothing of what is computed: loss, gradients and update agree up to rounding, and how
far rounding takes a run is measured and tested against the reference backend.
"""

import contextlib
import functools
import os
import shutil
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..errors import RRError, nearest
from ..model.costs import flops_per_token
from ..ops import kernels
from ..options import parse_spec
from ..residual.stack import grows
from ..specs import PRECISIONS, ModelConfig, Run
from .device import autocast, float32_products, keep_freed
from .distributed import ALONE, World

CHOICES = {
    "precision": PRECISIONS,
    "loss": kernels.LOSSES,
    "optimizer": ("plain", "fused"),
    "compile": ("none", "layer"),
    "attention": ("auto", "blocks", "cudnn"),
    "recompute": kernels.RECOMPUTED,
    "allocator": ("system", "kept"),
}
COMPILED_CPU = "compiled:attention=blocks"  # what a long run takes on a CPU
UNCOMPILED = "eager"  # what a run takes that names none and cannot compile
# FLOPs of a run from which a CPU compiles it. Compilation takes 35 to 50 s and saves 0.27 to 0.67
# of an eager step's time, so on one or two cores it pays from here (data/measured/08_make_it_fast).
COMPILE_FLOPS = 2e13
ASKED_FOR = "asked for"  # why a run has the backend that its --backend names
TRITON = (8, 0)  # the least compute capability that Triton's own documentation supports
# Names of earlier versions, whose gated writes had a backward pass written by hand.
GONE = {"fast": "eager:allocator=kept", "triton": "compiled"}


@dataclass(frozen=True)
class Backend:
    """One implementation for each part of a step; the defaults are the reference backend.

    precision   of matrix products: "fp32", "tf32", "bf16" or "fp16"; a run's own comes before it
    loss        "whole": all logits at once; "chunked"; "fused": chunked, its softmax compiled, or,
                on a CPU, taken a few rows at a time
    optimizer   "plain": torch's own AdamW; "fused": one kernel
    compile     "layer": each block by Inductor, one graph for all blocks
    attention   "blocks": written out for a compiler (`rr.ops.blocked_attention`); "cudnn": its
                kernel before the others; GPU only
    recompute   "layer": the backward pass computes each block again; only its inputs are kept
    allocator   "kept": freed memory stays with the process; CPU only

    Example:
        >>> from rr.training import Backend
        >>> backend = Backend(precision="fp32", loss="chunked")
        >>> backend.loss, backend.compile
        ('chunked', 'none')
    """

    precision: str = "tf32"
    loss: str = "whole"
    optimizer: str = "plain"
    compile: str = "none"
    attention: str = "auto"
    recompute: str = "none"
    allocator: str = "system"

    @property
    def kernels(self) -> kernels.Kernels:
        """The part of the backend that the model's layers compute with."""
        attention = "blocks" if self.attention == "blocks" else "auto"  # which kernel: a context
        return kernels.Kernels(self.loss, self.recompute, attention)

    def validate(
        self, device: torch.device, config: ModelConfig | None = None, world: World = ALONE
    ) -> None:
        """Raise RRError unless this device, model and number of processes support the backend."""
        if device.type != "cuda" and self.attention == "cudnn":
            raise RRError(f"attention=cudnn needs a CUDA device, got {device.type}")
        if config and self.compile == "layer" and world.strategy == "fsdp" and grows(config):
            raise RRError(
                f"{config.rule} with values {config.values} compiles as one graph, which cannot "
                "be sharded: use a backend with compile=none, or --parallel ddp"
            )

    def set_up(self, device: torch.device) -> None:
        """Set what holds for the whole process, before the model's `OptimizerStep` is made.

        A compiled backend forgets the graphs of earlier models, which count against a limit of
        torch's; allocator=kept keeps freed memory from here on.
        """
        if self.compile != "none":
            torch.compiler.reset()
        if self.allocator == "kept" and device.type == "cpu":
            keep_freed()

    @contextlib.contextmanager
    def products(self, precision: str) -> Iterator[None]:
        """The context of a forward and a backward pass: float32 products, attention's kernels."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(float32_products(precision))
            if self.attention == "cudnn":
                from torch.nn.attention import SDPBackend, sdpa_kernel

                order = [
                    SDPBackend.CUDNN_ATTENTION,
                    SDPBackend.FLASH_ATTENTION,
                    SDPBackend.EFFICIENT_ATTENTION,
                    SDPBackend.MATH,
                ]
                stack.enter_context(sdpa_kernel(order, set_priority=True))
            yield

    @contextlib.contextmanager
    def forward(self, device: torch.device, precision: str | None = None) -> Iterator[None]:
        """The context of a forward pass; `precision` where a run's own is not the backend's."""
        precision = precision or self.precision
        with self.products(precision), autocast(device, precision):
            yield

    @contextlib.contextmanager
    def evaluation(self, device: torch.device, precision: str) -> Iterator[None]:
        """`forward` for evaluation, where nothing is compiled for a length that training lacks."""
        compiled = self.compile != "none"
        eager = torch.compiler.set_stance("force_eager") if compiled else contextlib.nullcontext()
        with self.forward(device, precision), eager:
            yield


EAGER = Backend("bf16", "chunked", "fused")
BACKENDS = {
    "reference": Backend(),
    "eager": EAGER,  # what `rr train` runs where nothing is compiled
    "compiled": replace(EAGER, compile="layer", loss="fused", allocator="kept"),
}


def parse_backend(spec: str) -> Backend:
    """`"compiled:precision=tf32,loss=whole"` -> the named backend with these choices changed.

    The names: "reference"; "eager", what a short `rr train` runs on a CPU; "compiled", what a long
    one runs, and one on a GPU that Triton supports. The choices are the fields of `Backend`. Raises
    RRError for unknown names and values, with those that exist.

    Example:
        >>> from rr.training import parse_backend
        >>> backend = parse_backend("compiled:precision=tf32,loss=whole")
        >>> backend.precision, backend.compile, backend.loss
        ('tf32', 'layer', 'whole')
    """
    name, given = parse_spec(spec)
    if name in GONE or "gate" in given:
        raise RRError(
            f"backend {spec!r} is of an earlier version, which wrote a gate's backward "
            f"pass by hand: use {GONE.get(name, name)}, or that version to resume or repeat its run"
        )
    if name not in BACKENDS:
        raise RRError(f"unknown backend {name!r} (--backend): {nearest(name, BACKENDS)}")
    for key, word in given.items():
        if key not in CHOICES:
            raise RRError(f"backend {name!r} has no choice {key!r}: {nearest(key, CHOICES)}")
        if word not in CHOICES[key]:
            known = nearest(word, CHOICES[key])
            raise RRError(f"backend {name}: unknown {key} {word!r}: {known}")
    return replace(BACKENDS[name], **given)


def has_compiler() -> bool:
    """Whether kernels can be built here: a C or C++ compiler and Python's headers."""
    named = [os.environ[name] for name in ("CC", "CXX") if os.environ.get(name)]
    names = named or ["gcc", "g++", "clang", "clang++", "cc"]
    header = Path(sysconfig.get_path("include")) / "Python.h"
    return header.exists() and any(shutil.which(name) for name in names)


@functools.cache
def compile_error(kind: str) -> str | None:
    """Why `torch.compile` fails on this kind of device, in one line; None where it works."""
    if not has_compiler():
        return "no C compiler or no Python.h (on Debian: apt install gcc python3-dev)"
    try:
        torch.compile(lambda x: torch.nn.functional.gelu(x) + 1)(torch.ones(8, device=kind))
    except Exception as error:  # of Inductor, Triton, a compiler, a driver: all end here
        return str(error).strip().partition("\n")[0] or type(error).__name__
    return None


def on_gpu(capability: tuple[int, int]) -> str:
    """The backend that a run on a GPU of this compute capability takes, where it compiles.

    Compiled blocks where Triton supports the GPU, with cuDNN's attention first on Hopper.
    """
    if capability < TRITON:
        return "eager"
    return "compiled:attention=cudnn" if capability[0] == 9 else "compiled"


def default(
    device: torch.device, config: ModelConfig, world: World = ALONE, flops: float = 0.0
) -> str:
    """The backend of a run that names none, where it compiles; flops: of the whole run.

    On a CPU compiled blocks from COMPILE_FLOPS on, else eager: the same run takes the same backend
    on every machine that compiles. On a GPU that of `on_gpu`.
    """
    if device.type == "cpu":
        pays = world.size == 1 and flops >= COMPILE_FLOPS
        return COMPILED_CPU if pays else "eager"
    if device.type != "cuda":
        return "eager"
    if world.strategy == "fsdp" and grows(config):
        return "eager"
    return on_gpu(torch.cuda.get_device_capability(device))


def check_spec(spec: str, device: torch.device, run: Run, world: World = ALONE) -> None:
    """Raise RRError unless this device, run and number of processes support the backend.

    The precision is part of the recipe, and so of the run's id: the backend of a run names none.
    """
    if "precision" in parse_spec(spec)[1]:
        raise RRError(
            f"--backend {spec}: the precision of a run is part of its recipe: use --precision "
            "instead"
        )
    parse_backend(spec).validate(device, run.model, world)


def of_run(
    spec: str | None,
    device: torch.device,
    run: Run,
    world: World = ALONE,
    log: Callable[[str], None] = lambda line: None,
) -> tuple[str, str]:
    """The backend of a run, as text, and why it is that one; a default is logged.

    Where compilation fails, a default falls back to an uncompiled backend. Raises RRError where the
    one asked for is not supported, or cannot be compiled.
    """
    named, reason = spec is not None, ASKED_FOR
    if spec is None:
        flops = flops_per_token(run.model) * run.tokens
        spec, reason = default(device, run.model, world, flops), "the default here"
        if spec == COMPILED_CPU:
            reason = f"{flops:.1e} FLOPs, {COMPILE_FLOPS:.0e} or more"
            log(f"{reason}: selected backend {spec}")
    else:
        check_spec(spec, device, run, world)
    backend = parse_backend(spec)
    if backend.compile != "none" and (why := compile_error(device.type)):
        if named:
            raise RRError(
                f"--backend {spec} cannot be compiled here: {why}; use --backend {UNCOMPILED}"
            )
        spec, reason = UNCOMPILED, f"compilation fails here: {why}"
        log(f"{reason}; selected backend {spec}")
    return spec, reason
