"""Statistics that only the book's pages use, beside `rrstudy.stats`: rates, curves, fits, size.

| you have | use | keys of a row |
|---|---|---|
| runs of one arm at several rates | `best_rate_shares()` | lr, seed, val_loss |
| the same, two arms, a setting varied | `rate_spreads()` | and the setting |
| a loss for each rate | `basin()`, `before_cliff()` | |
| curves of two arms | `gap_by_step()` | those of `read_curves()` |
| a gap at several sizes | `fit()` | |
| a folder of campaigns, and the effect of size | `emergence.measured()` | |
"""

from rr import lazy_names

_MODULES = {
    "Basin": "rates",
    "Fit": "fits",
    "Spreads": "best_rate",
    "basin": "rates",
    "before_cliff": "rates",
    "best_rate_shares": "best_rate",
    "fit": "fits",
    "gap_by_step": "by_step",
    "rate_spreads": "best_rate",
    "read_curves": "by_step",
    "resampled_rates": "best_rate",
}
__all__ = list(_MODULES)
__getattr__, __dir__ = lazy_names(__name__, _MODULES, __all__)
