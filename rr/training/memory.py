"""Prediction of the peak memory of a training run, before anything is allocated.

Nothing is derived by hand: a real `OptimizerStep` and a real evaluation run on tensors that have
shapes and no bytes (torch's FakeTensorMode), and every storage they create is counted for as long
as something holds it. So the count covers every rule, value rule, shape and backend.

    peak = the most bytes held at once in a steady step, or in an evaluation between two steps

Not counted: temporaries inside a kernel, except those in `INSIDE`, and memory that the allocator
keeps: the C library's keeps small blocks that were freed. The difference from what a process really
holds is measured: `tests/benchmarks/memory.py`, data/measured.
"""

import weakref
from collections import Counter
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..config import ModelConfig, Recipe, RRError, Run, nearest, positive
from ..model.compile import grows
from ..model.transformer import Model
from ..ops.cross_entropy import row_bytes
from ..residual import resolve
from .backend import Backend
from .device import resolve_precision
from .evaluate import Tally, add_batch, evaluating
from .step import OptimizerStep

PARTS = {
    "weights": "parameters in float32, and the model's buffers",
    "gradients": "of every parameter, in float32",
    "moments": "the optimiser's: AdamW's two, Muon's one, in float32",
    "copies": "16-bit copies of weights that autocast keeps until the backward pass is done",
    "layers": "what the blocks' forward passes hold for the backward pass",
    "head": "embedding, final read, logits or a chunk of them, and the loss",
    "transient": "temporaries of the backward pass and of the optimiser",
    "tokens": "ids and targets of one batch",
    "context": "what a GPU's driver and libraries take: an assumption, not measured",
}
# Bytes beside torch's own tensors. On a GPU: driver, kernels and handles of cuBLAS and cuDNN, and
# cuBLAS's workspace of 32 MiB. Torch's own peak (`rr bench`) has the workspace alone in it.
CONTEXT = {"cpu": 0, "cuda": 640 * 2**20}

CPU = torch.device("cpu")

# Bytes that a kernel holds while it runs, which no dispatcher tells, by what it is given.
INSIDE = {
    torch.ops.aten.logsumexp.default: lambda x, *_: x.nbytes,
    torch.ops.rr.softmax_in_rows.default: row_bytes,
}


def predict(
    what: Run | ModelConfig,
    backend: Backend,
    micro_batch: int,
    device: str = "cpu",
    recipe: Recipe | None = None,
) -> dict[str, int]:
    """Bytes at the peak of training, before anything is allocated.

    what: a run, or a model's shape and its `recipe`. backend: as `rr.training.parse_backend` makes
    it. micro_batch: windows at once. device: "cpu" or "cuda", where unfused AdamW works on all
    parameters at once.

    Returns {part: bytes}: "weights", "gradients", "moments" (the optimiser's), "copies" (in 16
    bits), "layers" (activations), "head", "transient", "tokens" and "context" (of the GPU's driver
    and libraries: assumed), at the fullest moment of a step; "step", their sum; "evaluation", the
    peak of scoring a batch between two steps; "total", the larger of these two.

    One process: DDP's buckets and FSDP's gathered blocks are not counted. A compiled backend is
    counted as if it were not compiled: fused kernels hold less, but compiled code comes on top.
    Raises RRError for a shape without a recipe, an unknown device and numbers below 1.

    Example:
        >>> import rr
        >>> from rr.training import parse_backend, predict
        >>> tiny = "nano:d_model=16,n_layer=1,n_head=1,d_ff=32,seq_len=16"
        >>> backend = parse_backend("eager")
        >>> bytes_of = predict(rr.plan(tiny, batch=1), backend, micro_batch=1)
        >>> bytes_of["total"] == max(bytes_of["step"], bytes_of["evaluation"])
        True
    """
    return dict(_count(what, backend, micro_batch, device, recipe)[0])


