"""Lab: short trainings on letters at several depths."""

import ipywidgets as widgets
import numpy as np
import torch

from rr.data import fables
from rr.model.transformer import Model
from rr.residual import RULES

from .. import figures
from ..explorables.kit import number
from .lab import Drawn, Lab, one_thread, small_model


def letters(stories: int = 300) -> torch.Tensor:
    """The first training stories of the fables as bytes: one long stream of ids below 256."""
    text = "\n".join(fables.story(fables.SEED, i)[0] for i in range(stories))
    return torch.from_numpy(np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64))


def trained_on_letters(
    rule: str, sublayers: int, steps: int, stream: torch.Tensor, seed: int = 0
) -> tuple[Model, list[float]]:
    """A real model of width 32 and its losses (nats per byte) over its first `steps` steps.

    AdamW, lr 0.01 after 5 steps of warm-up, 8 windows of 64 bytes, clipped at 1; the same batches
    for every rule.
    """
    model = small_model(rule, sublayers // 2, 32, seed, seq_len=64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.9, 0.95))
    source, losses = torch.Generator().manual_seed(seed), []
    with one_thread():
        for step in range(steps):
            starts = torch.randint(len(stream) - 65, (8, 1), generator=source)
            batch = stream[starts + torch.arange(65)]
            optimizer.param_groups[0]["lr"] = 0.01 * min(1, (step + 1) / 5)
            optimizer.zero_grad(set_to_none=True)
            loss = model(batch[:, :-1], batch[:, 1:])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
    return model, losses


def lab_depth() -> Lab:
    """Lab: train a real net of width 32 for up to 100 steps; the last setting stays for contrast.

    At most about five seconds a move on one core (32 sublayers, 100 steps).
    """
    stream = letters()
    frequency = torch.bincount(stream, minlength=256).double() / len(stream)
    unigram = torch.special.entr(frequency).sum().item()
    before: list[dict] = []

    def alone(rule: str, sublayers: int, bias: float, steps: int) -> Drawn:
        before.clear()
        return draw(rule, sublayers, bias, steps)

    def draw(rule: str, sublayers: int, bias: float, steps: int) -> Drawn:
        spec = f"{rule}:bias={bias:g}"
        losses = trained_on_letters(spec, sublayers, steps, stream)[1]
        run = {"rule": rule, "steps": list(range(1, steps + 1)), "loss": losses}
        figure, ax = figures.canvas(height=3.2)
        figures.loss_curves(ax, [*before, run])
        ax.axhline(unigram, color=figures.SOFT, lw=1.2, ls=":")
        words, at = "knowing only how frequent each letter is", ("axes fraction", "data")
        look = {"color": figures.SOFT, "fontsize": 9.5}
        figures.note(ax, words, (0, unigram), (4, -13), xycoords=at, **look)
        ax.set_ylabel("loss (nats per byte)")
        ax.set_ylim(2.2, 6.2)  # one scale for all settings; spikes leave through the top
        before[:] = [run | {"rule": "before", "label": "before"}]
        last = sum(losses[-10:]) / len(losses[-10:])
        gap = unigram - last
        verdict = (
            f"{number(gap)} below letter frequencies: it has left the plateau"
            if gap > 0.1
            else "still on the plateau of letter frequencies, delayed beyond this budget"
        )
        return figure, (
            f"{rule} with b = {number(bias)}, {sublayers} sublayers: {number(last)} nats per byte "
            f"over the last ten of {steps} steps, {verdict}."
        )

    gated = [name for name, cls in RULES.items() if "bias" in cls.options]
    controls = {
        "rule": widgets.Dropdown(options=gated, value="review-convex", description="rule"),
        "sublayers": widgets.IntSlider(16, 4, 32, 4, description="sublayers"),
        "bias": widgets.FloatSlider(0, min=-4, max=0, step=0.5, description="gate bias b"),
        "steps": widgets.IntSlider(60, 20, 100, 20, description="steps"),
    }
    lead = (
        "Each setting is a real net of width 32, trained from scratch on the letters of fables (in "
        "the notebook a move takes a second or a few). Which rules leave the plateau, and how deep "
        "may they be?"
    )
    grid = {"rule": ["review-convex", "review"], "sublayers": [4, 16], "bias": [-3, 0]}
    return Lab("depth", controls, draw, lead, grid, alone)
