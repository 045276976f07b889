"""Lab: the residual stream and its gradient by depth."""

from dataclasses import replace

import ipywidgets as widgets
import torch

from rr.analysis import probes
from rr.model.init import initialise
from rr.model.transformer import Model
from rr.residual import RULES
from rr.specs import ModelConfig

from .. import figures
from ..explorables.kit import number
from .lab import Drawn, Lab, lab


def stream_and_gradient(model: Model, seed: int = 0) -> tuple[list[float], list[float]]:
    """rms of the stream and norm of the loss's gradient after 0 … S sublayers, on random tokens."""
    source = torch.Generator().manual_seed(seed)
    length = min(32, model.config.seq_len - 1)
    ids = torch.randint(model.config.vocab_size, (4, length + 1), generator=source)
    ids = ids.to(model.token.weight.device)
    steps = probes.trace(model, ids[:, :-1])
    norms = [probes.rms(steps[0].h), *(probes.rms(step.out) for step in steps)]
    return norms, probes.gradient_by_depth(model, ids[:, :-1], ids[:, 1:])


def lab_stream(model: Model | None = None) -> Lab:
    """Lab: rms of the stream and gradient by depth, of a real model at initialisation.

    A model of width 64 is made anew for each setting. `model`, if given (yours, trained or not),
    is measured once and drawn beside it.
    """
    yours = None if model is None else stream_and_gradient(model)

    def draw(sublayers: int, rule: str) -> Drawn:
        config = ModelConfig(
            vocab_size=256,
            n_layer=sublayers // 2,
            n_head=2,
            d_model=64,
            d_ff=256,
            seq_len=33,
            rule=rule,
        )
        norms, slopes = stream_and_gradient(initialise(Model(config), seed=0))
        figure, (left, right) = figures.canvas(2, height=3.2)
        # the standard rule stays in the picture, so that there is something to compare with
        plain = stream_and_gradient(initialise(Model(replace(config, rule="standard")), seed=0))
        figures.stream_norms(left, range(len(norms)), {"standard": plain[0], rule: norms})
        figures.gradient_by_depth(right, range(len(slopes)), {"standard": plain[1], rule: slopes})
        if yours is not None:
            figures.stream_norms(left, range(len(yours[0])), {"yours": yours[0]})
            figures.gradient_by_depth(right, range(len(yours[1])), {"yours": yours[1]})
        dead = sum(slope == 0 for slope in slopes)
        return figure, (
            f"{rule}, {sublayers} sublayers, at initialisation: the stream’s rms goes from "
            f"{number(norms[0])} to {number(norms[-1])}; the gradient at the embedding is "
            f"{number(slopes[0] / slopes[-1])} times the gradient at the last state"
            + (f"; the lowest {dead} are 0, too small for single precision." if dead else ".")
        )

    # the others have no single stream to measure
    traced = [name for name, rule in RULES.items() if rule.state == "tensor"]
    own = [name for name in traced if not RULES[name].__module__.startswith("rr.")]
    shown = [*own, "review", "review-convex", "rezero", "standard"]
    controls = {
        "sublayers": widgets.IntSlider(16, 4, 64, 4, description="sublayers"),
        "rule": widgets.Dropdown(options=traced, value=shown[0], description="rule"),
    }
    lead = "Each setting is a real model of width 64, initialised and measured."
    grid = {"sublayers": [16, 32], "rule": shown[:6]}  # more are too many bytes
    return lab("stream", controls, draw, lead, grid)
