"""From finished runs to verdicts (no torch): tests, intervals, effects, power, fits and tables.

`compare`: one comparison of two arms. `many`: many comparisons, and the corrections they need.
`effects`: standardised effects, and how many seeds would settle a question. `fits`: a gap against
size; `emergence`: size against training; `by_step`: the gap along the run; `contrasts`: one family
of an experiment; `rates`, `best_rate`: what another rate costs, and how surely seeds choose one.
`records`, `results`: reading runs. `tables`: tidy tables. `show`: their text.

Arms of one (rung, seed) see the same batches in the same order, so the noise of a seed is shared
and the unit of evidence is the *difference* at one seed. Losses are nats per token throughout; a
difference is arm − baseline, so that a negative one favours the arm.
"""

from ..config import RRError

try:
    import scipy.stats  # noqa: F401
except ImportError:
    raise RRError("tables and tests need SciPy, which is not here: pip install scipy") from None

from .best_rate import best_rate_shares
from .by_step import gap_by_step, read_curves
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
from .contrasts import contrasts
from .effects import Effect, cohen_dz, detectable_gap, hedges_g, power, sd_interval, seeds_needed
from .fits import Fit, fit, pooled_sd
from .many import bonferroni, family, holm
from .rates import rate_costs
from .records import Record, read_record, read_records
from .results import Found, read_results, scan
from .show import csv_text, markdown, render
from .tables import table

__all__ = [
    "Bootstrap", "Effect", "Fit", "Found", "Interval", "Paired", "Ranks", "Welch",
    "best_rate_shares", "bonferroni", "bootstrap", "cohen_dz", "contrasts", "csv_text",
    "detectable_gap", "differences", "family", "fit", "gap_by_step", "hedges_g", "holm", "interval",
    "markdown", "paired", "pooled_sd", "power", "rate_costs", "read_curves", "read_results",
    "render", "scan",
    "sd_interval", "seeds_needed", "sign_test", "signed_rank", "table", "welch",
    "Record", "read_record", "read_records",
]  # fmt: skip
