"""Chapter 11's lab: simulated studies whose truth is known, through the real tests."""

import math

import ipywidgets as widgets
import numpy as np

from rr.errors import RRError
from rrstudy import stats

from .. import figures
from ..explorables.kit import number
from .lab import Drawn, Lab


def simulated_study(
    gap: float, sd: float, correlation: float, n: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Losses of a baseline and of an arm over n seeds, baseline − arm being `gap` in truth.

    baseline_i = gap + sd·(√ρ·c_i + √(1 − ρ)·e_i), arm_i = sd·(√ρ·c_i + √(1 − ρ)·e'_i) with all of
    c, e, e' ~ N(0, 1): each arm varies by `sd` over seeds, and shares ρ = `correlation` of that
    variance with the other. The sd of a paired difference is sd·√(2(1 − ρ)). Nats per token, up to
    a constant. Raises RRError for a negative sd or a correlation outside 0 to 1.
    """
    if not (sd >= 0 and 0 <= correlation <= 1):
        raise RRError(f"sd must be ≥ 0 and correlation from 0 to 1, got {sd:g} and {correlation:g}")
    common, *own = rng.standard_normal((3, n))
    shared, rest = math.sqrt(correlation) * common, math.sqrt(1 - correlation)
    return gap + sd * (shared + rest * own[0]), sd * (shared + rest * own[1])


def lab_evidence(studies: int = 300) -> Lab:
    """Lab: how often Welch's and the paired test find a true gap, study after simulated study."""

    def draw(gap: int, sd: float, correlation: float, n: int) -> Drawn:
        rng, p = np.random.default_rng(0), []
        for _ in range(studies):
            pair = simulated_study(gap / 1000, sd / 1000, correlation, n, rng)
            p.append((stats.welch(*pair).p, stats.paired(*pair).p))
        welch, paired = np.array(p).T
        figure, ax = figures.canvas(height=3.8)
        figures.simulated_tests(ax, welch, paired, 0.05, ("Welch", "paired"))
        shares = [100 * float((p <= 0.05).mean()) for p in (welch, paired)]
        spread = sd / 1000 * math.sqrt(2 * (1 - correlation))
        theory = 100 * stats.power(gap / 1000, spread, n) if gap else 5.0
        what = "finds the gap" if gap else "raises a false alarm"
        return figure, (
            f"True gap {number(gap / 1000)} nats, {n} seeds, noise {number(sd / 1000)} of which "
            f"the arms share {number(100 * correlation)} % of the variance: Welch’s test {what} "
            f"in {number(shares[0])} % of {studies} studies, the paired test in "
            f"{number(shares[1])} %; by formula the paired test does in {number(theory)} %."
        )

    controls = {
        "gap": widgets.IntSlider(5, 0, 30, 1, description="true gap (nats/1000)"),
        "sd": widgets.FloatSlider(8, min=1, max=20, step=1, description="seed noise (nats/1000)"),
        "correlation": widgets.SelectionSlider(
            options=[0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99], value=0.95, description="shared part"
        ),
        "n": widgets.IntSlider(3, 2, 12, 1, description="seeds per arm"),
    }
    lead = (
        "Each dot is a simulated study with a truth that you set. First set the gap to 0 and see "
        "how often each test is fooled; then make the arms share nothing."
    )
    grid = {"gap": [0, 5], "correlation": [0.0, 0.95], "n": [3, 12]}
    return Lab("evidence", controls, draw, lead, grid)
