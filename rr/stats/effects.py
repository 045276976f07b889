"""Standardised effects with intervals, and power: how many seeds does a question need?

Everything here rests on the noncentral t: for normal differences √n·d̄/s_d ~ t'(n − 1, √n·δ/σ_d).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.stats as st
from scipy.optimize import brentq
from scipy.special import gammaln

from ..config import RRError, nearest
from .inference import differences, fraction, numbers

DESIGNS = ("paired", "independent")


@dataclass(frozen=True)
class Effect:
    """A difference in units of a standard deviation (no unit), with its interval.

    `cohen_dz()` and `hedges_g()` make one.

    Example:
        >>> from rr.stats import cohen_dz
        >>> a, b = [4.00, 4.02, 3.99], [4.05, 4.06, 4.05]
        >>> cohen_dz(a, b).df
        2
    """

    name: str  # "d_z" or "g"
    value: float
    lo: float
    hi: float
    df: int  # degrees of freedom of the standard deviation
    level: float


def _noncentrality(t: float, df: int, level: float) -> tuple[float, float]:
    """The interval for √n·δ: the noncentralities that put t at the (1±level)/2 quantiles."""
    size = abs(t)
    tails = ((1 + level) / 2, (1 - level) / 2)
    ends = []
    for tail in tails:
        if size > 1e4:  # only the spread of s_d is left, and SciPy's noncentral t gives NaN soon
            ends.append(size * math.sqrt(float(st.chi2.ppf(1 - tail, df)) / df))
            continue
        # T ≤ 0 alone has Φ(−c), so the root lies above −Φ⁻¹(tail); SciPy gives NaN far below it
        low, high = -float(st.norm.ppf(tail)) - 0.1, size + 10.0
        while st.nct.cdf(size, df, high) > tail:
            high *= 2
        ends.append(brentq(lambda c, q=tail: st.nct.cdf(size, df, c) - q, low, high))
    return (ends[0], ends[1]) if t >= 0 else (-ends[1], -ends[0])


def cohen_dz(a: Iterable[float], b: Iterable[float], level: float = 0.95) -> Effect:
    """d_z = d̄/s_d of the pairs: the effect that power of the paired test depends on.

    Divided by the noise that *remains* after pairing: large where seeds share their noise, and not
    comparable with Hedges' g. |d_z| is biased upwards at small n (the interval is not); at n = 2
    its mean does not exist. Interval: the two noncentralities of a t with n − 1 degrees of freedom
    of which √n·d_z is the (1 + level)/2 and the (1 − level)/2 quantile, divided by √n.

    Raises RRError as `differences()` does, and where all differences are equal (s_d = 0). Source:
    Cohen 1988; the interval: Steiger and Fouladi 1997.

    Example:
        >>> from rr.stats import cohen_dz
        >>> a, b = [4.00, 4.02, 3.99], [4.05, 4.06, 4.05]
        >>> round(cohen_dz(a, b).value, 2)
        -5.0
    """
    d, level = differences(a, b), fraction(level, "level")
    n = len(d)
    if not np.ptp(d):
        raise RRError(f"all {n} differences are equal: d_z divides by their standard deviation, 0")
    value = float(d.mean() / d.std(ddof=1))
    lo, hi = (c / math.sqrt(n) for c in _noncentrality(value * math.sqrt(n), n - 1, level))
    return Effect("d_z", value, lo, hi, n - 1, level)


def hedges_g(a: Iterable[float], b: Iterable[float], level: float = 0.95) -> Effect:
    """g = J(ν)·(ā − b̄)/s_pooled, ν = n_a + n_b − 2, J(ν) = Γ(ν/2)/(√(ν/2)·Γ((ν−1)/2)).

    In units of the spread *between seeds* within an arm, taken as equal in both. J corrects the
    small-sample bias. Interval: noncentral t, as in `cohen_dz()`, times J. Raises RRError for fewer
    than two values per arm, values that are not finite, or no spread in either arm. Source: Hedges
    1981.

    Example:
        >>> from rr.stats import hedges_g
        >>> a, b = [4.00, 4.02, 3.99], [4.05, 4.06, 4.05]
        >>> round(hedges_g(a, b).value, 2)
        -3.45
    """
    a, b, level = numbers(a, "a"), numbers(b, "b"), fraction(level, "level")
    n, m = len(a), len(b)
    if min(n, m) < 2:
        raise RRError(f"Hedges' g needs at least two values per arm, got {n} and {m}")
    df = n + m - 2
    pooled = math.sqrt(((n - 1) * a.var(ddof=1) + (m - 1) * b.var(ddof=1)) / df)
    if not (np.ptp(a) or np.ptp(b)):
        raise RRError("neither arm varies over its seeds: g divides by that spread, 0")
    bias = math.exp(gammaln(df / 2) - gammaln((df - 1) / 2)) / math.sqrt(df / 2)
    scale = math.sqrt(n * m / (n + m))
    d = float(a.mean() - b.mean()) / pooled
    lo, hi = (bias * c / scale for c in _noncentrality(d * scale, df, level))
    return Effect("g", bias * d, lo, hi, df, level)


# ---- Power -------------------------------------------------------------------------------------


def _noise(gap: float, sd: float, alpha: float, design: str) -> tuple[float, float, float]:
    gap, sd = (float(v) for v in numbers([gap, sd], "gap and sd"))
    if sd <= 0:
        raise RRError(f"sd must be > 0, in the unit of the gap, got {sd:g}")
    if design not in DESIGNS:
        raise RRError(f"unknown design {design!r}: {nearest(str(design), DESIGNS)}")
    return abs(gap), sd, fraction(alpha, "alpha")


def _power(gap: float, sd: float, n: int, alpha: float, design: str) -> float:
    df, shift = (n - 1, math.sqrt(n)) if design == "paired" else (2 * (n - 1), math.sqrt(n / 2))
    shift = min(shift * gap / sd, 1e8)  # SciPy's noncentral t gives NaN far beyond
    critical = float(st.t.ppf(1 - alpha / 2, df))
    chance = float(st.nct.sf(critical, df, shift))
    if shift < 10:  # the far tail is below Φ(−shift); mirrored, as its cdf is NaN from shift 5 on
        chance += float(st.nct.sf(critical, df, -shift))
    return chance


def _seeds(n: int) -> int:
    if not isinstance(n, int | np.integer) or n < 2:
        raise RRError(f"n must be an integer ≥ 2 (seeds), got {n!r}")
    return int(n)


def power(gap: float, sd: float, n: int, alpha: float = 0.05, design: str = "paired") -> float:
    """Probability that the two-sided t test at level alpha finds a true `gap` with n seeds per arm.

    gap, sd: in one unit. n: seeds per arm, at least 2. alpha: level of the test. design: "paired":
    sd is that of the differences, the noncentrality √n·gap/sd, with n − 1 degrees of freedom.
    "independent": sd is that of one arm over its seeds (equal in both), the noncentrality
    √(n/2)·gap/sd, with 2(n − 1).

    power = P(|T| > t*), T noncentral t with these two, t* the 1 − alpha/2 quantile of the central
    t. Assumes normal noise and an sd that is *known*: see `sd_interval()` for how little three
    seeds tell about it. Raises RRError for n below 2, sd ≤ 0, alpha outside (0, 1), values that are
    not finite, and an unknown design.

    Example:
        >>> from rr.stats import power
        >>> round(power(gap=0.02, sd=0.01, n=5), 2)
        0.91
    """
    gap, sd, alpha = _noise(gap, sd, alpha, design)
    return _power(gap, sd, _seeds(n), alpha, design)


def seeds_needed(
    gap: float,
    sd: float,
    power: float = 0.8,
    alpha: float = 0.05,
    design: str = "paired",
    most: int = 100_000,
) -> int:
    """The smallest number of seeds per arm that finds a true `gap` with at least this power.

    Terms and errors as in `power()`. For m tests under Bonferroni give alpha/m. most: the largest
    number that is tried. Raises RRError, too, where more would be needed, and for a gap of 0, which
    no number of seeds can detect.

    Example:
        >>> from rr.stats import seeds_needed
        >>> seeds_needed(gap=0.02, sd=0.01)
        5
    """
    gap, sd, alpha = _noise(gap, sd, alpha, design)
    wanted = fraction(power, "power")
    if not gap:
        raise RRError(
            "gap must not be 0, which no number of seeds can detect: give the gap to find"
        )
    if _power(gap, sd, _seeds(most), alpha, design) < wanted:
        raise RRError(f"more than {most} seeds: a gap of {gap:g} is too small against sd {sd:g}")
    low, high = 1, 2
    while _power(gap, sd, high, alpha, design) < wanted:
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        if _power(gap, sd, middle, alpha, design) < wanted:
            low = middle
        else:
            high = middle
    return high


def detectable_gap(
    n: int, sd: float, power: float = 0.8, alpha: float = 0.05, design: str = "paired"
) -> float:
    """The smallest true gap that n seeds per arm find with this power, in the unit of sd.

    Terms and errors as in `power()`. Raises RRError, too, for a power that is not above alpha,
    which a gap of 0 has.

    Example:
        >>> from rr.stats import detectable_gap
        >>> round(detectable_gap(n=3, sd=0.01), 3)
        0.033
    """
    _, sd, alpha = _noise(0.0, sd, alpha, design)
    n, wanted = _seeds(n), fraction(power, "power")
    if wanted <= alpha:
        raise RRError(f"power must be above alpha {alpha:g}, which a gap of 0 has, got {wanted:g}")
    high = 1.0
    while _power(high, 1.0, n, alpha, design) < wanted:
        high *= 2
    gap: Any = brentq(lambda gap: _power(gap, 1.0, n, alpha, design) - wanted, 0.0, high)
    return sd * gap


def sd_interval(sd: float, df: int, level: float = 0.95) -> tuple[float, float]:
    """Interval for the true σ of an sd with df degrees of freedom.

    Returns (sd·√(df/χ²_hi), sd·√(df/χ²_lo)), χ²_hi and χ²_lo the (1 + level)/2 and (1 − level)/2
    quantiles of χ² with df. Assumes normal noise. With df = 2 (three seeds) it spans a factor of
    twelve, so that a number of seeds planned from it is uncertain by up to the square of that.
    Raises RRError for sd ≤ 0 or df < 1.

    Example:
        >>> from rr.stats import sd_interval
        >>> lo, hi = sd_interval(0.01, df=2)
        >>> round(lo, 4), round(hi, 4)
        (0.0052, 0.0628)
    """
    _, sd, _ = _noise(0.0, sd, 0.05, "paired")
    if not df >= 1:
        raise RRError(f"df must be ≥ 1, got {df!r}")
    tail = (1 - fraction(level, "level")) / 2
    low, high = (sd * math.sqrt(df / float(st.chi2.ppf(q, df))) for q in (1 - tail, tail))
    return low, high
