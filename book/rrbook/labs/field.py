"""Chapter 04's lab: norm and gradient by depth of a real model, at its start, under any rule."""

import ipywidgets as widgets
import torch

from rr.analysis import probes
from rr.model.transformer import Model
from rr.residual import RULES

from .. import figures
from ..explorables.kit import number
from .lab import Drawn, Lab, small_model


def stream(rule, state) -> torch.Tensor:
    """What a sublayer reads before any norm, (B, T, d), of any rule's state.

    Of several streams their mean; of a list the mix where the rule makes one, else its first entry.
    """
    if rule.state == "streams":
        return state.mean(-2)
    if rule.state in ("list", "pair"):
        mixed = hasattr(rule, "weights")
        return (rule.weights(state) * torch.stack(state)).sum(0) if mixed else state[0]
    return state


def updates_and_gradients(model: Model) -> tuple[list[float], list[float]]:
    """What the explorable shows, of a real model on random tokens; for rules of every state.

    rms of what is read, before any norm, at depth 0 … S; and the norm of the mean loss's gradient
    by the embedding (entry 0) and by each update u_1 … u_S, over all tokens.
    """
    source = torch.Generator().manual_seed(0)
    length = min(32, model.config.seq_len - 1)
    ids = torch.randint(model.config.vocab_size, (4, length + 1), generator=source)
    norms: list[float] = []
    kept: list[torch.Tensor] = []

    readers = iter([*model.rules, model.final_rule])

    def embedded(stack, args):
        kept.append(args[0])

    def opened(layer, args):
        norms.append(probes.rms(stream(next(readers), args[0])))

    def written(rule, args, out):
        kept.append(args[1])
        norms.append(probes.rms(stream(next(readers), out)))

    with (
        probes.hooked([model.stack], embedded, before=True),
        probes.hooked(model.layers[:1], opened, before=True),
        probes.hooked(model.rules, written),
        torch.enable_grad(),
    ):
        loss = model(ids[:, :-1], ids[:, 1:])
    slopes = torch.autograd.grad(loss, kept, allow_unused=True)
    return norms, [0.0 if g is None else g.double().norm().item() for g in slopes]


def lab_field() -> Lab:
    """Lab: a real model of width 64, built anew for each setting, beside the standard one."""

    def draw(rule: str, sublayers: int, bias: float) -> Drawn:
        spec = f"{rule}:bias={bias:g}" if "bias" in RULES[rule].options else rule
        curves = {
            name: updates_and_gradients(small_model(name, sublayers // 2, 64, seq_len=33))
            for name in dict.fromkeys(("standard", spec))
        }
        figure, (left, right) = figures.canvas(2, height=3.2)
        depth = range(sublayers + 1)
        figures.stream_norms(left, depth, {name: norms for name, (norms, _) in curves.items()})
        norms, slopes = curves[spec]
        alive = {name: g for name, (_, g) in curves.items() if any(g)}
        figures.gradient_by_depth(right, depth, alive)
        right.set_ylabel("gradient at each update")
        silent = sum(slope == 0 for slope in slopes[1:])
        tied = (
            f"{silent} of {sublayers} updates get no gradient at this start"
            if silent
            else f"the first update gets {number(slopes[1] / slopes[-1])} times the gradient of "
            "the last"
        )
        return figure, (
            f"{spec}, {sublayers} sublayers, at initialisation: the stream’s rms goes from "
            f"{number(norms[0])} to {number(norms[-1])}; {tied}."
        )

    controls = {
        "rule": widgets.Dropdown(options=list(RULES), value="attnres", description="rule"),
        "sublayers": widgets.IntSlider(16, 4, 64, 4, description="sublayers"),
        "bias": widgets.FloatSlider(0, min=-4, max=4, step=0.5, description="gate bias b"),
    }
    lead = (
        "A real model of width 64 is built, initialised and measured at each move. Which rules "
        "give their first and last updates equal gradients?"
    )
    shown = ["attnres", "review", "review-convex", "rezero", "deepnorm"]
    grid = {"rule": shown, "sublayers": [4, 16, 32]}
    return Lab("field", controls, draw, lead, grid)
