"""Weighted least squares of a gap against (log) size, with intervals."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
import scipy.stats as st

from rr.errors import RRError
from rrstudy.stats.inference import numbers


@dataclass(frozen=True)
class Fit:
    """y = intercept + slope·x by weighted least squares. `fit()` makes one.

    Example:
        >>> from rrbook.stats import fit
        >>> line = fit([0, 1, 2], [1.0, 3.1, 4.9])
        >>> round(line.slope, 2), line.errors
        (1.95, 'scaled')
    """

    n: int  # points
    intercept: float  # unit of y
    slope: float  # unit of y per unit of x
    se_intercept: float
    se_slope: float
    covariance: float  # of intercept and slope
    lo: float  # 95 % interval of the slope
    hi: float
    t: float  # of the test that the slope is 0
    df: float  # n − 2, or infinite where errors are "known"
    p: float
    chi2: float | None  # Σ((y − ŷ)/se)²; None without se
    chi2_p: float | None  # chance of one as large if the line and the errors are right
    errors: str  # "known" or "scaled"

    def at(self, x: float) -> tuple[float, float, float]:
        """The line at x with its 95 % interval (the line's, not an observation's), unit of y."""
        value = self.intercept + self.slope * x
        variance = self.se_intercept**2 + 2 * x * self.covariance + (x * self.se_slope) ** 2
        half = float(st.t.ppf(0.975, self.df)) * math.sqrt(max(variance, 0.0))
        return value, value - half, value + half


def fit(
    x: Iterable[float],
    y: Iterable[float],
    se: Iterable[float] | None = None,
    errors: str | None = None,
) -> Fit:
    """Least squares of y on x, each point weighted 1/se².

    cov(β̂) = (XᵀWX)⁻¹, times χ²/(n − 2) where errors are "scaled".

    x: for a gap against size, the natural or the base-10 logarithm of the size; the slope is per
    unit of it. y: the gap. se: standard error of each y, in the unit of y; None: equal weights.
    errors: "known", the default with se: se as given, normal
    quantiles; "scaled", the default without: only ratios of se count, their size is estimated from
    the residuals, t with n − 2.

    A standard error from two or three seeds is itself noise, and a point with a small one by chance
    would dominate the fit: pool them with `rrstudy.stats.pooled_sd()` first. Assumes a straight
    line and independent normal errors. Raises RRError for fewer than three points, unequal lengths,
    x that does not vary, or se ≤ 0.

    Example:
        >>> from rrbook.stats import fit
        >>> line = fit([0, 1, 2], [1.0, 3.1, 4.9])
        >>> round(line.intercept, 2), round(line.slope, 2)
        (1.05, 1.95)
    """
    x, y = numbers(x, "x"), numbers(y, "y")
    errors = errors or ("scaled" if se is None else "known")
    if errors not in ("known", "scaled"):
        raise RRError(f'errors must be "known" or "scaled", got {errors!r}')
    if errors == "known" and se is None:
        raise RRError("known errors need se: a standard error for each y")
    given = se is not None
    se = numbers(se, "se") if given else np.ones_like(y)
    if not len(x) == len(y) == len(se):
        raise RRError(f"x, y and se must be of equal length, got {len(x)}, {len(y)} and {len(se)}")
    if len(x) < 3:
        raise RRError(f"a line with an interval needs at least three points, got {len(x)}")
    if not np.ptp(x):
        raise RRError(f"x is {x[0]:g} at every point: a slope needs at least two values of x")
    if (se <= 0).any():
        raise RRError(f"se must be > 0, got {int((se <= 0).sum())} of {len(se)} that are not")
    # about the weighted centre, where slope and height are uncorrelated: well conditioned
    centre = float(np.average(x, weights=se**-2))
    design = np.column_stack([np.ones_like(x), x - centre]) / se[:, None]
    solution: Any = scipy.linalg.lstsq(design, y / se)  # scipy has no types
    beta = solution[0]
    chi2 = float(np.sum((y / se - design @ beta) ** 2))
    covariance = scipy.linalg.inv(design.T @ design)
    df = float(len(x) - 2)
    scale = 1.0 if errors == "known" else chi2 / df
    (height, mixed), (_, tilt) = (scale * covariance).tolist()
    slope, se_slope = float(beta[1]), math.sqrt(tilt)
    quantiles = math.inf if errors == "known" else df
    half = float(st.t.ppf(0.975, quantiles)) * se_slope
    if se_slope:
        t = slope / se_slope
    else:
        t = math.copysign(math.inf, slope) if slope else math.nan
    return Fit(
        n=len(x),
        intercept=float(beta[0]) - slope * centre,
        slope=slope,
        se_intercept=math.sqrt(max(height - 2 * centre * mixed + centre**2 * tilt, 0.0)),
        se_slope=se_slope,
        covariance=mixed - centre * tilt,
        lo=slope - half,
        hi=slope + half,
        t=t,
        df=quantiles,
        p=float(2 * st.t.sf(abs(t), quantiles)),
        chi2=chi2 if given else None,
        chi2_p=float(st.chi2.sf(chi2, df)) if given else None,
        errors=errors,
    )
