"""How a training step is computed: the reference path, the fast ones, and a step along any of them.

A path says nothing of what is computed: loss, gradients and update are the same up to rounding,
and how far rounding takes a run is measured and tested against the reference path.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor, nn

from . import ops, runtime
from .config import PRECISIONS, Recipe, RRError, nearest, parse_spec
from .model import Model, compile_model, decay_groups

CHOICES = {
    "precision": PRECISIONS,
    "gate": ops.GATES,
    "loss": ops.LOSSES,
    "optimizer": ("plain", "fused"),
    "compile": ("none", "layer"),
    "attention": ("auto", "cudnn"),
    "graph": ("none", "step"),
    "recompute": ops.RECOMPUTED,
}


@dataclass(frozen=True)
class Path:
    """One choice for each part of a step; the defaults are the reference path.

    precision   of matrix products, as `runtime.autocast` has it
    gate        "reference": concatenated inputs, autograd; "fast"; "triton" (`ops.gated_write`)
    loss        "whole": all logits at once; "chunked"
    optimizer   "plain": torch's own AdamW; "fused": one kernel
    compile     "layer": each block by Inductor, one graph for all blocks
    attention   "cudnn": its kernel before the others; a GPU alone
    graph       "step": the whole step captured once as a CUDA graph, and replayed; a GPU alone
    recompute   "layer": the backward pass computes each block again, of which only inputs are kept
    """

    precision: str = "tf32"
    gate: str = "reference"
    loss: str = "whole"
    optimizer: str = "plain"
    compile: str = "none"
    attention: str = "auto"
    graph: str = "none"
    recompute: str = "none"


FAST = Path("bf16", "fast", "chunked", "fused")
PATHS = {
    "reference": Path(),
    "eager": replace(FAST, gate="reference"),  # what `rr train` runs
    "fast": FAST,
    "compiled": replace(FAST, compile="layer"),
    "triton": replace(FAST, compile="layer", gate="triton"),
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


def check(path: Path, device: torch.device) -> None:
    """RRError where the device cannot go this path."""
    with ops.use(gate=path.gate):
        pass  # refuses Triton where it is not installed
    if device.type != "cuda":
        for name, word in (("attention", "cudnn"), ("graph", "step"), ("gate", "triton")):
            if getattr(path, name) == word:
                raise RRError(f"{name}={word} needs a CUDA device: this is the {device.type}")


def ablations(spec: str) -> list[str]:
    """The path, once for each of its choices that is not the reference's, with that one undone."""
    path, reference = asdict(parse_path(spec)), asdict(Path())
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
        stack.enter_context(ops.use(gate=path.gate, loss=path.loss, recompute=path.recompute))
        if path.attention == "cudnn":
            from torch.nn.attention import SDPBackend, sdpa_kernel

            order = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION,
                     SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]  # fmt: skip
            stack.enter_context(sdpa_kernel(order, set_priority=True))
        yield


@contextlib.contextmanager
def along(path: Path, device: torch.device, precision: str | None = None) -> Iterator[None]:
    """The context of a forward pass on this path; `precision` where the device decided on one."""
    with choices(path), runtime.autocast(device, precision or path.precision):
        yield


def optimizer(
    model: nn.Module, recipe: Recipe, path: Path, device: torch.device
) -> torch.optim.AdamW:
    """AdamW as the recipe has it, fused or not. A CUDA graph needs the rate in a tensor."""
    everything = recipe.decay_all or not isinstance(model, Model)
    graph = path.graph == "step"
    return torch.optim.AdamW(
        decay_groups(model, recipe.weight_decay, everything),
        lr=torch.tensor(recipe.lr, device=device) if graph else recipe.lr,
        betas=recipe.betas,
        eps=recipe.eps,
        fused=path.optimizer == "fused" or None,
        capturable=graph,
    )


class Step:
    """Training steps of one model along one path, at a constant learning rate.

    step(x, y), ids and targets (B, T), takes one optimiser step over the batch in micro-batches of
    `micro` windows and returns the mean loss (nats) before it.
    """

    def __init__(
        self, model: nn.Module, recipe: Recipe, path: Path, device: torch.device,
        micro: int | None = None, backend: object = "inductor",
    ) -> None:  # fmt: skip
        check(path, device)
        self.model, self.recipe, self.path, self.device = model, recipe, path, device
        self.precision = runtime.resolve_precision(device, path.precision)
        self.micro = micro or recipe.batch
        self.optimizer = optimizer(model, recipe, path, device)
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.precision == "fp16")
        if self.scaler.is_enabled() and path.graph == "step":
            raise RRError("graph=step does not go with fp16, whose scaling decides on the host")
        if path.compile == "layer" and isinstance(model, Model):
            compile_model(model, backend)
        elif path.compile == "layer":
            model.compile(backend=backend, dynamic=False)  # a peer's: whole, as it comes
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        if self.path.graph == "none":
            return self._step(x, y)
        if self.graph is None:
            self._capture(x, y)
        self.x.copy_(x)
        self.y.copy_(y)
        self.graph.replay()
        return self.loss

    def _step(self, x: Tensor, y: Tensor) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self.device)
        for part_x, part_y in zip(x.split(self.micro), y.split(self.micro), strict=True):
            with choices(self.path):
                with runtime.autocast(self.device, self.precision):
                    loss = self.model(part_x, part_y) * (len(part_x) / len(x))
                self.scaler.scale(loss).backward()
            total += loss.detach()
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return total

    def _capture(self, x: Tensor, y: Tensor) -> None:
        """Record one step. The three before it, which recording needs, are undone."""
        self.x, self.y = x.clone(), y.clone()
        kept = [p.detach().clone() for p in self.model.parameters()]
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):
                self._step(self.x, self.y)
        torch.cuda.current_stream().wait_stream(aside)
        with torch.no_grad():
            for p, old in zip(self.model.parameters(), kept, strict=True):
                p.copy_(old)
            for state in self.optimizer.state.values():
                for value in state.values():
                    value.zero_()
        self.optimizer.zero_grad(set_to_none=True)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss = self._step(self.x, self.y)