def stacked(
    what: Run | ModelConfig,
    backend: Backend,
    micro_batch: int,
    device: str = "cpu",
    recipe: Recipe | None = None,
) -> int:
    """`predict`'s total, counted on two and on three blocks of a deep model: quicker by its depth.

        bytes(L) = max over phases of bytes(2) + (L − 2) · (bytes(3) − bytes(2))

    A phase (forward, head, backward, update, evaluation) is one of which the fullest moment stays
    the same at any depth from two blocks on; in float32 a single block's evaluation lacks the state
    that the block before it leaves. Where what flows between blocks grows with depth, where
    blocks take values from the first, or pass more than once, all of the model is counted.
    """
    shape, recipe = shape_and_recipe(what, recipe)
    if shape.n_layer < 3 or grows(shape) or shape.values != "own" or shape.n_loops > 1:
        return predict(what, backend, micro_batch, device, recipe)["total"]
    two, three = (
        _count(replace(shape, n_layer=n), backend, micro_batch, device, recipe)[1] for n in (2, 3)
    )
    return max(two[phase] + (shape.n_layer - 2) * (three[phase] - two[phase]) for phase in three)


def _count(
    what: Run | ModelConfig, backend: Backend, micro_batch: int, device: str, recipe: Recipe | None
) -> tuple[dict[str, int], dict[tuple, int]]:
    what, recipe = shape_and_recipe(what, recipe)
    positive("micro-batch", micro_batch)
    if device not in CONTEXT:
        raise RRError(f"unknown device {device!r}: {nearest(device, CONTEXT)}")
    backend, micro = plain(backend, device), min(micro_batch, recipe.batch)
    kinds = resolve(what.rule)[0], resolve(what.values, "values")[0]
    how = recipe.batch, recipe.decay_all, recipe.optimizer
    return _counted(what, kinds, backend, micro, *how, device, torch.get_num_threads())


def shape_and_recipe(what: Run | ModelConfig, recipe: Recipe | None) -> tuple[ModelConfig, Recipe]:
    """A run's own, or what was given. RRError for a shape alone."""
    if isinstance(what, Run):
        return what.model, what.recipe
    if recipe is None:
        raise RRError("a model's shape has no batch: give its recipe too, or a run")
    return what, recipe


def plain(backend: Backend, device: str) -> Backend:
    """An eager backend that holds the same bytes on `device` and runs on tensors without any."""
    choices = {"compile": "none", "attention": "auto", "graph": "none", "allocator": "system"}
    if backend.gate == "triton":  # holds what the fast one holds
        choices["gate"] = "fast"
    if backend.loss == "fused" and device != "cpu":  # compiled, likewise
        choices["loss"] = "chunked"
    if backend.precision == "fp16":  # its scaling looks at values; the bytes are bf16's
        choices["precision"] = "bf16"
    elif device == "cpu":  # found out here: a tensor without bytes cannot tell which is quicker
        choices["precision"] = resolve_precision(CPU, backend.precision)
    return replace(backend, **choices)


@lru_cache(maxsize=256)
def _counted(
    config: ModelConfig,
    kinds: tuple,
    backend: Backend,
    micro: int,
    batch: int,
    decay_all: bool,
    optimizer: str,
    device: str,
    threads: int,  # decide the rows of a CPU's fused softmax
) -> tuple[dict[str, int], dict[tuple, int]]:
    """The parts at the fullest moment, and the most bytes held in each phase."""
    # By the classes too (kinds): a name that a reader registers anew is another rule.
    with FakeTensorMode(), _Meter() as meter:
        model = Model(config).train()
        # Two micro-batches stand for all: from the second on gradients lie beside activations.
        how = {"decay_all": decay_all, "optimizer": optimizer}
        recipe = Recipe(1, min(batch, 2 * micro), 1e-3, 1, **how)
        meter.label = "moments"
        step = OptimizerStep(model, recipe, backend, CPU, micro, precision=backend.precision)
        for group in step.optimizer.param_groups:
            group["foreach"] = device == "cuda" and backend.optimizer == "plain"
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        step.optimizer.step()
        step.optimizer.zero_grad(set_to_none=True)
        meter.label = "tokens"
        x, y = (torch.zeros(recipe.batch, config.seq_len, dtype=torch.int64) for _ in range(2))
        meter.watch(model, step.optimizer)
        meter.label = "head"
        meter.mark()
        step(x, y)
        parts, phases = meter.peak, meter.phases
        meter.mark()
        x = torch.zeros(batch, config.seq_len, dtype=torch.int64)
        with evaluating(model), backend.forward(CPU):
            add_batch(model, Tally(), x, x, counts=False)
        evaluation = sum(meter.peak.values())
        phases["evaluation"] = evaluation
    beside = CONTEXT[device] + 2 * 8 * config.seq_len * (batch - recipe.batch)  # the other windows
    peak = {name: parts[name] for name in PARTS} | {"context": CONTEXT[device]}
    peak["tokens"] += beside - CONTEXT[device]
    step_peak = sum(peak.values())
    evaluation += beside
    peak |= {"step": step_peak, "evaluation": evaluation, "total": max(step_peak, evaluation)}
    return peak, {phase: held + beside for phase, held in phases.items()}


