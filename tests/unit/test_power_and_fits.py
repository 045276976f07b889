"""Effects, power and fits against a second way to each: integration, closed form."""

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq

from rr.errors import RRError
from rrbook.stats import fit
from rrstudy import stats


def shifted_cdf(t, df, shift):
    """P(T ≤ t), T = (Z + shift)/√(χ²/df), by integrating over the χ of the denominator."""

    def at(s):  # s = √(χ²/df)
        log = math.log(2) + df / 2 * math.log(df / 2) - math.lgamma(df / 2)
        density = math.exp(log + (df - 1) * math.log(s) - df * s * s / 2)
        return density * 0.5 * math.erfc((shift - t * s) / math.sqrt(2))

    return quad(at, 1e-12, 12, epsabs=1e-12, limit=400)[0]


def t_tail(t, df):
    """P(|T| ≥ |t|) of the central t."""
    return 2 * (1 - shifted_cdf(abs(t), df, 0.0))


# ---- Effects and power -------------------------------------------------------------------------


@pytest.mark.parametrize("gap, sd, n", [(0.01, 0.01, 3), (0.005, 0.01, 8)])
def test_power_against_integration(gap, sd, n):
    for design, df, shift in (
        ("paired", n - 1, math.sqrt(n) * gap / sd),
        ("independent", 2 * n - 2, math.sqrt(n / 2) * gap / sd),
    ):
        found = stats.power(gap, sd, n, alpha=0.05, design=design)
        critical = brentq(lambda t, df=df: t_tail(t, df) - 0.05, 0.1, 100)
        beyond = 1 - shifted_cdf(critical, df, shift) + shifted_cdf(-critical, df, shift)
        assert found == pytest.approx(beyond, abs=1e-6)


def test_seeds_needed_is_the_first_that_suffices():
    for design in ("paired", "independent"):
        n = stats.seeds_needed(0.01, 0.012, design=design)
        assert stats.power(0.01, 0.012, n, design=design) >= 0.8
        assert stats.power(0.01, 0.012, n - 1, design=design) < 0.8
        gap = stats.detectable_gap(n, 0.012, design=design)
        assert gap <= 0.01 and stats.power(gap, 0.012, n, design=design) == pytest.approx(0.8)
    assert stats.seeds_needed(1.0, 1e-6) == 2 and stats.power(1.0, 1e-12, 2) == 1
    assert stats.power(0.0, 1.0, 5) == pytest.approx(0.05)
    # known normal noise: n ≈ (z_{0.975} + z_{0.8})² (sd/gap)² = 7.849·(sd/gap)²
    assert stats.seeds_needed(0.01, 0.2) == pytest.approx(7.849 * 400, rel=2e-3)


def test_power_is_finite_and_grows_where_scipys_far_tail_is_not():
    # its noncentral cdf at −t* is NaN for many shifts from 5 on, and brentq met them
    for n in (2, 3, 6, 21, 101):
        for design in ("paired", "independent"):
            found = [stats.power(gap, 1.0, n, 0.005, design) for gap in np.linspace(0, 8, 81)]
            assert np.isfinite(found).all() and (np.diff(found) > -1e-9).all()
    gap = stats.detectable_gap(6, 0.0075, alpha=0.005, design="independent")
    assert stats.power(gap, 0.0075, 6, 0.005, "independent") == pytest.approx(0.8)


def test_sd_interval_by_the_closed_form_of_three_seeds():
    # with 2 df, χ² has quantiles −2·log(1 − q)
    low, high = stats.sd_interval(0.002, 2)
    assert low == pytest.approx(0.002 * math.sqrt(2 / (-2 * math.log(0.025))))
    assert high == pytest.approx(0.002 * math.sqrt(2 / (-2 * math.log(0.975))))
    assert 12 < high / low < 12.1


# ---- Fits --------------------------------------------------------------------------------------

X, Y, SE = [4.0, 5.0, 5.7, 6.4, 6.9], [-9, -3, 4, 11, 16], [5, 4, 1.5, 2, 1]


