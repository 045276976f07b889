"""What public threads report of a method, for the page *Take it home*.

A trial is one experiment of one thread: a baseline and the method, with everything else as the
thread had it. Its differences, method − baseline, are in the thread's own metrics and units.
"""

import re

import numpy as np
import pandas as pd

import rr
from rr.errors import RRError, nearest
from rrstudy import stats

METHODS = ("attn_residuals", "mhc")
SEVERAL = "parameter-golf #1696"  # the thread with several seeds, of one arm
FORM = re.compile(r"threads: (?P<what>[\w-]+)(?:, (?P<which>.+))?")


def _rows() -> pd.DataFrame:
    """Rows of threads; of the other papers' figures, those of threads with these methods."""
    folder = rr.DATA / "published"
    rows = pd.concat(pd.read_csv(folder / name) for name in ("threads.csv", "others.csv"))
    rows = rows.query("arm == 'baseline' or arm in @METHODS").astype({"value": float})
    settings = rows.setting.str.partition(",")[0]
    return rows.assign(trial=rows.paper + " " + rows["size"].fillna("") + " " + settings)


def trials(method: str) -> dict[str, pd.DataFrame]:
    """Each trial of a method by name: rows are metrics, columns `baseline` and the method.

    RRError where an arm of a trial has several runs: these are not what is compared here.
    """
    out = {}
    for name, rows in _rows().groupby("trial", sort=False):
        if {"baseline", method} <= set(rows.arm):
            rows = rows.query("arm == 'baseline' or arm == @method")
            if rows.duplicated(["metric", "arm"]).any():
                raise RRError(f"{name} has several runs per arm: compare its seeds, not its trials")
            out[name] = rows.pivot(index="metric", columns="arm", values="value")
    return out


def number(text: str) -> str:
    """The text of `threads: WHAT` or `threads: METHOD, WHICH`; see known.py."""
    match = FORM.fullmatch(text)
    what, which = match.group("what", "which") if match else (None, None)
    if what == "seeds":
        most = _rows().groupby(["trial", "metric", "arm"], sort=False).size()
        return str(max(most[name].max() for method in METHODS for name in trials(method)))
    if what in ("spread", "found"):
        seeds = _rows().query("paper == @SEVERAL").value.to_numpy()
        sd = float(np.std(seeds, ddof=1))
        return f"{sd if what == 'spread' else _found(sd, len(seeds)):.4f}"
    if what not in METHODS:
        raise RRError(f"{text!r} is no number of threads: {nearest(str(what), METHODS)}")
    of = trials(what)
    moved = {name: trial[what] - trial.baseline for name, trial in of.items()}
    lower = [name for name, change in moved.items() if (change < 0).all()]
    higher = [name for name, change in moved.items() if (change > 0).all()]
    if which is None:
        mixed = len(of) - len(lower) - len(higher)
        return (
            f"of {len(of)} trials, {len(lower)} end lower, {len(higher)} higher, and in {mixed} "
            "the metrics disagree"
        )
    if which == "p":
        ends = [of[name].iloc[0] for name in (*lower, *higher)]
        test = stats.sign_test([end[what] for end in ends], [end.baseline for end in ends])
        return f"{test.p:.2f}"
    if which not in moved:
        raise RRError(f"no trial {which!r} of {what}: {nearest(which, moved)}")
    units = _rows().query("trial == @which").groupby("metric").unit.first()
    parts = []
    for metric, change in moved[which].items():
        unit = "" if units[metric] in metric else f" {units[metric]}"
        parts.append(f"{change:+.3g}".replace("-", "−") + f"{unit} ({metric})")
    return "; ".join(parts)


def _found(sd: float, seeds: int) -> float:
    """The difference that so many seeds per arm, unpaired, find with 80 % power."""
    return stats.detectable_gap(seeds, sd, design="independent")
