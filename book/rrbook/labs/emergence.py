"""Chapter 14's lab: what a plan of sizes and seeds can tell apart, by the real power function."""

import math

import ipywidgets as widgets
import numpy as np

from rrbook.stats.emergence import at_fixed_ratio
from rrstudy import stats

from .. import figures
from ..explorables.emergence import WINDOW
from ..explorables.kit import number
from .lab import Drawn, Lab

BUDGETS = (2000, 4000, 8000)  # steps
SEEDS = range(2, 21)


def lab_power(sizes: dict[str, float]) -> Lab:
    """Lab: the probability of seeing an effect of size at fixed tokens per parameter.

    sizes: parameters by name, from the smallest. The plan is a grid of the sizes up to the chosen
    one and three budgets of 64 windows of 256 tokens per step; cells vary independently.
    """
    names = list(sizes)

    def draw(slope: int, sd: int, top: str, seeds: int) -> Drawn:
        taken = names[: names.index(top) + 1]
        n = np.repeat([sizes[name] for name in taken], len(BUDGETS))
        d = np.tile(BUDGETS, len(taken)) * WINDOW
        spread = at_fixed_ratio(n, d, np.zeros(len(n)))[1] * sd / 1000
        chance = [stats.power(slope / 1000, spread, k) for k in SEEDS]
        figure, ax = figures.canvas(height=3.0)
        figures.power_curve(ax, SEEDS, chance, seeds)
        now = stats.power(slope / 1000, spread, seeds)
        need = math.inf if slope == 0 else stats.seeds_needed(slope / 1000, spread)
        words = "no number of seeds" if math.isinf(need) else f"{need} seeds"
        return figure, (
            f"{taken[0]} to {top} at three budgets, {number(slope / 1000)} nats per tenfold of "
            "size, "
            f"{number(sd / 1000)} nats of noise in a paired difference: one seed’s estimate varies "
            f"by {number(spread)}; {seeds} seeds see the effect with probability {number(now)}, "
            f"and four chances in five take {words}."
        )

    controls = {
        "slope": widgets.IntSlider(15, 0, 60, 1, description="effect (nats/1000 per tenfold)"),
        "sd": widgets.IntSlider(5, 1, 30, 1, description="noise of a pair (nats/1000)"),
        "top": widgets.Dropdown(options=names[1:], value=names[2], description="up to"),
        "seeds": widgets.IntSlider(3, 2, 20, 1, description="seeds"),
    }
    lead = "Which is cheaper: more seeds, or one more size? Find a plan with four chances in five."
    grid = {"slope": [5, 15, 30], "sd": [5, 15], "top": [names[2], names[-1]]}
    return Lab("power", controls, draw, lead, grid)
