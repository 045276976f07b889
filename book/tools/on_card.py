"""What was measured on a GPU, and what `rr plan` makes of it, for pages that are no notebooks.

`number(text)` understands

    H200: RUNG RULE PRECISION, ms              median time of a step, of 64 windows of 256 tokens
    H200: RUNG RULE PRECISION, tokens          tokens per second
    H200: RUNG RULE PRECISION, MFU             share of the card's bf16 peak, per cent
    H200: memory, least|most                   predicted over measured peak, of all rows
    H200: run, seconds|loss|bigram             of the recorded `rr train`
    void: WHICH                                of the runs that computed no gradient: `_void`
    day: CARD, hours|dollars|GB, least|most    of the runs of *One rented GPU* by `rr plan`

from data/measured/gpu_h200. Dollars are hours at two to three per hour.
"""

import json
from functools import cache

import rr
from rr.errors import RRError
from rrstudy.perf import budget, rates

FOLDER = rr.DATA / "measured" / "gpu_h200"
DAY = {"rungs": ("60M", "150M", "320M"), "rules": ("standard", "constant", "highway", "review")}
SEEDS = 3
PRICE = {"least": 2, "most": 3}  # dollars per hour


@cache
def _steps() -> dict[tuple[str, ...], dict]:
    """Rows by rung, rule and precision."""
    rows = json.loads((FOLDER / "steps.json").read_text())["rows"]
    return {(row["rung"], row["rule"], row["precision"]): row for row in rows}


def _run() -> dict[str, str]:
    """The recorded run, in words: its length and how it ended."""
    kept = json.loads((FOLDER / "run_60M_constant.json").read_text())
    result = kept["result"]
    return {
        "seconds": f"{result['seconds']:.0f}",
        "loss": f"{result['val_loss']:.2f}",
        "bigram": f"{kept['bigram_nats']:.2f}",
    }


def _void() -> dict[str, str]:
    """What compiled Review seemed to do where it computed no gradient."""
    kept = json.loads((FOLDER / "void.json").read_text())
    (row,) = (r for r in kept["void_rows"] if (r["rung"], r["precision"]) == ("1B", "bf16"))
    plain = _steps()["1B", "standard", "bf16"]
    *first, last = kept["right"]
    return {
        "steps": str(kept["review_run"]["steps"]),
        "loss": f"{kept['review_run']['val_loss']:.2f}",
        "wrong": f"torch {kept['wrong'][0]}",
        "right": f"{', '.join(first)} and {last}",
        "rows": str(len(kept["void_rows"])),
        "MFU": f"{100 * row['mfu']:.0f} %",
        "memory": f"{100 * row['peak_bytes'] / plain['peak_bytes']:.0f} %",
        "gradients": "{wrong} of {tensors}".format(**kept["gradients"]),
    }


@cache
def _day(card: str) -> list[dict]:
    """What `rr plan` says of each run of one seed; those of another seed are the same."""
    gpu = budget.gpu(card)
    known = rates.sources(gpu, None, rr.DATA / "measured")
    return [
        budget.estimate(rr.plan(rung, rule, corpus="tinystories"), gpu, known)
        for rung in DAY["rungs"]
        for rule in DAY["rules"]
    ]


def day(card: str, what: str, end: str) -> str:
    """Hours, dollars or gigabytes of disk of the day's runs, least or most."""
    rows = _day(card)
    hours = SEEDS * sum(row["hours"][end == "most"] for row in rows)
    if what == "hours":
        return f"{hours:.0f}"
    if what == "dollars":
        return f"{hours * PRICE[end]:.0f}"
    if what == "GB":  # what stays, and while the largest run trains
        plan = rows * SEEDS
        kept = sum(budget.WEIGHT_BYTES * row["params"] for row in plan)
        return f"{(budget.disk_of_rows(plan) if end == 'most' else kept) / 1e9:.0f}"
    raise RRError(f"{what!r} is no number of a day: hours, dollars or GB is expected")


def number(text: str) -> str:
    """The text of one number. RRError names what is not there."""
    subject, _, rest = text.partition(": ")
    try:
        if subject == "day" and rest.endswith(", tokens per parameter"):
            row = next(row for row in _day("H100") if row["rung"] == rest.partition(",")[0])
            return f"{row['tokens'] / row['params']:.2g}"
        if subject == "day":
            return day(*rest.split(", "))
        if subject == "void":
            return _void()[rest]
        name, which = rest.split(", ")
        if name == "memory":
            over = [row["predicted_bytes"] / row["peak_bytes"] for row in _steps().values()]
            return f"{ {'least': min(over), 'most': max(over)}[which]:.2f}"
        if name == "run":
            return _run()[which]
        row = _steps()[tuple(name.split())]
        return {
            "ms": f"{row['step_ms_median']:.0f}",
            "tokens": f"{1000 * round(row['tokens_per_second'] / 1000):,}",
            "MFU": f"{100 * row['mfu']:.0f} %",
        }[which]
    except (KeyError, ValueError, TypeError) as error:
        raise RRError(f"{text!r} is no number of {FOLDER.name}: {error}") from None
