"""Bootstrap shares of the best rate: by hand, by drawing, and on chapter 6's records."""

import itertools
import json

import numpy as np
import pandas as pd
import pytest

import rr
from rrbook.stats import best_rate_shares, rate_spreads, resampled_rates

E5 = rr.DATA / "measured" / "e5_loops"


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


def test_a_seed_without_every_rate_is_left_out_and_too_few_are_refused():
    table = {0: {1: 1.0, 2: 2.0}, 1: {1: 4.0, 2: 2.0}, 2: {1: 0.0}}
    assert best_rate_shares(rows(table)) == {1: 0.25, 2: 0.75}
    for wrong, says in (
        (rows({0: table[0], 2: table[2]}), "at least two"),
        (2 * rows(table), "run twice"),
        (rows({0: {1: None}, 1: {1: 1.0}}), "not finite"),
    ):
        with pytest.raises(rr.RRError, match=says):
            best_rate_shares(wrong)


def test_resampled_rates_are_vertices_of_the_resampled_means():
    """Exact parabolas in log2 rate, one per seed: a mean of parabolas has a vertex by hand."""
    rates, centre = [1.0, 2.0, 4.0, 8.0], {0: (1.0, 1.0), 1: (2.0, 3.0)}  # seed -> (vertex, c)
    table = {s: {r: c * (np.log2(r) - v) ** 2 for r in rates} for s, (v, c) in centre.items()}
    both = (1.0 * 1 + 2.0 * 3) / 4  # the means' vertex: weighted by curvature
    found = resampled_rates(rows(table))
    assert np.log2(found) == pytest.approx([1.0, both, both, 2.0])


def vertex(losses):
    """The minimum of the parabola through the five nearest means, by NumPy's own fit in log2."""
    lowest = int(losses.argmin())
    first = min(max(lowest - 2, 0), max(len(losses) - 5, 0))
    near = losses.iloc[first : first + 5]
    x = np.log2(near.index.to_numpy(float))
    fitted = np.polynomial.Polynomial.fit(x, near.to_numpy(), 2)
    if fitted.convert().coef[2] <= 0:
        return np.log2(losses.idxmin())
    return float(np.clip(fitted.deriv().roots()[0], x.min(), x.max()))


def test_the_planned_comparison_of_chapter_6_by_a_second_method():
    told = pd.DataFrame(map(json.loads, pd.read_parquet(E5 / "runs.parquet").result))
    told = told[told.rung.str.contains("n_layer=2,")]
    parts = [told[(told.loops == 1) | (told.rule.str.contains("sqrt") == root)]
             for root in (False, True)]  # fmt: skip
    n, r = ([part[part.seed == seed].pivot(index="loops", columns="lr", values="val_loss")
             for seed in (0, 1, 2)] for part in parts)  # fmt: skip

    def apart(ones, others):
        spreads = [
            np.ptp([vertex(row) for _, row in (sum(some) / 3).iterrows()])
            for some in (ones, others)
        ]
        return spreads[0] - spreads[1]

    columns = ["loops", "lr", "seed", "val_loss"]
    found = rate_spreads(*(part[columns].to_dict("records") for part in parts))
    assert found.difference == pytest.approx(apart(n, r), abs=1e-9)
    drawn = [
        apart([n[i] for i in draw], [r[i] for i in draw])
        for draw in itertools.product(range(3), repeat=3)
    ]
    assert (found.lo, found.hi) == pytest.approx(tuple(np.quantile(drawn, (0.025, 0.975))))
    exchanged = [
        apart(*zip(*((b, a) if swap else (a, b) for a, b, swap in zip(n, r, swaps, strict=True)),
                   strict=True))
        for swaps in itertools.product((False, True), repeat=3)
    ]  # fmt: skip
    as_large = [abs(one) > abs(apart(n, r)) - 1e-9 for one in exchanged]
    assert found.p == np.mean(as_large) == 0.5


def test_spreads_that_differ_in_every_seed_get_the_least_p_and_equal_ones_the_greatest():
    rng = np.random.default_rng(0)

    def drift(per_pass):
        return [
            {"loops": N, "lr": 2.0**k, "seed": s, "val_loss": (k - per_pass * N) ** 2 + noise}
            for N in (1, 2, 4)
            for k in range(6)
            for s in range(4)
            for noise in [0.01 * rng.normal()]
        ]

    still, moving = drift(0.5), drift(1.0)
    found = rate_spreads(still, moving)
    assert (found.one, found.other) == pytest.approx((1.5, 3.0), abs=0.05)
    assert found.lo < found.difference < found.hi < -1 and found.p == 2 / 2**4
    same = rate_spreads(still, still)
    assert same.difference == 0 and same.p == 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda rows: rows[1:], "no run of seed 0 with loops 1 at lr 1"),
        (lambda rows: rows + rows[:1], "run twice"),
        (lambda rows: [{"lr": 1, "seed": 0, "val_loss": 1.0}], "a row without 'loops'"),
    ],
)
def test_spreads_of_an_incomplete_grid_are_refused(change, says):
    whole = [
        {"loops": N, "lr": lr, "seed": s, "val_loss": float(lr + N + s)}
        for N in (1, 2)
        for lr in (1, 2, 4)
        for s in (0, 1)
    ]
    with pytest.raises(rr.RRError, match=says):
        rate_spreads(whole, change(whole))