def test_fit_against_the_normal_equations():
    x, y, w = np.array(X), np.array(Y), 1 / np.array(SE, float) ** 2
    s, sx, sy, sxx, sxy = (float((w * v).sum()) for v in (x**0, x, y, x * x, x * y))
    det = s * sxx - sx**2
    slope, height = (s * sxy - sx * sy) / det, (sxx * sy - sx * sxy) / det
    chi2 = (w * (y - height - slope * x) ** 2).sum()
    known = fit(X, Y, SE)
    assert (known.slope, known.intercept) == pytest.approx((slope, height), rel=1e-9)
    assert (known.se_slope, known.se_intercept, known.covariance) == pytest.approx(
        (math.sqrt(s / det), math.sqrt(sxx / det), -sx / det), rel=1e-9
    )
    assert known.chi2 == pytest.approx(chi2) and known.errors == "known"
    assert known.p == pytest.approx(math.erfc(slope / known.se_slope / math.sqrt(2)), rel=1e-6)
    assert known.hi - known.slope == pytest.approx(1.959964 * known.se_slope, rel=1e-6)
    # with 3 df, P(χ² ≥ c) = erfc(√(c/2)) + √(2c/π)·e^(−c/2)
    tail = math.erfc(math.sqrt(chi2 / 2)) + math.sqrt(2 * chi2 / math.pi) * math.exp(-chi2 / 2)
    assert known.chi2_p == pytest.approx(tail, rel=1e-9)
    scaled = fit(X, Y, SE, errors="scaled")
    assert scaled.se_slope == pytest.approx(known.se_slope * math.sqrt(chi2 / 3), rel=1e-9)
    assert scaled.p == pytest.approx(t_tail(scaled.slope / scaled.se_slope, 3), abs=1e-9)
    # the line and its error at a point: the same fit with x counted from that point
    value, low, high = scaled.at(6.0)
    there = fit([v - 6 for v in X], Y, SE, errors="scaled")
    assert value == pytest.approx(there.intercept)
    edge = (high - value) / there.se_intercept
    assert t_tail(edge, 3) == pytest.approx(0.05, abs=1e-8)
    assert value - low == pytest.approx(high - value)


def test_an_exact_line_a_flat_one_and_a_pooled_spread_by_hand():
    exact = fit([1, 2, 3, 4], [3, 5, 7, 9])
    assert (exact.slope, exact.intercept, exact.chi2) == (pytest.approx(2), pytest.approx(1), None)
    assert fit([1, 2, 3], [0, 0, 0]).slope == 0 and math.isnan(fit([1, 2, 3], [0, 0, 0]).p)
    # squares 2 and 0.5 with 2 and 1 degrees of freedom; a single value has no spread to give
    assert stats.pooled_sd([[1, 2, 3], [5, 6], [9]]) == (pytest.approx(math.sqrt(2.5 / 3)), 3)


# ---- Bad input ---------------------------------------------------------------------------------

BAD = [
    (lambda: stats.power(0.01, 0.0, 3), "sd must be > 0"),
    (lambda: stats.power(0.01, 0.1, 3, design="pair"), "did you mean paired"),
    (lambda: stats.seeds_needed(0, 0.1), "gap must not be 0"),
    (lambda: stats.seeds_needed(1e-9, 0.1), "more than 100000 seeds"),
    (lambda: stats.detectable_gap(3, 0.1, power=0.01), "must be above alpha"),
    (lambda: fit([1, 1, 1], [1, 2, 3]), "x is 1 at every point"),
    (lambda: fit([1, 2, 3], [1, 2]), "equal length, got 3, 2"),
    (lambda: fit([1, 2, 3], [1, 2, 3], [1, 0, 1]), "se must be > 0, got 1 of 3"),
    (lambda: fit([1, 2, 3], [1, 2, 3], errors="known"), "need se"),
]


@pytest.mark.parametrize("call, words", BAD, ids=[words for _, words in BAD])
def test_bad_input_is_one_clear_line(call, words):
    with pytest.raises(RRError, match=words):
        call()
