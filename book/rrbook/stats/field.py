"""The field at one size, F2 of the third plan: its arms and its family of tests."""

from dataclasses import replace
from pathlib import Path

import pandas as pd

import rr
from rr.model.costs import count
from rr.options import parse_spec
from rrstudy import stats
from rrstudy.stats.results import arm_of

from .emergence import TUNING

FOLDER = rr.DATA / "measured" / "f2_field"
AGAIN = rr.DATA / "measured" / "g1_misfits"  # four of its arms at the best rate that it tried
BASELINES = ("standard", "constant")
WIDER = "one wider stream"
# The first runs of two baselines, which others took the place of: no results.
REPLACED = FOLDER / "replaced_runs.parquet"


def read_runs(folder: Path = FOLDER) -> pd.DataFrame:
    """Reported runs of F2, or of G1: `id, arm, seed, lr, val_loss, status, seconds`.

    The standard residual with a wider stream is an arm of its own, although its rule is the
    baseline's.
    """
    runs = stats.read_results(folder)
    arms = [WIDER if "d_model" in run["rung"] else arm_of(run) for run in stats.as_rows(runs)]
    wanted = ["id", "arm", "seed", "lr", "val_loss", "status", "seconds"]
    return runs.assign(arm=arms).loc[runs.seed < TUNING, wanted]


def mended() -> pd.DataFrame:
    """F2's reported runs, those of four arms exchanged for G1's, at the best rate tried."""
    runs, again = read_runs(), read_runs(AGAIN)
    kept = runs.loc[~runs.arm.isin(again.arm), :]
    return pd.concat([kept, again], ignore_index=True)


def as_first_run(runs: pd.DataFrame) -> pd.DataFrame:
    """`runs` with the two baselines of seed 35 as they ran first, in fp32."""
    first = pd.read_parquet(REPLACED).set_index("id").val_loss
    return runs.assign(val_loss=runs.id.map(first).fillna(runs.val_loss))


def times() -> pd.DataFrame:
    """What a run of F2 takes over one of the standard residual, both at equal size.

    By arm: `time`, the quickest of its runs over the quickest of the standard residual's, since
    other work on a machine only adds; `least` and `most` of the ratios within a seed.
    """
    seconds = read_runs().pivot(index="seed", columns="arm", values="seconds")
    ratios = seconds.div(seconds["standard"], axis=0)
    quickest = seconds.min() / seconds["standard"].min()
    return pd.DataFrame({"time": quickest, "least": ratios.min(), "most": ratios.max()})


def rates(runs: pd.DataFrame, arms: str = "arm") -> dict[str, float]:
    """The learning rate of each arm over the standard residual's. arms: the column of their names.

    runs: those that are reported, of which each arm has one rate, and none that chose it.
    """
    of = runs.groupby(arms).lr.first()
    return dict(of / of["standard"])


def against_both(runs: pd.DataFrame) -> list[dict]:
    """Rows of `rrstudy.stats.compare`: each arm − standard and − constant ½, one Holm family."""
    names = dict.fromkeys(map(arm_of, stats.as_rows(runs)))
    arms = [arm for arm in names if arm not in BASELINES]
    pairs = [("constant", "standard"), *((arm, base) for arm in arms for base in BASELINES)]
    return stats.as_rows(stats.compare(runs, pairs=pairs))


def again_against_both() -> list[dict]:
    """The same of G1's four arms, its family of eight; the baselines are F2's."""
    arms = dict.fromkeys(read_runs(AGAIN).arm)
    pairs = [(arm, base) for arm in arms for base in BASELINES]
    return stats.as_rows(stats.compare(mended(), pairs=pairs))


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
