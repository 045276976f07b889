"""Lab: what a gate outputs as its bias and inputs change."""

import ipywidgets as widgets
import torch

from rr.residual import Site, make
from rr.residual.gates import Gated
from rr.specs import ModelConfig

from .. import figures
from ..explorables.kit import number, share
from .lab import Drawn, Lab


def gate_values(bias: float, scale: float, size: float) -> torch.Tensor:
    """r (1, 256, 64) of a real Review rule on random h and u.

    h ~ N(0, 1), u ~ N(0, size²); W ~ N(0, scale²/2d), so that each gate's input has about the
    standard deviation `scale`.
    """
    width = 64
    config = ModelConfig(vocab_size=256, n_layer=1, n_head=1, d_model=width, d_ff=4 * width)
    rule = make("review", Site("attn", 1, n_layer=1, d_model=width, n_head=1), config)
    assert isinstance(rule, Gated)
    source = torch.Generator().manual_seed(0)
    h, u, weight = (
        torch.randn(shape, generator=source)
        for shape in ((1, 256, width), (1, 256, width), rule.weight.shape)
    )
    with torch.no_grad():
        rule.weight.copy_(weight * scale / (2 * width) ** 0.5)
        rule.bias.fill_(bias)
        return rule.gate(h, u * size)


def lab_gate() -> Lab:
    """Lab: the gates of a real Review rule on random states and updates, as a histogram."""

    def draw(bias: float, scale: float, size: float) -> Drawn:
        r = gate_values(bias, scale, size).flatten()
        figure, ax = figures.canvas(height=3.0)
        figures.gate_histogram(ax, {"review": r.tolist()})
        low, high = (r < 0.1).float().mean().item(), (r > 0.9).float().mean().item()
        return figure, (
            f"bias {number(bias)}, weight scale {number(scale)}, updates of size {number(size)}: "
            f"r is {number(r.mean().item())} on average; {share(low)} of the gates are below 0.1 "
            f"and {share(high)} above 0.9."
        )

    controls = {
        "bias": widgets.FloatSlider(0, min=-4, max=4, step=0.5, description="gate bias b"),
        "scale": widgets.FloatSlider(1, min=0, max=4, step=0.25, description="weight scale"),
        "size": widgets.FloatSlider(1, min=0.25, max=4, step=0.25, description="size of u"),
    }
    lead = (
        "The real Review rule gates 256 random tokens of 64 channels. Weight scale 0 is how it "
        "starts. Then find the control that changes nothing, and say why."
    )
    grid = {"bias": [-4, -2, 0, 2], "scale": [0, 1, 4], "size": [0.25, 1, 4]}
    return Lab("gate", controls, draw, lead, grid)
