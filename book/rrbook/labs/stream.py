"""Lab: the residual stream and its gradient by depth."""

import ipywidgets as widgets
import numpy as np
import torch

from rr.analysis import probes
from rr.data import batches, open_corpus
from rr.model.transformer import Model
from rr.residual import RULES

from .. import figures
from ..explorables.kit import number
from .lab import Drawn, Lab, small_model

SHAPE = (1024, 128)  # pieces in the vocabulary, tokens in a window: the chapter's


def windows(model: Model) -> tuple[torch.Tensor, torch.Tensor]:
    """ids and targets: the chapter's two windows of held-out fables."""
    valid = open_corpus("fables", log=lambda line: None).valid
    x, y = batches.gather(valid, np.array([0, 1000]), SHAPE[1])
    return x.to(model.token.weight.device), y.to(model.token.weight.device)


def stream_and_gradient(model: Model) -> tuple[list[float], list[float]]:
    """rms of the stream and norm of the loss's gradient after 0 … S sublayers."""
    x, y = windows(model)
    steps = probes.trace(model, x)
    norms = [probes.rms(steps[0].h), *(probes.rms(step.out) for step in steps)]
    return norms, probes.gradient_by_depth(model, x, y)


def lab_stream() -> Lab:
    """Lab: rms of the stream and gradient by depth, of a real model at initialisation.

    The chapter's network of width 128 is made anew for each setting.
    """

    def draw(sublayers: int, rule: str) -> Drawn:
        shape = {"vocab_size": SHAPE[0], "seq_len": SHAPE[1]}
        norms, slopes = stream_and_gradient(small_model(rule, sublayers // 2, 128, **shape))
        figure, (left, right) = figures.canvas(2, height=3.2)
        # the standard rule stays in the picture, so that there is something to compare with
        plain = stream_and_gradient(small_model("standard", sublayers // 2, 128, **shape))
        figures.stream_norms(left, range(len(norms)), {"standard": plain[0], rule: norms})
        figures.gradient_by_depth(right, range(len(slopes)), {"standard": plain[1], rule: slopes})
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
        "sublayers": widgets.IntSlider(64, 4, 64, 4, description="sublayers"),
        "rule": widgets.Dropdown(options=traced, value=shown[0], description="rule"),
    }
    lead = "Each setting is a real model of width 128, as in the chapter, initialised and measured."
    grid = {"sublayers": [16, 64], "rule": shown[:6]}  # more are too many bytes
    return Lab("stream", controls, draw, lead, grid)
