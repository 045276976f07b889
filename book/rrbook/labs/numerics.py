"""Chapter 16's lab: one small change, and how far two trainings are apart at each step."""

import ipywidgets as widgets
import numpy as np

from rr.residual import RULES
from rr.training.planning import plan
from rrbook.numerics import Change, trained

from .. import figures
from ..explorables.kit import number
from .depth import letters
from .lab import Drawn, Lab

CHANGES = {
    "one weight, one bit": Change(nudge=0),
    "windows reordered": Change(shuffle=0),
    "micro-batches of two windows": Change(micro=2),
    "the plain attention kernel": Change(attention="math"),
    "TF32, emulated": Change(tf32=True),
    "bf16": Change(path="eager"),
    "other initial weights": Change(init=1),
    "nothing": Change(),
}


def apart(rule: str, change: Change, steps: int, lr: float, stream: np.ndarray) -> list[float]:
    """|loss − loss of the plain run| before each step, nats per byte; width 32, on letters."""
    run = plan("nano:d_model=32,n_layer=2,seq_len=32", rule, steps=steps, lr=lr, precision="fp32")
    plain, changed = (trained(run, stream, one)[1] for one in (Change(), change))
    return [abs(a - b) for a, b in zip(plain, changed, strict=True)]


def lab_apart() -> Lab:
    """Lab: train twice with one thing changed, and draw the distance of the losses by step.

    Nets of width 32 on the letters of fables. A move takes a few seconds on one core.
    """
    stream = letters().numpy()

    def draw(change: str, rule: str, lr: float, steps: int) -> Drawn:
        gaps = apart(rule, CHANGES[change], steps, lr, stream)
        figure, ax = figures.canvas(height=3.0)
        figures.losses_apart(ax, {change: [gaps]})
        same = sum(gap == 0 for gap in gaps)
        first, last = (sum(part) / len(part) for part in (gaps[: steps // 4], gaps[-steps // 4 :]))
        return figure, (
            f"{change}, {rule}, peak rate {number(lr)}: the losses are the same at {same} of "
            f"{steps} steps; they are {number(first)} nats per byte apart on average over the "
            f"first quarter of the steps and {number(last)} over the last."
        )

    controls = {
        "change": widgets.Dropdown(options=list(CHANGES), description="changed"),
        "rule": widgets.Dropdown(options=list(RULES), value="review", description="rule"),
        "lr": widgets.Dropdown(
            options=[1e-3, 3e-3, 1e-2, 3e-2], value=1e-2, description="peak rate"
        ),
        "steps": widgets.IntSlider(80, 20, 120, 20, description="steps"),
    }
    lead = (
        "Each move trains two real nets of width 32 on the same letters, with one thing changed. "
        "Find a change that a larger learning rate makes larger."
    )
    grid = {"change": [*list(CHANGES)[:2], "bf16"], "lr": [1e-3, 1e-2]}
    return Lab("apart", controls, draw, lead, grid)
