"""How a training step is computed: the reference path, the fast ones, and a step along any of them.

A path says nothing of what is computed: loss, gradients and update are the same up to rounding,
and how far rounding takes a run is measured and tested against the reference path.
"""

import torch
from torch import Tensor, nn

from ..config import Recipe, RRError
from ..model.compile import compile_model
from ..model.transformer import Model
from ..ops import cross_entropy
from .backend import FP16_GRAPH, Path, check, choices
from .device import autocast, device_name, keep_freed, resolve_precision
from .distributed import ALONE, World
from .optimizer import check as check_optimizer
from .optimizer import optimizer


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
        check_optimizer(recipe, path, world)
        self.model, self.recipe, self.path, self.device = model, recipe, path, device
        self.world, self.micro = world, micro or recipe.batch // world.size
        self.precision = precision or resolve_precision(device, path.precision)
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
            keep_freed()
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
        where = device_name(self.device)
        return f"{self.precision} on {where}, {self.micro} windows at once"

    def _step(self, x: Tensor, y: Tensor) -> Tensor:
        loss = self.gradients(x, y)
        self.update()
        return loss

    def gradients(self, x: Tensor, y: Tensor) -> Tensor:
        """Gradients of the batch's mean loss, accumulated over micro-batches; returns that loss."""
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), dtype=cross_entropy.sums(self.device), device=self.device)
        parts = list(zip(x.split(self.micro), y.split(self.micro), strict=True))
        for i, (part_x, part_y) in enumerate(parts):
            last = i + 1 == len(parts)
            with self.world.adding(self.run, last), choices(self.path):
                with autocast(self.device, self.precision):
                    loss = self.run(part_x, part_y) * (len(part_x) / len(x))
                self.scaler.scale(loss).backward()
            total += loss.detach()
        return self.world.sum(total) / self.world.size

    def update(self) -> None:
        """Clip the gradients that are there, and let the optimiser take its step."""
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
