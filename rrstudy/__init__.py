"""What stands beside `rr`: many runs, their statistics, their costs, their records.

* Many runs: `rrstudy.sweep`. What machine and budget allow: `rrstudy.perf`.
* Statistics of runs, of `rr` or of another trainer: `rrstudy.stats`.
* A model on a hub: `save_pretrained`, `from_pretrained`, `push_to_hub`.

It imports `rr`, which knows nothing of it: whoever reads how a run is trained needs none of this.

Example:
    >>> from rrstudy import stats
    >>> [round(p, 3) for p in stats.holm([0.01, 0.04])]  # corrected for two tests
    [0.02, 0.04]
"""

from rr import lazy_names

_MODULES = {
    "Verdict": "verify",
    "from_pretrained": "hub",
    "push_to_hub": "hub",
    "save_pretrained": "hub",
}
_PACKAGES = ("perf", "stats", "sweep")
__all__ = [*_MODULES]
__getattr__, __dir__ = lazy_names(__name__, _MODULES, __all__, _PACKAGES)
