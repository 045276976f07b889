"""The field at one size, F2 of the third plan: its arms and its family of tests."""

from dataclasses import replace

import pandas as pd

import rr
from rr import stats
from rr.config import parse_spec
from rr.model.ladder import count
from rr.stats.results import arm_of

from .emergence import TUNING

FOLDER = rr.DATA / "measured" / "f2_field"
BASELINES = ("standard", "constant")
WIDER = "one wider stream"


def read_runs() -> pd.DataFrame:
    """F2's reported runs with their arms: `arm, seed, val_loss, status`.

    The standard residual with a wider stream is an arm of its own, although its rule is the
    baseline's.
    """
    runs = stats.read_results(FOLDER)
    runs = runs[runs.seed < TUNING]
    arms = [WIDER if "d_model" in run["rung"] else arm_of(run) for run in stats.as_rows(runs)]
    return runs[["seed", "val_loss", "status"]].assign(arm=arms)


def against_both(runs: pd.DataFrame) -> list[dict]:
    """Rows of `rr.stats.compare`: each arm − standard and − constant ½, one Holm family."""
    names = dict.fromkeys(map(arm_of, stats.as_rows(runs)))
    arms = [arm for arm in names if arm not in BASELINES]
    pairs = [("constant", "standard"), *((arm, base) for arm in arms for base in BASELINES)]
    return stats.as_rows(stats.compare(runs, pairs=pairs))


def rule_of(arm: str, arms: set[str]) -> tuple[str, str] | None:
    """(kind, name) of the rule whose row an arm fills; None where it is another form of it.

    The form without options is the rule's; where `arms` has none, the form that it has, if that
    has as many parameters. A value rule's arm is "standard + RULE".
    """
    if arm == WIDER:
        return None
    kind, spec = ("values", arm.partition(" + ")[2]) if " + " in arm else ("residual", arm)
    name, options = parse_spec(spec)
    plain = arm.replace(spec, name)
    if options and (plain in arms or count(network(kind, spec)) != count(network(kind, name))):
        return None
    return kind, name


def network(kind: str, spec: str) -> rr.ModelConfig:
    """A `mini` network with this rule, not widened."""
    arm = {"rule": spec} if kind == "residual" else {"rule": "standard", "values": spec}
    return replace(rr.plan("mini", **arm).model, d_ff=768)
