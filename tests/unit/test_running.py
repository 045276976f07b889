"""What interruptions cost: the equation against a clock, and the lab's processes against `rr`."""

import random
import signal

import pytest

from rr.errors import RRError
from rrbook.explorables.running import overhead, young

TINY = ["--rung", "nano:n_layer=1,d_model=16,n_head=2,seq_len=16", "--batch", "1",
        "--steps", "80", "--eval-batches", "1"]  # fmt: skip


@pytest.mark.parametrize("every, save, between, back", [(0.5, 0.01, 2, 0.1), (1, 0.02, 1, 0.3)])
def test_the_overhead_is_what_a_clock_finds(every, save, between, back):
    rng = random.Random(0)

    def through(length: float, back: float) -> float:
        """Hours until `length` hours have passed whole, coming back after every interruption."""
        spent = 0.0
        while (cut := rng.expovariate(1 / between)) < length:
            spent += cut + (through(back, 0.0) if back else 0.0)
        return spent + length

    n = 30_000
    found = sum(through(every + save, back) for _ in range(n)) / (n * every) - 1
    assert overhead(every, save, between, back) == pytest.approx(found, rel=0.03)


def test_youngs_interval_is_near_the_best_where_interruptions_are_rare():
    save, between = 10 / 3600, 24.0
    grid = [young(save, between) * 1.05**k for k in range(-20, 21)]
    best = min(grid, key=lambda every: overhead(every, save, between, 0.0))
    assert best == pytest.approx(young(save, between), rel=0.06)
    assert 60 * young(10 / 3600, 8) == pytest.approx(12.649, abs=1e-3)  # by hand: 60 √(2·10·8/3600)


def test_what_an_hour_costs(script):
    rare = {"price": 2.0, "between": 1e6, "save": 36, "every": 60, "back": 0}
    usual = {"price": 2.5, "between": 8, "save": 10, "every": 30, "back": 5}
    found, common = script("running", "lostNumbers", [rare], [usual])
    assert common["lost"] == pytest.approx(overhead(0.5, 10 / 3600, 8, 5 / 60))
    least = overhead(young(10 / 3600, 8), 10 / 3600, 8, 5 / 60)
    assert common["least"] == pytest.approx(least)
    [said] = script("running", "lostSentence", [usual])
    assert f"loses {100 * common['lost']:.2f}\u00a0%" in said and "12.6 minutes" in said
    assert f"loses {100 * least:.2f}\u00a0%" in said
    assert found["lost"] == pytest.approx(0.01, rel=1e-3)  # 36 s an hour, and no interruption
    assert found["costs"] == pytest.approx(2.02, rel=1e-4)


def test_a_run_that_ends_before_it_is_cut_off_says_so(tmp_path):
    pytest.importorskip("ipywidgets")
    from rrbook.explore import cut_off

    with pytest.raises(RRError, match="ended before step 5"):
        cut_off([*TINY, "--steps", "2"], tmp_path, 5, signal.SIGTERM)
