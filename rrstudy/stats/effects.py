"""Power: how many seeds does a question need?

Everything here rests on the noncentral t: for normal differences √n·d̄/s_d ~ t'(n − 1, √n·δ/σ_d).
"""

import math
from typing import Any

import numpy as np
import scipy.stats as st
from scipy.optimize import brentq

from rr.errors import RRError, nearest

from .inference import fraction, numbers

DESIGNS = ("paired", "independent")


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
    if not isinstance(n, int | np.integer) or not 2 <= n < 2**31:
        raise RRError(f"n must be an integer from 2 to below 2**31 (seeds), got {n!r}")
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
        >>> from rrstudy.stats import power
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
        >>> from rrstudy.stats import seeds_needed
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
        >>> from rrstudy.stats import detectable_gap
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
        if high > 1e12:
            raise RRError(f"no gap is found with {n} seeds at alpha {alpha:g}: give more seeds")
    gap: Any = brentq(lambda gap: _power(gap, 1.0, n, alpha, design) - wanted, 0.0, high)
    return sd * gap


def sd_interval(sd: float, df: int, level: float = 0.95) -> tuple[float, float]:
    """Interval for the true σ of an sd with df degrees of freedom.

    Returns (sd·√(df/χ²_hi), sd·√(df/χ²_lo)), χ²_hi and χ²_lo the (1 + level)/2 and (1 − level)/2
    quantiles of χ² with df. Assumes normal noise. With df = 2 (three seeds) it spans a factor of
    twelve, so that a number of seeds planned from it is uncertain by up to the square of that.
    Raises RRError for sd ≤ 0 or df < 1.

    Example:
        >>> from rrstudy.stats import sd_interval
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
