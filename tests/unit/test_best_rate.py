"""Bootstrap shares of the best rate: by hand, by drawing, and on chapter 6's records."""

import numpy as np
import pytest

import rr
from rr.stats import best_rate_shares, read_results, resampled_rates


def rows(table):
    """Rows of {seed: {rate: loss}}."""
    return [
        {"seed": seed, "lr": lr, "val_loss": loss}
        for seed, row in table.items()
        for lr, loss in row.items()
    ]


def test_two_seeds_by_hand():
    # resamples: (0,0) → 1e-3; (0,1) and (1,0): means 2.5, 2.0 → 2e-3; (1,1) → 2e-3
    shares = best_rate_shares(rows({0: {1e-3: 1.0, 2e-3: 2.0}, 1: {1e-3: 4.0, 2e-3: 2.0}}))
    assert shares == {1e-3: 0.25, 2e-3: 0.75}


def test_the_exact_shares_are_those_of_drawing():
    rng = np.random.default_rng(3)
    table = {s: {lr: rng.normal() for lr in (1, 2, 4)} for s in range(4)}
    exact = best_rate_shares(rows(table))
    losses = np.array([list(row.values()) for row in table.values()])
    drawn = [losses[rng.integers(0, 4, 4)].mean(0).argmin() for _ in range(20_000)]
    for i, share in enumerate(exact.values()):
        assert abs(np.mean(np.array(drawn) == i) - share) < 4 * 0.5 / 20_000**0.5


@pytest.mark.parametrize(("loops", "share"), [(1, 0.64), (2, 0.59), (4, 0.96), (8, 0.76)])
def test_recorded_rates_agree_with_a_referee(loops, share):
    """P(best rate = 4e-3) under ε = 1/N, as a referee drew it from the same records."""
    found = [
        row
        for row in read_results(rr.DATA / "measured" / "06_looped_transformers")
        if row["rule"] == "scaled:reference=2" and row["loops"] == loops
    ]
    assert best_rate_shares(found)[4e-3] == pytest.approx(share, abs=0.015)


def test_a_seed_without_every_rate_is_left_out_and_too_few_are_refused():
    table = {0: {1: 1.0, 2: 2.0}, 1: {1: 4.0, 2: 2.0}, 2: {1: 0.0}}
    assert best_rate_shares(rows(table)) == {1: 0.25, 2: 0.75}
    with pytest.raises(rr.RRError, match="at least two"):
        best_rate_shares(rows({0: table[0], 2: table[2]}))
    with pytest.raises(rr.RRError, match="run twice"):
        best_rate_shares(2 * rows(table))
    with pytest.raises(rr.RRError, match="not finite"):
        best_rate_shares(rows({0: {1: None}, 1: {1: 1.0}}))


def test_resampled_rates_are_vertices_of_the_resampled_means():
    """Exact parabolas in log2 rate, one per seed: a mean of parabolas has a vertex by hand."""
    rates, centre = [1.0, 2.0, 4.0, 8.0], {0: (1.0, 1.0), 1: (2.0, 3.0)}  # seed -> (vertex, c)
    table = {s: {r: c * (np.log2(r) - v) ** 2 for r in rates} for s, (v, c) in centre.items()}
    both = (1.0 * 1 + 2.0 * 3) / 4  # the means' vertex: weighted by curvature
    found = resampled_rates(rows(table))
    assert np.log2(found) == pytest.approx([1.0, both, both, 2.0])


def test_resamples_of_arms_with_the_same_seeds_are_paired():
    rng = np.random.default_rng(0)
    table = {s: {r: (np.log2(r) - rng.normal(1.5)) ** 2 for r in (1, 2, 4, 8)} for s in range(3)}
    table = {s: {r: float(x) for r, x in row.items()} for s, row in table.items()}
    shifted = {s: {2 * r: loss for r, loss in row.items()} for s, row in table.items()}
    ratio = resampled_rates(rows(shifted)) / resampled_rates(rows(table))
    assert ratio == pytest.approx(np.full(27, 2.0))