class _Meter(TorchDispatchMode):
    """Counts the bytes of all storages that are alive, by label, and keeps the fullest moment."""

    def __init__(self) -> None:
        super().__init__()
        self.label = "weights"
        self.held: dict[int, list] = {}  # storage -> weak reference, bytes, label
        self.now: Counter[str] = Counter()
        self.total = 0
        self.mark()

    def mark(self) -> None:
        """Forget the peaks so far."""
        self.phases: dict[Any, int] = {}
        self._fullest()

    def _fullest(self) -> None:
        self.most, self.peak = self.total, self.now.copy()

    def _within(self, label: str, total: int) -> None:
        """Keep the most of what is being done: the pass, and what is made in it."""
        phase = label, torch._C._current_graph_task_id() != -1
        self.phases[phase] = max(self.phases.get(phase, 0), total)

    def watch(self, model: Model, optimizer: torch.optim.Optimizer) -> None:
        """Tell gradients, blocks and the optimiser's own work apart from here on."""
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(lambda p: self._relabel(p.grad, "gradients"))

        def labels(name: str):
            return lambda *_: setattr(self, "label", name)

        layers = {id(layer): layer for layers in model.passes for layer in layers}
        for layer in layers.values():
            layer.register_forward_pre_hook(labels("layers"))
            layer.register_forward_hook(labels("head"))
        optimizer.register_step_pre_hook(labels("transient"))
        optimizer.register_step_post_hook(labels("head"))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        label = self.label
        if torch._C._current_graph_task_id() != -1:  # within a backward pass
            label = "transient"
        elif func is torch.ops.aten._to_copy.default and self._label(args[0]) == "weights":
            label = "copies"
        for value in tree_leaves(made):
            if isinstance(value, Tensor):
                self._see(value, label)
        if func in INSIDE:
            inside = INSIDE[func](*args)
            self._within(label, self.total + inside)
            if self.total + inside > self.most:
                self._fullest()
                self.most += inside
                self.peak[label] += inside
        return made

    def _label(self, tensor: Tensor) -> str | None:
        entry = self.held.get(id(tensor.untyped_storage()))
        return None if entry is None else entry[2]

    def _see(self, tensor: Tensor, label: str) -> None:
        storage = tensor.untyped_storage()
        key, size = id(storage), storage.nbytes()
        if key in self.held:
            return

        def gone(_: Any) -> None:
            _, size, label = self.held.pop(key)
            self.now[label] -= size
            self.total -= size

        self.held[key] = [weakref.ref(storage, gone), size, label]
        self.now[label] += size
        self.total += size
        self._within(label, self.total)
        if self.total > self.most:
            self._fullest()

    def _relabel(self, tensor: Tensor, label: str) -> None:
        entry = self.held[id(tensor.untyped_storage())]
        self.now[entry[2]] -= entry[1]
        self.now[label] += entry[1]
        entry[2] = label
