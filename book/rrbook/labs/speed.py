"""Chapter 08's lab: real steps along two paths, their time part by part, and what they keep."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import ipywidgets as widgets
import torch

from rr.model.transformer import Model
from rr.residual import RULES
from rr.specs import Recipe
from rr.training.backend import parse_backend
from rr.training.step import OptimizerStep
from rrbook.roofline import PARTS

from .. import figures
from ..explorables.kit import number
from ..explorables.roofline import LONG
from .lab import Drawn, Lab, one_thread, small_model

CPU = torch.device("cpu")
BATCH, LENGTH, BLOCKS = 8, 64, 4  # windows, tokens, blocks
OFFERED = {
    "eager: bf16, chunked loss": "eager",
    "eager, in float32": "eager:precision=fp32",
    "the reference path again": "reference",
}


class Clock:
    """Charges the time from each `switch` to the next to a part of the step."""

    def __init__(self) -> None:
        self.parts = dict.fromkeys(PARTS, 0.0)  # seconds
        self.part, self.began = None, 0.0

    def switch(self, part: str | None) -> None:
        """From here on time is this part's; None: nobody's."""
        now = time.perf_counter()
        if self.part is not None:
            self.parts[self.part] += now - self.began
        self.part, self.began = part, now

    def take(self) -> dict[str, float]:
        """Stop; seconds of each part since the last time."""
        self.switch(None)
        taken, self.parts = self.parts, dict.fromkeys(PARTS, 0.0)
        return taken

    def watch(self, model: Model) -> None:
        """Have a step switch it, forward and backward, from part to part of `roofline.PARTS`.

        A hook on a tensor runs just before the backward pass goes into what made that tensor. For
        rules whose state is a tensor, eager.
        """

        def ahead(part: str) -> Callable:
            return lambda *_: self.switch(part)

        def into(part: str, before: str) -> Callable:
            def hook(_: object, inputs: tuple) -> None:
                inputs[0].register_hook(ahead(before))
                self.switch(part)

            return hook

        def out_of(part: str, after: str) -> Callable:
            def hook(_: object, __: tuple, made: torch.Tensor | tuple) -> None:
                first = made[0] if isinstance(made, tuple) else made
                first.register_hook(ahead(part))
                self.switch(after)

            return hook

        model.register_forward_pre_hook(ahead("embedding"))
        model.layers[0].register_forward_pre_hook(into("rule", "embedding"))
        for layer in model.layers:
            for part, sublayer in (("attention", layer.attn), ("mlp", layer.mlp)):
                sublayer.register_forward_pre_hook(into(part, "rule"))
                sublayer.register_forward_hook(out_of(part, "rule"))
        model.layers[-1].register_forward_hook(out_of("rule", "head"))


def saved_bytes(run: Callable[[], torch.Tensor], owned: torch.nn.Module) -> int:
    """Bytes that a forward pass keeps for its backward pass, each storage once.

    Not those of the weights themselves: they are there anyway.
    """
    owned_storages = {p.untyped_storage().data_ptr() for p in owned.parameters()}
    kept: dict[int, int] = {}

    def see(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in owned_storages:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(see, lambda tensor: tensor):
        made = run()
    del made  # until here it holds all of them, so that no address is used twice
    return sum(kept.values())


@dataclass(frozen=True)
class Measured:
    """One path: seconds of each part of its median step, bytes kept, loss before the first step."""

    parts: dict[str, float]
    kept: int
    loss: float

    @property
    def seconds(self) -> float:
        """Of the whole step."""
        return sum(self.parts.values())


def side_by_side(
    rule: str, paths: list[str], width: int, micro: int, vocabulary: int, steps: int = 5
) -> list[Measured]:
    """Steps of the same small net along each path by turns, on one core, on random tokens.

    Four blocks, a batch of 8 windows of 64, `micro` at once; steps: an odd number, after one that
    does not count. Freed memory goes back to the system on every path: keeping it is the process's
    choice, so the others would have it too.
    """
    net = {"vocab_size": vocabulary, "n_head": width // 32, "seq_len": LENGTH}
    source = torch.Generator().manual_seed(0)
    shape = (1 + steps, 2, BATCH, LENGTH)
    batches = torch.randint(vocabulary, shape, generator=source)
    with one_thread():
        tried = []
        for path in paths:
            way = replace(parse_backend(path), allocator="system")
            model = small_model(rule, BLOCKS, width, **net).train()
            way.set_up(CPU)
            step, clock = (
                OptimizerStep(model, Recipe(1 + steps, BATCH, 1e-3, 1), way, CPU, micro),
                Clock(),
            )
            with way.forward(CPU, step.precision):
                kept = saved_bytes(lambda: model(*batches[0, :, :micro]), model)  # noqa: B023
            clock.watch(model)
            tried.append((step, clock, kept))
        taken = [[timed_step(step, clock, *batch) for step, clock, _ in tried] for batch in batches]
    measured = []
    for (_, _, kept), mine in zip(tried, zip(*taken, strict=True), strict=True):
        ordered = sorted((parts for parts, _ in mine[1:]), key=lambda parts: sum(parts.values()))
        measured.append(Measured(ordered[steps // 2], kept, mine[0][1]))
    return measured


def timed_step(
    step: OptimizerStep, clock: Clock, x: torch.Tensor, y: torch.Tensor
) -> tuple[dict, float]:
    """One optimiser step: seconds of its parts, and the loss before it."""
    clock.switch("optimizer")  # which lets the last gradients go
    loss = step.gradients(x, y)
    clock.switch("optimizer")
    step.update()
    return clock.take(), loss.item()


def lab_speed(steps: int = 5) -> Lab:
    """Lab: a real step along the reference path and another one, part by part, and what both keep.

    steps: of each path, an odd number; the median one is drawn. A few seconds a move on one core.
    """

    def draw(rule: str, path: str, width: int, micro: int, vocabulary: int) -> Drawn:
        asked = ["reference", OFFERED[path]]
        plain, other = side_by_side(rule, asked, width, micro, vocabulary, steps)
        figure, ax = figures.canvas(height=2.4)
        bars = {"reference": plain, path.partition(":")[0]: other}
        figures.stacked_parts(
            ax,
            {name: {part: 1000 * s for part, s in one.parts.items()} for name, one in bars.items()},
            "{:.1f}",
        )
        ax.set_xlabel("milliseconds of a step, forward and backward")
        saved = {part: plain.parts[part] - other.parts[part] for part in PARTS}
        most = max(saved, key=lambda part: abs(saved[part]))
        way = "less" if saved[most] > 0 else "more"
        ms, against = (number(1000 * one.seconds) for one in (other, plain))
        held, before = (number(one.kept / 1e6) for one in (other, plain))
        return figure, (
            f"{rule}, width {width}, {micro} of {BATCH} windows at once, "
            f"vocabulary of {vocabulary}: {ms} ms per step against {against} along the reference "
            f"path, {number(plain.seconds / other.seconds)} times as fast. The largest difference: "
            f"{number(1000 * abs(saved[most]))} ms {way} in {LONG[most]}. Kept for the backward "
            f"pass of {micro} windows: {held} MB against {before}. The losses before the first "
            f"step differ by {number(abs(other.loss - plain.loss))} nats."
        )

    plain = [name for name, cls in RULES.items() if cls.state == "tensor"]
    controls = {
        "rule": widgets.Dropdown(options=plain, value="review", description="rule"),
        "path": widgets.Dropdown(options=list(OFFERED), value=list(OFFERED)[0], description="path"),
        "width": widgets.Dropdown(options=[64, 128, 256], value=128, description="width"),
        "micro": widgets.Dropdown(options=[2, 4, 8], value=8, description="windows at once"),
        "vocabulary": widgets.Dropdown(options=[256, 4096], value=4096, description="vocabulary"),
    }
    lead = (
        "Each move takes real steps of a net of four blocks along the reference path and another, "
        "by turns, on one core of the machine that runs the notebook; freed memory goes back to "
        "the system on both. Find a setting where the other path is slower, and the part that "
        "makes it so."
    )
    grid = {"path": list(OFFERED)[:2], "vocabulary": [256, 4096]}
    return Lab("speed", controls, draw, lead, grid)
