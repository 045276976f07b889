"""From finished runs to verdicts (no torch): tests, intervals, effects, power, fits and tables.

`compare`: one comparison of two arms. `many`: many comparisons, and the corrections they need.
`effects`: standardised effects, and how many seeds would settle a question. `fits`: a gap against
size. `tables`: reading result files, tidy tables, their text.

Arms of one (rung, seed) see the same batches in the same order, so the noise of a seed is shared
and the unit of evidence is the *difference* at one seed. Losses are nats a token throughout; a
difference is arm − baseline, so that a negative one favours the arm.
"""

from ..config import RRError

try:
    import scipy.stats  # noqa: F401
except ImportError:
    raise RRError("tables and tests need SciPy, which is not here: pip install scipy") from None

from .compare import (
    Bootstrap,
    Interval,
    Paired,
    Ranks,
    Welch,
    bootstrap,
    differences,
    interval,
    paired,
    sign_test,
    signed_rank,
    welch,
)
from .effects import (
    Effect,
    cohen_dz,
    detectable_gap,
    hedges_g,
    power,
    sd_interval,
    seeds_needed,
)
from .fits import Fit, fit, pooled_sd
from .many import bonferroni, family, holm
from .tables import read_results, render, table

__all__ = [
    "Bootstrap", "Effect", "Fit", "Interval", "Paired", "Ranks", "Welch",
    "bonferroni", "bootstrap", "cohen_dz", "detectable_gap", "differences", "family", "fit",
    "hedges_g", "holm", "interval", "paired", "pooled_sd", "power", "read_results", "render",
    "sd_interval", "seeds_needed", "sign_test", "signed_rank", "table", "welch",
]  # fmt: skip
