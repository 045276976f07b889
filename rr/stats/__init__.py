"""Statistics of finished runs (no torch): tests, intervals, effects, power, fits and tables.

`compare`: one comparison of two arms. `many`: many comparisons, and the corrections they need.
`effects`: standardised effects, and how many seeds would settle a question. `fits`: a gap against
size; `emergence`: size against training; `by_step`: the gap along the run; `contrasts`: one family
of an experiment; `rates`, `best_rate`: an arm's best rate, and how surely seeds choose one.
`records`: runs in folders or in Parquet; `results`: their rows. `tables`: tidy tables. `show`:
their text. `logs`: the runs of other trainers; `against`: their arms against one baseline;
`forest`: that as a figure.

Arms of one (rung, seed) see the same batches in the same order, so the noise of a seed is shared
and the unit of evidence is the *difference* at one seed. Losses are nats per token throughout; a
difference is arm − baseline, so that a negative one favours the arm.
"""

from ..config import RRError

try:
    import scipy.stats  # noqa: F401
except ImportError:
    raise RRError("tables and tests need SciPy, which is missing: pip install scipy") from None

from .against import against
from .best_rate import best_rate_shares, resampled_rates
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
from .forest import forest
from .logs import read_logs
from .many import bonferroni, family, holm
from .rates import Basin, basin
from .records import Record, read_record, read_records
from .results import Found, read_results, scan
from .show import csv_text, markdown, render, render_against
from .tables import table

__all__ = [
    "Basin", "Bootstrap", "Effect", "Fit", "Found", "Interval", "Paired", "Ranks", "Record",
    "Welch", "against", "basin", "best_rate_shares", "bonferroni", "bootstrap", "cohen_dz",
    "contrasts", "csv_text", "detectable_gap", "differences", "family", "fit", "forest",
    "gap_by_step", "hedges_g", "holm", "interval", "markdown", "paired", "pooled_sd", "power",
    "read_curves", "read_logs", "read_record", "read_records", "read_results", "render",
    "render_against", "resampled_rates", "scan", "sd_interval", "seeds_needed", "sign_test",
    "signed_rank", "table", "welch",
]  # fmt: skip
