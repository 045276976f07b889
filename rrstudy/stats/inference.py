"""One comparison of two arms: Welch, paired t, signs, t and bootstrap intervals.

Every function raises RRError for values that are not finite: a diverged run is never averaged in;
the caller reports it. A standard deviation of zero is no evidence, it is a sign that the values are
copies of one another: it gives no interval and no p-value, both are NaN (`constant()`).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.stats as st

from rr.errors import RRError


@dataclass(frozen=True)
class Interval:
    """A mean with its t interval, in the unit of the values. `interval()` makes one.

    Example:
        >>> from rrstudy.stats import interval
        >>> round(interval([1.0, 2.0, 3.0]).lo, 2)
        -0.48
    """

    n: int
    mean: float
    lo: float
    hi: float
    sd: float  # with n − 1
    level: float


@dataclass(frozen=True)
class Paired:
    """Mean of a − b over n pairs, its t interval, and the two-sided test of no difference.

    `mean, lo, hi, sd` are in the unit of the values. `paired()` makes one.

    Example:
        >>> from rrstudy.stats import paired
        >>> a, b = [4.00, 4.02, 3.99], [4.05, 4.06, 4.05]
        >>> round(paired(a, b).p, 3)
        0.013
    """

    n: int
    mean: float
    lo: float
    hi: float
    t: float
    df: int  # n − 1
    p: float
    sd: float  # of the differences
    level: float


@dataclass(frozen=True)
class Welch:
    """mean(a) − mean(b), its t interval, and the two-sided test that assumes no pairing.

    `mean, lo, hi` are in the unit of the values. `welch()` makes one.

    Example:
        >>> from rrstudy.stats import welch
        >>> a, b = [4.00, 4.02, 3.99], [4.05, 4.06, 4.05]
        >>> round(welch(a, b).df, 1)
        2.6
    """

    n_a: int
    n_b: int
    mean: float
    lo: float
    hi: float
    t: float
    df: float
    p: float
    level: float


@dataclass(frozen=True)
class Signs:
    """A test on the signs of n differences that are not zero. `sign_test()` makes one.

    Example:
        >>> from rrstudy.stats import sign_test
        >>> a, b = [4.00, 4.02, 3.99], [4.05, 4.06, 4.05]
        >>> sign_test(a, b).p_min
        0.25
    """

    n: int  # differences that are not zero
    zeros: int  # pairs that were equal and have no sign
    statistic: float  # k, how many are positive
    p: float  # two-sided
    p_min: float  # 2^(1−n), the smallest two-sided p of n pairs: all differences have one sign


@dataclass(frozen=True)
class Bootstrap:
    """A mean with a bootstrap interval, in the unit of the values.

    No resample leaves the range of the n values, and for symmetric noise that range covers the true
    mean with probability 1 − 2^(1−n). The interval lies within it, so that this `ceiling` bounds
    its coverage whatever `level` is (n = 3: 0.75).

    Example:
        >>> from rrstudy.stats import bootstrap
        >>> bootstrap([0.1, 0.2, 0.3]).ceiling
        0.75
    """

    n: int
    mean: float
    lo: float
    hi: float
    level: float
    resamples: int
    ceiling: float  # the most an interval of n values covers


def numbers(values: Iterable[float | None], what: str) -> np.ndarray:
    """`values` as float64; RRError names `what` where some are missing or not finite."""
    values = list(values)
    try:
        array = np.array([float("nan") if v is None else float(v) for v in values])
    except (TypeError, ValueError):
        raise RRError(f"{what} must be numbers, got {values!r}") from None
    bad = int((~np.isfinite(array)).sum())
    if bad:
        raise RRError(
            f"{bad} of {len(array)} values in {what} are not finite: "
            "take diverged runs out first and report their number"
        )
    return array


DUST = 1e-9  # a standard deviation that is smaller than this share of the values is rounding


def constant(values: Iterable[float], size: float | None = None) -> bool:
    """Whether values are equal but for rounding: sd ≤ 1e-9 · size.

    size: of the numbers that the values were computed from; without it, the largest |value|.

    Example:
        >>> from rrstudy.stats import constant
        >>> constant([0.1 + 0.2, 0.3]), constant([0.3, 0.31])
        (True, False)
    """
    array = numbers(values, "values")
    if len(array) < 2:
        return True
    size = float(np.abs(array).max()) if size is None else size
    return float(np.std(array, ddof=1)) <= DUST * size


def fraction(value: float, what: str) -> float:
    """`value`, strictly between 0 and 1, or RRError."""
    if not (isinstance(value, int | float) and 0 < value < 1):
        raise RRError(f"{what} must be between 0 and 1, as in 0.95, got {value!r}")
    return float(value)


def _arms(a: Iterable[float], b: Iterable[float]) -> tuple[np.ndarray, np.ndarray]:
    a, b = numbers(a, "a"), numbers(b, "b")
    if len(a) != len(b):
        raise RRError(f"{len(a)} values against {len(b)}: a paired test needs one of each per seed")
    if len(a) < 2:
        raise RRError(f"a paired test needs at least two pairs, got {len(a)}: train more seeds")
    return a, b


def differences(a: Iterable[float], b: Iterable[float]) -> np.ndarray:
    """a_i − b_i, value i of both from the same seed, in the unit of the values.

    Rounded to the resolution of float64 at the size of a and b, so that 1.5 − 1.4 and 0.3 − 0.2 are
    equal: ties stay ties, and constant differences have a standard deviation of zero. Raises
    RRError for unequal lengths, fewer than two pairs or values that are not finite.

    Example:
        >>> from rrstudy.stats import differences
        >>> differences([1.5, 0.3], [1.4, 0.2])
        array([0.1, 0.1])
    """
    a, b = _arms(a, b)
    resolution = 8 * np.finfo(float).eps * max(np.abs(a).max(), np.abs(b).max())
    if resolution < 1e-300:  # nothing that a power of ten could scale
        return a - b
    return np.round(a - b, -math.ceil(math.log10(resolution)))


def interval(x: Iterable[float], level: float = 0.95, size: float | None = None) -> Interval:
    """Mean of x with its t interval: x̄ ± t*·s/√n, s with n − 1.

    t* is the (1 + level)/2 quantile of Student's t with n − 1 degrees of freedom. Exact for normal
    values, which two or three seeds cannot check. size: as in `constant()`; values that are equal
    but for rounding have sd = 0, lo and hi NaN. Raises RRError for fewer than two values or values
    that are not finite. Source: Student 1908.

    Example:
        >>> from rrstudy.stats import interval
        >>> mean = interval([1.0, 2.0, 3.0])
        >>> round(mean.lo, 2), round(mean.hi, 2)
        (-0.48, 4.48)
    """
    x, level = numbers(x, "x"), fraction(level, "level")
    n = len(x)
    if n < 2:
        raise RRError(f"an interval needs at least two values, got {n}: train more seeds")
    mean = math.fsum(x) / n
    if constant(x, size):
        return Interval(n, mean, math.nan, math.nan, 0.0, level)
    test: Any = st.ttest_1samp(x, 0.0)  # scipy has no types
    lo, hi = test.confidence_interval(level)
    return Interval(n, mean, float(lo), float(hi), float(np.std(x, ddof=1)), level)


def paired(a: Iterable[float], b: Iterable[float], level: float = 0.95) -> Paired:
    """Paired comparison of a and b, value i of both from the same seed.

    d_i = a_i − b_i, t = d̄ / (s_d/√n) with n − 1 degrees of freedom, interval d̄ ± t*·s_d/√n with
    t* the (1 + level)/2 quantile of that t. The test assumes normal differences, which two or three
    seeds cannot check. Where all differences are equal but for rounding, s_d = 0, and t, p, lo and
    hi are NaN. Raises RRError for unequal lengths, fewer than two pairs or values that are not
    finite. Source: Student 1908.

    Example:
        >>> from rrstudy.stats import paired
        >>> a, b = [4.00, 4.02, 3.99], [4.05, 4.06, 4.05]
        >>> result = paired(a, b)
        >>> round(result.mean, 3), result.df
        (-0.05, 2)
    """
    a, b = _arms(a, b)
    d = differences(a, b)
    over = interval(d, level, size=float(max(np.abs(a).max(), np.abs(b).max())))
    t = p = math.nan
    if over.sd:
        test: Any = st.ttest_1samp(d, 0.0)  # scipy has no types
        t, p = float(test.statistic), float(test.pvalue)
    return Paired(over.n, over.mean, over.lo, over.hi, t, over.n - 1, p, over.sd, level)


def welch(a: Iterable[float], b: Iterable[float], level: float = 0.95) -> Welch:
    """Unpaired comparison of a and b without assuming equal variances.

    t = (ā − b̄)/√(v_a + v_b), v = s²/n; df = (v_a + v_b)² / (v_a²/(n_a−1) + v_b²/(n_b−1)).
    Assumes normal, *independent* arms: where seeds are shared it ignores the pairing.
    Where the values of each arm are equal but for rounding, t, df, p, lo and hi are NaN. Raises
    RRError for fewer than two values in an arm or values that are not finite. Source: Welch 1947.

    Example:
        >>> from rrstudy.stats import welch
        >>> a, b = [4.00, 4.02, 3.99], [4.05, 4.06, 4.05]
        >>> round(welch(a, b).p, 3)
        0.019
    """
    a, b, level = numbers(a, "a"), numbers(b, "b"), fraction(level, "level")
    if min(len(a), len(b)) < 2:
        raise RRError(
            f"Welch's test needs at least two values per arm, got {len(a)} and {len(b)}: "
            "train more seeds"
        )
    mean = float(a.mean() - b.mean())
    lo = hi = t = df = p = math.nan
    if not (constant(a) and constant(b)):
        test: Any = st.ttest_ind(a, b, equal_var=False)  # scipy has no types
        lo, hi = test.confidence_interval(level)
        t, df, p = test.statistic, test.df, test.pvalue
    return Welch(len(a), len(b), mean, float(lo), float(hi), float(t), float(df), float(p), level)


def sign_test(a: Iterable[float], b: Iterable[float]) -> Signs:
    """Sign test of a − b: k positive of n ~ Binomial(n, ½), two-sided, exact; statistic: k.

    Assumes only that seeds are independent. Equal pairs are left out of n and counted in `zeros`.
    Raises RRError as `differences()` does.

    Example:
        >>> from rrstudy.stats import sign_test
        >>> a, b = [4.00, 4.02, 3.99], [4.05, 4.06, 4.05]
        >>> sign_test(a, b).p
        0.25
    """
    d = differences(a, b)
    n, k = int((d != 0).sum()), int((d > 0).sum())
    p = float(st.binomtest(k, n, 0.5).pvalue) if n else 1.0
    return Signs(n, len(d) - n, float(k), p, 2.0 ** (1 - max(n, 1)))


def bootstrap(
    x: Iterable[float],
    level: float = 0.95,
    resamples: int = 9999,
    seed: int = 0,
) -> Bootstrap:
    """Mean of x with a percentile bootstrap interval; for pairs, of the `differences()` of a and b.

    resamples: how many means are drawn. seed: of the draws; the same seed gives the same interval.

    Where the values are equal but for rounding, lo and hi are NaN. Raises RRError for fewer than
    two values, values that are not finite and fewer than 100 resamples. Source: Efron 1979.

    Example:
        >>> from rrstudy.stats import bootstrap, differences
        >>> a, b = [4.00, 4.02, 3.99], [4.05, 4.06, 4.05]
        >>> round(bootstrap(differences(a, b)).mean, 2)
        -0.05
    """
    x, level = numbers(x, "x"), fraction(level, "level")
    if len(x) < 2:
        raise RRError(f"a bootstrap needs at least two values, got {len(x)}: train more seeds")
    if not isinstance(resamples, int) or resamples < 100:
        raise RRError(f"resamples must be an integer ≥ 100, got {resamples!r}")
    mean = math.fsum(x) / len(x)
    lo = hi = math.nan
    if not constant(x):
        ends = st.bootstrap(
            (x,),
            np.mean,
            n_resamples=resamples,
            confidence_level=level,
            method="percentile",
            random_state=np.random.default_rng(seed),  # pyright: ignore[reportCallIssue] scipy's stubs lack it
        ).confidence_interval
        lo, hi = float(ends.low), float(ends.high)
    return Bootstrap(len(x), mean, lo, hi, level, resamples, 1 - 2.0 ** (1 - len(x)))


def pooled_sd(groups: Iterable[Iterable[float]]) -> tuple[float, int]:
    """The standard deviation within groups, taken as equal in all: s² = Σ(n_i − 1)s_i²/Σ(n_i − 1).

    Returns (s, df), df = Σ(n_i − 1). Raises RRError where no group has two values.

    Example:
        >>> from rrstudy.stats import pooled_sd
        >>> pooled_sd([[1.0, 3.0], [2.0, 4.0]])
        (1.4142135623730951, 2)
    """
    groups = [numbers(group, f"group {i + 1}") for i, group in enumerate(groups)]
    df = sum(len(group) - 1 for group in groups if len(group))
    if df < 1:
        raise RRError(
            "no group has two values: a spread within groups needs at least one such group"
        )
    squares = sum(float(((g - g.mean()) ** 2).sum()) for g in groups if len(g) > 1)
    return math.sqrt(squares / df), df


# ---- Several tests together ---------------------------------------------------------------------


def _probabilities(p: Iterable[float]) -> list[float]:
    p = list(p)
    for i, value in enumerate(p):
        if not (isinstance(value, int | float) and 0 <= value <= 1):
            raise RRError(
                f"p-values must be from 0 to 1, got {value!r} at place {i + 1} of {len(p)}: "
                "a test that could not be made counts as 1"
            )
    return [float(value) for value in p]


def bonferroni(p: Iterable[float]) -> list[float]:
    """Adjusted p-values min(1, m·p) of m tests.

    If only adjusted p ≤ α are claimed, the chance of any false claim is at most α. Holds under any
    dependence among the tests. Raises RRError for values outside [0, 1]. Source: Dunn 1961.

    Example:
        >>> from rrstudy.stats import bonferroni
        >>> bonferroni([0.01, 0.04])
        [0.02, 0.08]
    """
    p = _probabilities(p)
    return [min(1.0, len(p) * value) for value in p]


def holm(p: Iterable[float]) -> list[float]:
    """Holm's step-down adjusted p-values, in the order given.

    With p sorted ascending, q_(i) = max over j ≤ i of min(1, (m − j + 1)·p_(j)). The same
    guarantee as Bonferroni's under any dependence, and never less power. Raises RRError for values
    outside [0, 1]. Source: Holm 1979.

    Example:
        >>> from rrstudy.stats import holm
        >>> holm([0.01, 0.04])
        [0.02, 0.04]
    """
    p = _probabilities(p)
    adjusted, floor = [0.0] * len(p), 0.0
    for place, i in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        floor = max(floor, min(1.0, (len(p) - place) * p[i]))
        adjusted[i] = floor
    return adjusted
