"""Prediction of the peak memory of a training run, before anything is allocated.

Nothing is derived by hand: a real `OptimizerStep` and a real evaluation run on tensors that have
shapes and no bytes (torch's FakeTensorMode), and every storage they create is counted for as long
as something holds it. So the count covers every rule, value rule, shape and backend.

    peak = the most bytes held at once in a steady step, or in an evaluation between two steps

Not counted: temporaries inside a kernel, except those in `KERNEL_TEMPORARIES`, and memory that the
allocator keeps: the C library's keeps small blocks that were freed. The difference from what a
process really holds is measured: `tests/benchmarks/memory.py`, data/measured.
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

from ..errors import RRError, nearest, positive
from ..model.transformer import Model
from ..ops.cross_entropy import row_bytes
from ..residual import resolve
from ..residual.stack import grows
from ..specs import ModelConfig, Recipe, Run
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

# Bytes that a kernel allocates while it runs, which the dispatcher does not see, by its arguments.
KERNEL_TEMPORARIES = {
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
    parts, _ = _count(what, backend, micro_batch, device, recipe)
    return dict(parts)


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
    _, two = _count(replace(shape, n_layer=2), backend, micro_batch, device, recipe)
    _, three = _count(replace(shape, n_layer=3), backend, micro_batch, device, recipe)
    return max(two[phase] + (shape.n_layer - 2) * (three[phase] - two[phase]) for phase in three)


def _count(
    what: Run | ModelConfig, backend: Backend, micro_batch: int, device: str, recipe: Recipe | None
) -> tuple[dict[str, int], dict[tuple, int]]:
    """The bytes of each part at the fullest moment, and the most bytes held in each phase."""
    shape, recipe = shape_and_recipe(what, recipe)
    positive("micro-batch", micro_batch)
    if device not in CONTEXT:
        raise RRError(f"unknown device {device!r}: {nearest(device, CONTEXT)}")
    return _counted(
        shape,
        rule_classes=(resolve(shape.rule)[0], resolve(shape.values, "values")[0]),
        backend=plain(backend, device),
        micro=min(micro_batch, recipe.batch),
        batch=recipe.batch,
        decay_all=recipe.decay_all,
        optimizer=recipe.optimizer,
        device=device,
        threads=torch.get_num_threads(),
    )


def shape_and_recipe(what: Run | ModelConfig, recipe: Recipe | None) -> tuple[ModelConfig, Recipe]:
    """The shape and recipe of a run, or the given ones. RRError for a shape without a recipe."""
    if isinstance(what, Run):
        return what.model, what.recipe
    if recipe is None:
        raise RRError("a model's shape has no batch: give its recipe too, or a run")
    return what, recipe


def plain(backend: Backend, device: str) -> Backend:
    """An eager backend that holds the same bytes on `device` and runs on tensors without any."""
    choices = {"compile": "none", "attention": "auto", "allocator": "system"}
    if backend.loss == "fused" and device != "cpu":  # compiled; holds what the chunked one holds
        choices["loss"] = "chunked"
    if backend.precision == "fp16":  # loss scaling reads values; bf16 takes the same bytes
        choices["precision"] = "bf16"
    elif device == "cpu":
        choices["precision"] = resolve_precision(CPU, backend.precision)
    return replace(backend, **choices)


@lru_cache(maxsize=256)
def _counted(
    config: ModelConfig,
    rule_classes: tuple,  # for the cache: a name that a reader registers anew is another rule
    backend: Backend,
    micro: int,
    batch: int,
    decay_all: bool,
    optimizer: str,
    device: str,
    threads: int,  # for the cache: they decide the rows of a CPU's fused softmax
) -> tuple[dict[str, int], dict[tuple, int]]:
    with FakeTensorMode(), _Meter() as meter:
        model = Model(config).train()
        recipe = Recipe(
            steps=1,
            # Two micro-batches stand for all: from the second on there are gradients, too.
            batch=min(batch, 2 * micro),
            lr=1e-3,
            warmup=1,
            decay_all=decay_all,
            optimizer=optimizer,
        )
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
        meter.forget_peaks()
        step(x, y)
        at_peak, phases = meter.at_peak, meter.phases
        meter.forget_peaks()
        x = torch.zeros(batch, config.seq_len, dtype=torch.int64)
        with evaluating(model), backend.forward(CPU):
            add_batch(model, Tally(), x, x, counts=False)
        phases["evaluation"] = sum(meter.at_peak.values())
    other_windows = 2 * 8 * config.seq_len * (batch - recipe.batch)  # ids and targets
    not_metered = CONTEXT[device] + other_windows
    parts = {name: at_peak[name] for name in PARTS}
    parts["context"] = CONTEXT[device]
    parts["tokens"] += other_windows
    phases = {phase: held + not_metered for phase, held in phases.items()}
    step_peak, evaluation = sum(parts.values()), phases["evaluation"]
    parts |= {"step": step_peak, "evaluation": evaluation, "total": max(step_peak, evaluation)}
    return parts, phases


class _Storage:
    """One storage that is alive."""

    def __init__(self, reference: weakref.ref, size: int, label: str) -> None:
        self.reference, self.size, self.label = reference, size, label


class _Meter(TorchDispatchMode):
    """Counts the bytes of all storages that are alive, by label, and keeps the fullest moment."""

    def __init__(self) -> None:
        super().__init__()
        self.label = "weights"  # of the storages that are created next
        self.alive: dict[int, _Storage] = {}
        self.bytes_now: Counter[str] = Counter()  # by label
        self.total = 0  # their sum
        self.forget_peaks()

    def forget_peaks(self) -> None:
        """Begin to look for the fullest moment, of all and of each phase, again."""
        self.phases: dict[Any, int] = {}
        self.peak, self.at_peak = self.total, self.bytes_now.copy()

    def watch(self, model: Model, optimizer: torch.optim.Optimizer) -> None:
        """From here on label gradients, blocks and the optimiser's own work."""
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(lambda p: self._relabel(p.grad, "gradients"))

        def set_label(name: str):
            return lambda *_: setattr(self, "label", name)

        layers = {id(layer): layer for layers in model.passes for layer in layers}
        for layer in layers.values():
            layer.register_forward_pre_hook(set_label("layers"))
            layer.register_forward_hook(set_label("head"))
        optimizer.register_step_pre_hook(set_label("transient"))
        optimizer.register_step_post_hook(set_label("head"))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        label = self.label
        if torch._C._current_graph_task_id() != -1:  # within a backward pass
            label = "transient"
        elif func is torch.ops.aten._to_copy.default and self._label(args[0]) == "weights":
            label = "copies"
        for value in tree_leaves(result):
            if isinstance(value, Tensor):
                self._add(value, label)
        if func in KERNEL_TEMPORARIES:
            self._update_peaks(label, KERNEL_TEMPORARIES[func](*args))
        return result

    def _label(self, tensor: Tensor) -> str | None:
        storage = self.alive.get(id(tensor.untyped_storage()))
        return None if storage is None else storage.label

    def _add(self, tensor: Tensor, label: str) -> None:
        storage = tensor.untyped_storage()
        key, size = id(storage), storage.nbytes()
        if key in self.alive:
            return

        def freed(_: Any) -> None:
            freed_storage = self.alive.pop(key)
            self.bytes_now[freed_storage.label] -= freed_storage.size
            self.total -= freed_storage.size

        self.alive[key] = _Storage(weakref.ref(storage, freed), size, label)
        self.bytes_now[label] += size
        self.total += size
        self._update_peaks(label)

    def _update_peaks(self, label: str, temporary: int = 0) -> None:
        """Compare what is held now, and `temporary` bytes beside it, with the peaks so far."""
        held = self.total + temporary
        phase = label, torch._C._current_graph_task_id() != -1
        self.phases[phase] = max(self.phases.get(phase, 0), held)
        if held > self.peak:
            self.peak, self.at_peak = held, self.bytes_now.copy()
            self.at_peak[label] += temporary

    def _relabel(self, tensor: Tensor, label: str) -> None:
        storage = self.alive[id(tensor.untyped_storage())]
        self.bytes_now[storage.label] -= storage.size
        self.bytes_now[label] += storage.size
        storage.label = label
