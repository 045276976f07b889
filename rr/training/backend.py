"""How a step is computed: the choices, their names, and whether they work here."""

import contextlib
import importlib.util
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

import torch

from ..config import PRECISIONS, ModelConfig, RRError, nearest, parse_spec
from ..model.compile import grows
from ..ops import backends
from .device import autocast, resolve_precision
from .distributed import ALONE, World

CHOICES = {
    "precision": PRECISIONS,
    "gate": backends.GATES,
    "loss": backends.LOSSES,
    "optimizer": ("plain", "fused"),
    "compile": ("none", "layer"),
    "attention": ("auto", "cudnn"),
    "graph": ("none", "step"),
    "recompute": backends.RECOMPUTED,
    "allocator": ("system", "kept"),
}
TRITON = (8, 0)  # the least compute capability that Triton's own documentation supports
FP16_GRAPH = "graph=step does not go with fp16, whose scaling decides on the host"


@dataclass(frozen=True)
class Path:
    """One choice for each part of a step; the defaults are the reference path.

    precision   of matrix products, as `runtime.autocast` has it
    gate        "reference": concatenated inputs, autograd; "fast"; "triton" (`ops.gated_write`)
    loss        "whole": all logits at once; "chunked"; "fused": chunked, its softmax compiled
    optimizer   "plain": torch's own AdamW; "fused": one kernel
    compile     "layer": each block by Inductor, one graph for all blocks
    attention   "cudnn": its kernel before the others; a GPU alone
    graph       "step": the whole step captured once as a CUDA graph, and replayed; a GPU alone
    recompute   "layer": the backward pass computes each block again; only its inputs are kept
    allocator   "kept": freed memory stays the process's (`runtime.keep_freed`); on a CPU
    """

    precision: str = "tf32"
    gate: str = "reference"
    loss: str = "whole"
    optimizer: str = "plain"
    compile: str = "none"
    attention: str = "auto"
    graph: str = "none"
    recompute: str = "none"
    allocator: str = "system"


FAST = Path("bf16", "fast", "chunked", "fused", allocator="kept")
PATHS = {
    "reference": Path(),
    # what `rr train` runs where there is no GPU
    "eager": replace(FAST, gate="reference", allocator="system"),
    "fast": FAST,
    "compiled": replace(FAST, compile="layer", loss="fused"),
    "triton": replace(FAST, compile="layer", loss="fused", gate="triton"),
}


def parse_path(spec: str) -> Path:
    """`"compiled:precision=tf32,graph=step"` -> the named path with these choices instead.

    RRError names what is accepted.
    """
    name, given = parse_spec(spec)
    if name not in PATHS:
        raise RRError(f"unknown path {name!r}: {nearest(name, PATHS)}")
    for key, word in given.items():
        if key not in CHOICES:
            raise RRError(f"path {name!r} has no choice {key!r}: {nearest(key, CHOICES)}")
        if word not in CHOICES[key]:
            accepted = nearest(word, CHOICES[key])
            raise RRError(f"path {name}: {key}={word} is not accepted: {accepted}")
    return replace(PATHS[name], **given)


def check(
    path: Path, device: torch.device, config: ModelConfig | None = None, world: World = ALONE
) -> None:
    """RRError where the device cannot go this path, or a model of this shape in this world."""
    with backends.use(gate=path.gate):
        pass  # refuses Triton where it is not installed
    if device.type != "cuda":
        for name, word in (("attention", "cudnn"), ("graph", "step"), ("gate", "triton")):
            if getattr(path, name) == word:
                raise RRError(f"{name}={word} needs a CUDA device: this is the {device.type}")
    elif path.gate == "triton" and (found := torch.cuda.get_device_capability(device)) < TRITON:
        raise RRError(
            "gate=triton needs a GPU of compute capability {}.{} (A100) or newer, got {}.{}: "
            "use --path compiled".format(*TRITON, *found)
        )
    if path.graph == "step" and world.size > 1:
        raise RRError("graph=step is of one process: graph=none is accepted in several")
    if config and path.compile == "layer" and world.strategy == "fsdp" and grows(config):
        raise RRError(
            f"{config.rule} with values {config.values} compiles as one graph, which cannot be "
            "sharded: a path with compile=none, or --parallel ddp, is accepted"
        )


def default(device: torch.device, config: ModelConfig, world: World = ALONE) -> str:
    """The path of a run that asks for none: eager, or on a GPU what should be fastest there.

    Compiled blocks where Triton knows the card and nothing is in the way, cuDNN's attention first
    on Hopper. CUDA graphs are left to whoever asks: no measurement has shown yet that they win.
    """
    if device.type != "cuda":
        return "eager"
    generation = torch.cuda.get_device_capability(device)
    sharded = world.strategy == "fsdp" and grows(config)
    if sharded or generation < (7, 0) or importlib.util.find_spec("triton") is None:
        return "fast"
    return "compiled:attention=cudnn" if generation[0] == 9 else "compiled"


def of_run(
    spec: str | None, device: torch.device, precision: str, config: ModelConfig, world: World
) -> str:
    """The path that a run takes: what was asked for, or the default. RRError if it cannot.

    The precision is the recipe's, because the run's id tells it: a path of a run names none.
    """
    spec = spec or default(device, config, world)
    path = parse_path(spec)
    if "precision" in parse_spec(spec)[1]:
        raise RRError(
            f"path {spec}: the precision of a run is part of its recipe: --precision is accepted"
        )
    check(path, device, config, world)
    if path.graph == "step" and resolve_precision(device, precision) == "fp16":
        raise RRError(FP16_GRAPH)
    return spec


def ablations(spec: str, device: torch.device | None = None) -> list[str]:
    """The path, once for each of its choices that is not the reference's, with that one undone.

    device: choices that do nothing there are left out, the allocator where it is no CPU.
    """
    path, reference = asdict(parse_path(spec)), asdict(Path())
    if device is not None and device.type != "cpu":
        del path["allocator"]
    changed = [key for key in path if path[key] != reference[key]]
    name, given = parse_spec(spec)
    made = []
    for key in changed:
        options = given | {key: reference[key]}
        made.append(f"{name}:" + ",".join(f"{k}={v}" for k, v in options.items()))
    return made


@contextlib.contextmanager
def choices(path: Path) -> Iterator[None]:
    """The context of forward and backward passes: a block computed again takes the same path."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(backends.use(gate=path.gate, loss=path.loss, recompute=path.recompute))
        if path.attention == "cudnn":
            from torch.nn.attention import SDPBackend, sdpa_kernel

            order = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION,
                     SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]  # fmt: skip
            stack.enter_context(sdpa_kernel(order, set_priority=True))
        yield


@contextlib.contextmanager
def along(path: Path, device: torch.device, precision: str | None = None) -> Iterator[None]:
    """The context of a forward pass on this path; `precision` where the device decided on one."""
    with choices(path), autocast(device, precision or path.precision):
        yield


@contextlib.contextmanager
def measuring(path: Path, device: torch.device, precision: str) -> Iterator[None]:
    """`along` for evaluation. Nothing is compiled: each length of window would be a graph more."""
    eager = path.compile != "none"
    stance = torch.compiler.set_stance("force_eager") if eager else contextlib.nullcontext()
    with along(path, device, precision), stance:
        yield
