"""How a training step is computed: the reference path, the fast ones, and a step along any of them.

A path says nothing of what is computed: loss, gradients and update are the same up to rounding,
and how far rounding takes a run is measured and tested against the reference path.
"""

import contextlib
import importlib.util
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor, nn

from . import ops, runtime
from .config import PRECISIONS, ModelConfig, Recipe, RRError, nearest, parse_spec
from .distributed import ALONE, World
from .model import Model, compile_model, decay_groups, grows

CHOICES = {
    "precision": PRECISIONS,
    "gate": ops.GATES,
    "loss": ops.LOSSES,
    "optimizer": ("plain", "fused"),
    "compile": ("none", "layer"),
    "attention": ("auto", "cudnn"),
    "graph": ("none", "step"),
    "recompute": ops.RECOMPUTED,
    "allocator": ("system", "kept"),
}
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
    with ops.use(gate=path.gate):
        pass  # refuses Triton where it is not installed
    if device.type != "cuda":
        for name, word in (("attention", "cudnn"), ("graph", "step"), ("gate", "triton")):
            if getattr(path, name) == word:
                raise RRError(f"{name}={word} needs a CUDA device: this is the {device.type}")
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
    if path.graph == "step" and runtime.resolve_precision(device, precision) == "fp16":
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


@contextlib.contextmanager
def measuring(path: Path, device: torch.device, precision: str) -> Iterator[None]:
    """`along` for evaluation. Nothing is compiled: each length of window would be a graph more."""
    eager = path.compile != "none"
    stance = torch.compiler.set_stance("force_eager") if eager else contextlib.nullcontext()
    with along(path, device, precision), stance:
        yield


def optimizer(
    model: nn.Module, recipe: Recipe, path: Path, device: torch.device
) -> torch.optim.AdamW:
    """AdamW as the recipe has it, fused or not. A CUDA graph needs the rates in tensors."""
    everything = recipe.decay_all or not isinstance(model, Model)
    groups = decay_groups(model, recipe.weight_decay, everything)
    if recipe.depth_lr:
        groups = [half for group in groups for half in by_depth(model, group, recipe)]
    graph = path.graph == "step"
    if graph:
        for group in groups:
            group["lr"] = torch.tensor(recipe.lr, device=device)
    return torch.optim.AdamW(
        groups,
        lr=recipe.lr,
        betas=recipe.betas,
        eps=recipe.eps,
        fused=path.optimizer == "fused" or None,
        capturable=graph,
    )


def by_depth(model: Model, group: dict, recipe: Recipe) -> list[dict]:
    """A group of parameters cut in two: those of the blocks, at their own rate, and the rest.

    `Step.set_rate` multiplies each group's learning rate with its "factor".
    """
    factor = recipe.block_factor(model.config.n_layer)
    stack = ("layers.", "later_rules.")
    inside = {id(p) for name, p in model.named_parameters() if name.startswith(stack)}
    blocks = [p for p in group["params"] if id(p) in inside]
    others = [p for p in group["params"] if id(p) not in inside]
    halves = [
        {**group, "params": blocks, "factor": factor, "eps": recipe.eps * factor},
        {**group, "params": others, "factor": 1.0, "eps": recipe.eps},
    ]
    return [half for half in halves if half["params"]]


