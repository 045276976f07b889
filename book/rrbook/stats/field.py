"""The field at one size, F2 of the third plan: its arms, its whole seeds, its family of tests."""

from pathlib import Path

import pandas as pd

import rr
from rr import stats
from rr.config import parse_spec

FOLDER = rr.DATA / "measured" / "f2_field"
BASELINES = ("standard", "constant")
WIDER = "one wider stream"
LEAST = 3  # seeds below which no interval is shown
SEARCHING = 100  # seeds from here on chose learning rates and are no result


def read_runs(folder: Path = FOLDER) -> pd.DataFrame:
    """F2's runs with the plan's names of arms: `arm, seed, val_loss, status`.

    A value rule's arm is "standard + RULE"; the standard residual with a wider stream is an arm of
    its own, although its rule is the baseline's.
    """
    runs = stats.read_results(folder)
    arms = [
        WIDER if "d_model" in rung else rule if values == "own" else f"{rule} + {values}"
        for rung, rule, values in zip(runs.rung, runs["rule"], runs["values"], strict=True)
    ]
    return runs[["seed", "val_loss", "status"]].assign(arm=arms)


def whole_seeds(runs: pd.DataFrame) -> list[int]:
    """Reported seeds that every arm has run; arms are those of any run, also of a search."""
    reported = runs[runs.seed < SEARCHING]
    arms = {*runs.arm, *BASELINES}
    seeds = sorted({*reported.seed.tolist()})
    return [seed for seed in seeds if {*reported.arm[reported.seed == seed]} == arms]


def comparisons(folder: Path = FOLDER) -> pd.DataFrame:
    """Each arm − standard and − constant ½ over the whole seeds, one Holm family.

    Rows of `rr.stats.compare`; none while fewer than three seeds are whole.
    """
    runs = read_runs(folder)
    seeds = whole_seeds(runs)
    if len(seeds) < LEAST:
        return pd.DataFrame()
    runs = runs[runs.seed.isin(seeds)]
    arms = [arm for arm in dict.fromkeys(runs.arm) if arm not in BASELINES]
    pairs = [("constant", "standard"), *((arm, base) for arm in arms for base in BASELINES)]
    return stats.compare(runs, pairs=pairs)


def rule_of(arm: str, arms: set[str]) -> tuple[str, str] | None:
    """(kind, name) of the rule whose row an arm fills; None where it is another form of it.

    The form without options is the rule's; where the plan has no such arm, the form that it has.
    """
    if arm == WIDER:
        return None
    kind, spec = ("values", arm.partition(" + ")[2]) if " + " in arm else ("residual", arm)
    name, options = parse_spec(spec)
    plain = arm.replace(spec, name)
    return None if options and plain in arms else (kind, name)
