"""Statistics of finished runs (no torch): tests, intervals, effects, power, fits and tables.

Which function compares arms depends on where the runs are from and on what is compared:

| you have | read it with | compare with | keys of a row |
|---|---|---|---|
| folder of `rr` runs, all arms against one | `read_results()` | `table()` | those of result.json |
| the same, chosen pairs of arms | `read_results()` | `contrasts()` | rule, values, seed, val_loss |
| one arm, several baselines, every test | your own rows | `family()` | arm, rung, seed, val_loss |
| logs of another trainer | `read_logs()` | `against()` | arm, seed, val_loss, status |
| two lists of losses, by seed | | `paired()`, `welch()`, `signed_rank()` | |
| runs of one arm at several rates | `read_results()` | `best_rate_shares()` | lr, seed, val_loss |
| the same, two arms, a setting varied | `read_results()` | `rate_spreads()` | and the setting |
| a loss for each rate | | `basin()` | |
| curves of two arms | `read_curves()` | `gap_by_step()` | those of `read_curves()` |
| a question, before training | | `power()`, `seeds_needed()`, `detectable_gap()` | |

`contrasts()` takes rows of `read_logs()` as well. The text of a table is `render()`, `markdown()`
or `csv_text()`; of the rows of `against()` it is `render_against()`, and their figure `forest()`.

Arms of one (rung, seed) see the same batches in the same order, so the noise of a seed is shared
and the unit of evidence is the *difference* at one seed. Losses are nats per token throughout; a
difference is arm − baseline, so that a negative one favours the arm. t* is the (1 + level)/2
quantile of Student's t with the degrees of freedom of the test.
"""

from ..config import RRError

try:
    import scipy.stats  # noqa: F401
except ImportError:
    raise RRError("tables and tests need SciPy, which is missing: pip install scipy") from None

from .against import against
from .best_rate import Spreads, best_rate_shares, rate_spreads, resampled_rates
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
    "Spreads", "Welch", "against", "basin", "best_rate_shares", "bonferroni", "bootstrap",
    "cohen_dz", "contrasts", "csv_text", "detectable_gap", "differences", "family", "fit",
    "forest", "gap_by_step", "hedges_g", "holm", "interval", "markdown", "paired", "pooled_sd",
    "power", "rate_spreads", "read_curves", "read_logs", "read_record", "read_records",
    "read_results", "render", "render_against", "resampled_rates", "scan", "sd_interval",
    "seeds_needed", "sign_test", "signed_rank", "table", "welch",
]  # fmt: skip
