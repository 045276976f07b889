"""Statistics of finished runs (no torch): tests, intervals, effects, power and tables.

Runs are rows of a pandas DataFrame, and one function compares their arms:

| you have | read it with | compare arms with |
|---|---|---|
| a folder of `rr` runs, or records | `read_results()` | `compare()` |
| a tidy table of any runs: arm, seed, loss | `read_table()` | `compare()` |
| rows of your own: arm, seed, val_loss | | `compare()` |
| two lists of losses, by seed | | `paired()`, `welch()`, `sign_test()` |
| a question, before training | | `power()`, `seeds_needed()`, `detectable_gap()` |

`as_rows()` makes dictionaries of a DataFrame, with None where a value is missing. The text of a
table is `render()`.

Arms of one (rung, seed) see the same batches in the same order, so the noise of a seed is shared
and the unit of evidence is the *difference* at one seed. Losses are nats per token throughout; a
difference is arm − baseline, so that a negative one favours the arm. t* is the (1 + level)/2
quantile of Student's t with the degrees of freedom of the test.

pandas and SciPy belong to the extra `stats`; records are read without them.

Example:
    >>> from rrstudy.stats import paired, seeds_needed
    >>> review, constant = [3.95, 3.97, 3.95], [4.00, 4.01, 4.02]  # held-out losses, by seed
    >>> difference = paired(review, constant)
    >>> round(difference.mean, 3), round(difference.p, 3)
    (-0.053, 0.026)
    >>> seeds_needed(gap=0.02, sd=0.01)  # to find a gap of 0.02 next time
    5
"""

from typing import Any

from rr import lazy_names
from rr.errors import EXTRAS, RRError, missing_package

_MODULES = {
    "Bootstrap": "inference",
    "Interval": "inference",
    "Paired": "inference",
    "Record": "records",
    "Signs": "inference",
    "Welch": "inference",
    "as_rows": "frames",
    "bonferroni": "inference",
    "bootstrap": "inference",
    "compare": "arms",
    "constant": "inference",
    "detectable_gap": "effects",
    "differences": "inference",
    "holm": "inference",
    "interval": "inference",
    "paired": "inference",
    "pooled_sd": "inference",
    "power": "effects",
    "read_record": "records",
    "read_records": "records",
    "read_results": "results",
    "read_table": "tidy",
    "render": "show",
    "scan": "results",
    "sd_interval": "effects",
    "seeds_needed": "effects",
    "sign_test": "inference",
    "spread": "arms",
    "welch": "inference",
}
__all__ = list(_MODULES)
_import, __dir__ = lazy_names(__name__, _MODULES, __all__)


def __getattr__(name: str) -> Any:
    try:
        return _import(name)
    except ModuleNotFoundError as error:
        if error.name in EXTRAS:
            raise RRError(f"rrstudy.stats {missing_package(error)}") from None
        raise