class Step:
    """Optimiser steps of one model along one path, in one process or several.

    step(x, y), this process's ids and targets (B, T), takes one step over the batch, `micro`
    windows at a time, and returns the mean loss (nats) before it, over all processes. `gradients`
    and `update` are its two halves, where the path has no CUDA graph.

    precision: where it is not the path's, a run's own. Raises RRError as `check` does.
    """

    def __init__(
        self, model: nn.Module, recipe: Recipe, path: Path, device: torch.device,
        micro: int | None = None, *, precision: str | None = None, world: World = ALONE,
        backend: object = "inductor",
    ) -> None:  # fmt: skip
        check(path, device, model.config if isinstance(model, Model) else None, world)
        self.model, self.recipe, self.path, self.device = model, recipe, path, device
        self.world, self.micro = world, micro or recipe.batch // world.size
        self.precision = precision or runtime.resolve_precision(device, path.precision)
        # Keeps float16 gradients above what it can hold; does nothing at another precision.
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.precision == "fp16")
        if self.scaler.is_enabled() and path.graph == "step":
            raise RRError(FP16_GRAPH)
        if path.compile == "layer":
            torch.compiler.reset()  # graphs of models before this one count against a limit
            if isinstance(model, Model):
                compile_model(model, backend)
            else:
                model.compile(backend=backend, dynamic=False)  # a peer's: whole, as it comes
        if path.allocator == "kept" and device.type == "cpu":
            runtime.keep_freed()
        self.run = world.wrap(model)  # what a step calls; measuring calls the model
        self.optimizer = optimizer(model, recipe, path, device)
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

    def set_rate(self, rate: float) -> None:
        """The learning rate of the steps from here on, times each group's factor."""
        for group in self.optimizer.param_groups:
            own = rate * group.get("factor", 1.0)
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(own)
            else:
                group["lr"] = own

    def shrink(self, micro: int) -> None:
        """From here on `micro` windows at once; what a failed attempt left is let go."""
        self.micro = micro
        self.optimizer.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()

    @property
    def told(self) -> str:
        """What was chosen, in words: precision, device, windows at once."""
        where = runtime.device_name(self.device)
        return f"{self.precision} on {where}, {self.micro} windows at once"

    def _step(self, x: Tensor, y: Tensor) -> Tensor:
        loss = self.gradients(x, y)
        self.update()
        return loss

    def gradients(self, x: Tensor, y: Tensor) -> Tensor:
        """Gradients of the batch's mean loss, accumulated over micro-batches; returns that loss."""
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), dtype=ops.sums(self.device), device=self.device)
        parts = list(zip(x.split(self.micro), y.split(self.micro), strict=True))
        for i, (part_x, part_y) in enumerate(parts):
            last = i + 1 == len(parts)
            with self.world.adding(self.run, last), choices(self.path):
                with runtime.autocast(self.device, self.precision):
                    loss = self.run(part_x, part_y) * (len(part_x) / len(x))
                self.scaler.scale(loss).backward()
            total += loss.detach()
        return self.world.sum(total) / self.world.size

    def update(self) -> None:
        """Clip the gradients that are there, and let AdamW take its step."""
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def _capture(self, x: Tensor, y: Tensor) -> None:
        """Record one step. The three before it, which recording needs, are undone."""
        self.x, self.y = x.clone(), y.clone()
        held = [p.detach() for p in self.model.parameters()]
        kept = [p.clone() for p in held]
        before = {p: {name: value.clone() for name, value in state.items()}
                  for p, state in self.optimizer.state.items()}  # fmt: skip
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):
                self._step(self.x, self.y)
        torch.cuda.current_stream().wait_stream(aside)
        for p, old in zip(held, kept, strict=True):
            p.copy_(old)
        for p, state in self.optimizer.state.items():
            for name, value in state.items():  # none before the first step: then all is zero
                value.copy_(before[p][name]) if p in before else value.zero_()
        self.optimizer.zero_grad(set_to_none=True)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss = self._step(self.x, self.y)

    # -- checkpoints --------------------------------------------------------------------------

    def weights(self) -> dict[str, Tensor]:
        """All weights by name, whole in every process."""
        return self.world.whole(dict(self.model.state_dict()))

    def state(self) -> dict:
        """What the next step depends on, whole in every process."""
        return {
            "model": self.weights(),
            "optimizer": self.world.whole(self.optimizer.state_dict()),
            "scaler": self.scaler.state_dict(),
        }

    def load(self, state: dict) -> None:
        """Take up what `state` gave; rates stay where they are, for `set_rate` to set."""
        rates = [group["lr"] for group in self.optimizer.param_groups]
        self.world.load_model(self.model, state["model"])
        self.world.load_optimizer(self.optimizer, state["optimizer"])
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        if self.scaler.is_enabled():
            self.scaler.load_state_dict(state["scaler"])
        self.graph = None  # it writes into the tensors that the optimiser has let go
