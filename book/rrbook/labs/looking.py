"""Chapter 07's lab: train a small net with depth attention, and see where it looks."""

import ipywidgets as widgets
import torch

from rr.analysis import probes

from .. import figures
from ..explorables.kit import number, share
from .depth import letters, trained_on_letters
from .lab import Drawn, Lab, one_thread

SUBLAYERS = 8


def short_looking(
    size: int, steps: int, neutral: bool, stream: torch.Tensor
) -> tuple[torch.Tensor, float, float]:
    """Where a real model of width 32 looks after `steps` steps: mean α, loss, standard's loss.

    8 sublayers in blocks of `size`, trained as `trained_on_letters` does. The losses (nats per
    byte) are means of the last ten steps, over the same batches.
    """
    options = f"size={size},neutral={int(neutral)}"
    losses = {}
    for rule in ("standard", f"attnres:{options}"):
        model, seen = trained_on_letters(rule, SUBLAYERS, steps, stream)
        losses[rule] = sum(seen[-10:]) / len(seen[-10:])
    held = stream[torch.arange(4)[:, None] * 997 + torch.arange(64)]
    alpha = probes.depth_attention(model, held)
    return alpha, losses[f"attnres:{options}"], losses["standard"]


def lab_depth_attention() -> Lab:
    """Lab: train a net of 8 sublayers with depth attention, and draw where each sublayer looks.

    At most about six seconds a move on one core (100 steps, full).
    """
    stream = letters()

    def draw(size: int, steps: int, neutral: bool) -> Drawn:
        with one_thread():
            alpha, loss, standard = short_looking(size, steps, neutral, stream)
        figure, ax = figures.canvas(height=3.6)
        names = [str(block + 1) for block in range(SUBLAYERS // size)]
        readers = [*(str(i + 1) for i in range(SUBLAYERS)), "head"]
        shown = alpha.masked_fill(alpha == 0, torch.nan)
        figures.depth_map(ax, shown.tolist(), readers, ["embedding", *names], digits=2)
        ax.set_xlabel("source: block of sublayers" if size > 1 else "source: sublayer")
        head = alpha[-1]
        most = int(head.argmax())
        rival = f" and most, {share(head[most].item())}, to source {names[most - 1]}"
        if most == 0:
            rival = ", more than to any other source"
        return figure, (
            f"Blocks of {size}, {steps} steps: the head gives {share(head[0].item())} of its "
            f"weight to the embedding{rival}; even shares would be {share(1 / len(head))}. Loss "
            f"over the last ten steps {number(loss)} nats per byte, the standard residual’s "
            f"{number(standard)}."
        )

    controls = {
        "size": widgets.SelectionSlider(
            options=[1, 2, 4, 8], value=1, description="sublayers per block"
        ),
        "steps": widgets.IntSlider(60, 20, 100, 20, description="steps"),
        "neutral": widgets.Checkbox(True, description="ε₀ divided by k²", indent=False),
    }
    lead = (
        "Each move trains two real nets of width 32 from scratch on the letters of fables. When do "
        "the sublayers stop looking at everything alike?"
    )
    grid = {"size": [1, 4], "steps": [20, 60], "neutral": [True, False]}
    return Lab("depth-attention", controls, draw, lead, grid)
