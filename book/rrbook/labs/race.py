"""Chapter 15's lab: two rules of the registry, a reader's own among them, on the same batches."""

import ipywidgets as widgets

from rr.residual import RULES

from .. import figures
from ..explorables.kit import number
from .depth import letters, trained_on_letters
from .lab import Drawn, Lab

LAST = 10  # steps whose mean loss is compared


def lab_race(rule: str = "review", against: str = "standard") -> Lab:
    """Lab: two rules train small nets on the same letters, two seeds each.

    Nets of width 32 on the letters of fables. The list holds the rules that are registered when the
    lab is made. Up to about ten seconds a move on one core (16 sublayers, 100 steps).
    """
    stream = letters()

    def draw(rule: str, against: str, sublayers: int, steps: int) -> Drawn:
        figure, ax = figures.canvas(height=3.2)
        losses = {
            (name, seed): trained_on_letters(name, sublayers, steps, stream, seed)[1]
            for name in dict.fromkeys((rule, against))
            for seed in (0, 1)
        }
        figures.loss_curves(
            ax,
            [
                {"rule": name, "steps": list(range(1, steps + 1)), "loss": curve}
                for (name, _), curve in losses.items()
            ],
        )
        ax.set_ylabel("loss (nats per byte)")
        last = {at: sum(curve[-LAST:]) / LAST for at, curve in losses.items()}
        gaps = [last[rule, seed] - last[against, seed] for seed in (0, 1)]
        if gaps == [0, 0]:
            verdict = "there is nothing to tell apart"
        elif gaps[0] * gaps[1] > 0:
            verdict = "the two seeds agree on the sign"
        else:
            verdict = "the two seeds do not agree on the sign"
        return figure, (
            f"{rule} − {against}, {sublayers} sublayers, over the last {LAST} of {steps} steps: "
            f"{number(gaps[0])} (seed 0) and {number(gaps[1])} (seed 1) nats per byte; {verdict}."
        )

    controls = {
        "rule": widgets.Dropdown(options=list(RULES), value=rule, description="rule"),
        "against": widgets.Dropdown(options=list(RULES), value=against, description="against"),
        "sublayers": widgets.IntSlider(4, 4, 16, 4, description="sublayers"),
        "steps": widgets.IntSlider(100, 20, 100, 20, description="steps"),
    }
    lead = (
        "Each move trains four real nets of width 32 from scratch on the letters of fables: two "
        "rules, two seeds, the same batches. Find a pair whose seeds disagree."
    )
    grid = {"rule": list(dict.fromkeys([rule, "review", "constant"])), "steps": [20, 100]}
    return Lab("race", controls, draw, lead, grid)
