"""One optimiser step: gradients in micro-batches, clipping, the update, checkpoints."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from ..errors import CompiledWrong, RunFailed
from ..model.transformer import Model
from ..ops import cross_entropy
from ..specs import Recipe
from .backend import Backend
from .device import autocast, device_name, out_of_memory, resolve_precision
from .distributed import ALONE, World
from .optimizer import check_optimizer, optimizer


class OptimizerStep:
    """Optimiser steps of one model with one backend, in one process or several.

    step(x, y), this process's ids and targets (B, T), takes one step over the batch, `micro`
    windows at a time, and returns the mean loss (nats per token) before it, over all processes.
    `gradients` and `update` are its two halves. `grad_norm`: the Euclidean norm of all gradients in
    the last step, before they were clipped.

    recipe: its learning rate is set by `set_rate`. micro: windows at once; None: the whole batch.
    precision: a run's own, where it is not the backend's. world: the processes that share the
    batch; by default this one alone. compiler: a backend of `torch.compile`. on_shrink: called with
    the new micro-batch after memory ran out and the micro-batch was halved; without it, an
    out-of-memory error is raised.

    What holds for the whole process is `Backend.set_up`'s to set: call it before.

    Raises RRError where this device, model or number of processes does not support the backend, and
    `CompiledWrong`, an RRError, where compiled blocks give other gradients than the same blocks
    uncompiled: on a compiled backend they are compared before the first step, and again where
    memory ran out and the micro-batch was halved.

    Example:
        >>> import torch, rr
        >>> from rr.training import OptimizerStep, parse_backend
        >>> shape = rr.ModelConfig(64, n_layer=1, n_head=2, d_model=8, d_ff=16)
        >>> model = rr.model.initialise(rr.Model(shape), seed=0)
        >>> recipe = rr.Recipe(steps=3, batch=1, lr=0.01, warmup=1)
        >>> backend, device = parse_backend("reference"), torch.device("cpu")
        >>> step = OptimizerStep(model, recipe, backend, device)
        >>> ids = torch.arange(8)[None]
        >>> first, *_, last = [step(ids, ids + 1).item() for _ in range(3)]
        >>> last < first
        True
    """

    def __init__(
        self,
        model: Model,
        recipe: Recipe,
        backend: Backend,
        device: torch.device,
        micro: int | None = None,
        *,
        precision: str | None = None,
        world: World = ALONE,
        compiler: object = "inductor",
        on_shrink: Callable[[int], None] | None = None,
    ) -> None:
        backend.validate(device, model.config, world)
        check_optimizer(recipe, world)
        self.model, self.recipe, self.backend, self.device = model, recipe, backend, device
        self.world, self.micro = world, micro or recipe.batch // world.size
        self.on_shrink = on_shrink
        self.precision = precision or resolve_precision(device, backend.precision)
        # Keeps float16 gradients above what it can hold; does nothing at another precision.
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.precision == "fp16")
        model.use(backend.kernels)
        if backend.compile == "layer":
            from ..model.compile import compile_model

            compile_model(model, compiler)
            self._check_compiled()
        self.wrapped = world.wrap(model)  # what a step calls; evaluation calls the model
        self.optimizer = optimizer(model, recipe, backend)
        self.set_rate(recipe.lr)
        self.grad_norm: Tensor | None = None  # before the first step

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        loss = self._gradients_that_fit(x, y)
        self.update()
        return loss

    def set_rate(self, rate: float) -> None:
        """The learning rate of the steps from here on, times each group's factor."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group.get("factor", 1.0)

    @property
    def description(self) -> str:
        """Precision, device and micro-batch in words, for the log."""
        return f"{self.precision} on {device_name(self.device)}, {self.micro} windows at once"

    def _check_compiled(self) -> None:
        """Raise CompiledWrong, in every process, where it is wrong in one."""
        from .compile_check import compiled_error

        why = compiled_error(self.model, self.micro, self.precision, self.backend)
        if self.world.any(why is not None)[0]:
            raise CompiledWrong(why or "another process compiles this model wrongly")

    def _gradients_that_fit(self, x: Tensor, y: Tensor) -> Tensor:
        """`gradients`; where memory runs out, again with half the micro-batch."""
        while True:
            try:
                return self.gradients(x, y)
            except (RuntimeError, MemoryError) as error:
                if self.on_shrink is None:
                    raise
                if not out_of_memory(error):
                    raise
                micro = min(self.micro, len(x))
                if micro == 1:
                    raise RunFailed("out of memory with a micro-batch of one window") from None
                if self.world.size > 1:  # the others are already waiting for these gradients
                    raise RunFailed(
                        f"out of memory with a micro-batch of {micro} windows in each process: "
                        "give the same command with a smaller --micro-batch"
                    ) from None
            # Outside the except block, where the error no longer holds on to the activations.
            self.micro = -(-micro // 2)
            self.optimizer.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
            self.on_shrink(self.micro)
            if self.backend.compile == "layer":  # other shapes are other kernels
                self._check_compiled()

    def gradients(self, x: Tensor, y: Tensor) -> Tensor:
        """Gradients of the batch's mean loss, accumulated over micro-batches; returns that loss."""
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), dtype=cross_entropy.sums(self.device), device=self.device)
        parts = list(zip(x.split(self.micro), y.split(self.micro), strict=True))
        for i, (part_x, part_y) in enumerate(parts):
            last = i + 1 == len(parts)
            with self.world.accumulating(self.wrapped, last), self.backend.products(self.precision):
                with autocast(self.device, self.precision):
                    loss = self.wrapped(part_x, part_y) * (len(part_x) / len(x))
                self.scaler.scale(loss).backward()
            total += loss.detach()
        return self.world.sum(total) / self.world.size

    def update(self) -> None:
        """Clip the gradients, then let the optimiser update the weights."""
        self.scaler.unscale_(self.optimizer)
        parameters = self.model.parameters()
        self.grad_norm = torch.nn.utils.clip_grad_norm_(parameters, self.recipe.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    # -- checkpoints --------------------------------------------------------------------------

    def weights(self) -> dict[str, Tensor]:
        """All weights by name; those that FSDP shards are whole in rank 0, None in the others."""
        return self.world.unsharded(dict(self.model.state_dict()))

    def state(self) -> dict:
        """The state of model, optimiser and loss scaling, whole in rank 0 as `weights` are."""
        return {
            "model": self.weights(),
            "optimizer": self.world.unsharded(self.optimizer.state_dict()),
            "scaler": self.scaler.state_dict(),
        }

    def load(self, state: dict) -> None:
        """Restore a `state`; learning rates stay as they are, for `set_rate` to set."""
        rates = [group["lr"] for group in self.optimizer.param_groups]
        self.world.load_model(self.model, state["model"])
        saved = state["optimizer"]  # a CPU would use it where it lies: in a file that is dropped
        saved = copy.deepcopy(saved) if self.device.type == "cpu" else saved
        for values in saved["state"].values():  # these lie on the CPU in any case
            values.update({name: x.clone() for name, x in values.items() if name == "step"})
        self.world.load_optimizer(self.optimizer, saved)
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        if self.scaler.is_enabled() and state["scaler"]:  # empty: it ran in another precision
            self.scaler.load_state_dict(state["scaler"])
