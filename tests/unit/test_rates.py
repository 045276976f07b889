"""The parabola that chooses a learning rate, against vertices known beforehand."""

import math

import pytest

from rr.errors import RRError
from rrbook.stats.rates import basin

RATES = [0.75e-3, 1.06e-3, 1.5e-3, 2.1e-3, 3.0e-3]


def bowl(best: float, depth: float, curve: float) -> dict[float, float]:
    """Losses on an exact parabola in log rate."""
    return {lr: depth + curve * math.log(lr / best) ** 2 for lr in RATES}


def test_an_exact_parabola_gives_its_vertex_and_its_width():
    found = basin(bowl(1.8e-3, 4.0, 0.2), tolerance=0.02)
    assert found.lr == pytest.approx(1.8e-3)
    assert found.loss == pytest.approx(4.0)
    half = math.sqrt(0.02 / 0.2)  # where 0.2·x² = 0.02
    assert found.low == pytest.approx(1.8e-3 * math.exp(-half))
    assert found.high == pytest.approx(1.8e-3 * math.exp(half))
    assert found.width == pytest.approx(math.exp(2 * half))


def test_a_vertex_beyond_the_rates_is_held_at_the_edge():
    found = basin(bowl(9e-3, 4.0, 0.2))
    assert found.lr == pytest.approx(3.0e-3)


def test_only_the_five_nearest_rates_count():
    losses = {**bowl(1.5e-3, 4.0, 0.2), 1.2e-2: 11.0, 2.4e-2: math.inf}
    assert basin(losses).lr == pytest.approx(1.5e-3)


def test_a_dome_takes_the_lowest_rate_tried_and_two_losses_are_refused():
    found = basin({1e-3: 4.0, 2e-3: 4.3, 4e-3: 4.1})
    assert (found.lr, found.loss, found.width) == (1e-3, 4.0, 1.0)
    with pytest.raises(RRError, match="three finite losses, got 2"):
        basin({1e-3: 4.0, 2e-3: 3.9, 4e-3: math.inf})
