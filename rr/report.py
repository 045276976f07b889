"""What the two report notebooks compute: a run's report, and a folder's (chapters 9 and 10)."""

import tempfile
from pathlib import Path

from . import trainer
from .config import RRError, Run, nearest
from .runs import plan

# What is trained where no rung is named; the smoke tier's is short enough for a page of the book.
TIERS = {
    "smoke": ("nano:d_model=64,n_layer=4,n_head=2", {"steps": 40, "eval_batches": 4}),
    "colab": ("mini", {}),
    "paper": ("60M", {}),
}


def chosen(tier: str, rung: str = "", rule: str = "", *, cache: str = "", **options) -> Run:
    """The run that a notebook's parameters describe; "" and 0 leave a choice to `rr`.

    A rung that is named is trained as `rr train` would, whatever the tier: the same options name
    the same run. budgets: "2000,4000". Raises RRError as `plan` does.
    """
    if tier not in TIERS:
        raise RRError(f"unknown tier {tier!r}: {nearest(str(tier), TIERS)}")
    given = {name: value for name, value in options.items() if value}
    if "budgets" in given:
        given["budgets"] = _numbers(given["budgets"])
    if not rung:
        rung, usual = TIERS[tier]
        given = {k: v for k, v in usual.items() if k != "steps" or "budgets" not in given} | given
    return plan(rung, rule or "review", cache=cache or None, **given)


def _numbers(words: str) -> list[int]:
    try:
        return [int(word) for word in words.split(",")]
    except (ValueError, AttributeError):
        raise RRError(
            f'budgets {words!r}: whole numbers, as in "2000,4000", are accepted'
        ) from None


def train(run: Run, out: str = "", tier: str = "paper", **how) -> Path:
    """`rr.trainer.train` with a notebook's parameters: "" and 0 leave a choice to it.

    Without `out` the run lies in `runs`, at the smoke tier in a temporary folder.
    """
    out = out or (tempfile.mkdtemp(prefix="rr-") if tier == "smoke" else "runs")
    return trainer.train(run, out, **{name: value for name, value in how.items() if value})
