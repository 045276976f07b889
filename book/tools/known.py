"""Numbers of pages that are no notebooks, computed from records when the page is built.

`number(text)` understands

    FOLDER: ARM - BASELINE                paired difference of held-out loss, 95 % t interval
    FOLDER: ARM - BASELINE, mean          the same without its interval
    FOLDER: ARM - BASELINE, steps 1-30    the same of training loss over these steps
    FOLDER: ARM - BASELINE, steps 1-30, mean     without its interval
    FOLDER: seeds                         how many seeds its arms share
    FOLDER/LOG.csv: ARM - BASELINE        the same of runs that another trainer logged there
    NAME                                  one of NAMED, here and in advice.py
    …, percent                            any of these differences in words: of perplexity
    threads: METHOD[, WHICH]              what public threads report: threads.py
    H200: …, void: …, day: …              what a GPU takes: on_card.py

FOLDER is one of data/measured/; "FOLDER[lr=0.0015,steps=300]" takes the rows with these values
alone. Seeds from 100 on chose learning rates and count nowhere. Losses are in nats per token.
Every difference is arm − baseline: below zero the first-named arm finishes lower, which is better.
"""

import math
import re
from functools import partial
from pathlib import Path

import advice
import numpy as np
import on_card
import pandas as pd
import scipy.stats
import threads
import torch
from wording import signed, spread

import rr
from rr.errors import RRError, nearest
from rrbook.stats import emergence, field, gap_by_step, rate_spreads, read_curves
from rrstudy import stats
from rrstudy.stats.results import arm_of

FORM = re.compile(r"(?P<folder>[\w./-]+)(?:\[(?P<where>[^\]]+)\])?: (?P<what>.+)")
GAP = re.compile(
    r"(?P<arm>\S.*?) - (?P<base>.*?\S)(?:, steps (?P<first>\d+)-(?P<last>\d+))?(?P<alone>, mean)?"
)


def number(text: str) -> str:
    """The text of one number. RRError names what is not understood or not there."""
    if text.endswith(", percent"):
        return percent(number(text.removesuffix(", percent").removesuffix(", mean")), text)
    if text in NAMED:
        return NAMED[text]()
    if text.startswith("threads: "):
        return threads.number(text)
    if text.startswith(("H200: ", "void: ", "day: ")):
        return on_card.number(text)
    match = FORM.fullmatch(text)
    if match is None:
        raise RRError(f"{text!r} is no number of this page: {nearest(text, NAMED)}")
    folder, what = rr.DATA / "measured" / match["folder"], match["what"]
    gap = GAP.fullmatch(what)
    rows = _runs(folder, curves=bool(gap and gap["first"]))
    for name, value in (pair.split("=") for pair in (match["where"] or "").split(",") if pair):
        rows = [row for row in rows if str(row.get(name)) == value]
    if not rows:
        raise RRError(f"no run in {text!r}: nothing in {folder.name} has these values")
    if what == "seeds":
        return str(len({row["seed"] for row in rows}))
    if gap:
        if gap["first"]:
            band = (int(gap["first"]), int(gap["last"]))
            (over,) = gap_by_step(rows, gap["arm"], gap["base"], [band])
            if gap["alone"]:
                return signed(over["mean"])
            return spread(over["mean"], over["lo"], over["hi"])
        over = stats.paired(_by_seed(rows, gap["arm"]), _by_seed(rows, gap["base"]))
        return signed(over.mean) if gap["alone"] else spread(over.mean, over.lo, over.hi)
    raise RRError(f"{what!r} is not understood: `ARM - BASELINE` or `seeds` is expected")


def percent(difference: str, text: str) -> str:
    """A difference of losses with its interval as one of perplexity: "8 % lower".

    With `, mean` alone; else a wide interval says "between 4 % lower and 5 % higher".
    """
    mean, low, high = (
        float(one.replace("−", "-")) for one in re.findall(r"[−+]?\d+\.\d+", difference)[:3]
    )

    def words(value: float) -> str:
        share = 100 * abs(math.expm1(value))
        shown = f"{share:.0f}" if share >= 1.5 else f"{share:.1f}"
        return f"{shown} % {'lower' if value < 0 else 'higher'}"

    if ", mean" in text:
        return words(mean)
    if low < 0 < high:
        return f"between {words(low)} and {words(high)}"
    return f"{words(mean)} ({words(low)} to {words(high)})"


def _runs(path: Path, curves: bool) -> list[dict]:
    """Runs of a folder of records, or of a log that lies in one; none that chose a rate.

    A row per budget of a run, or with `curves` a row per run.
    """
    if path.suffix == ".csv":
        logged = pd.read_csv(path).dropna(subset="val_loss")[["rule", "seed", "step", "val_loss"]]
        logged.columns = ["arm", "seed", "step", "loss"]
        rows = stats.as_rows(stats.read_table(logged))
    elif path == field.FOLDER:  # which names an arm of its own
        rows = stats.as_rows(field.read_runs())
    elif path == field.AGAIN:  # whose baselines are F2's
        rows = stats.as_rows(field.mended())
    elif curves:
        rows = read_curves(path)
    else:
        rows = stats.as_rows(stats.read_results(path))
    return [row for row in rows if row["seed"] < emergence.TUNING]


def _by_seed(rows: list[dict], arm: str) -> list[float]:
    """Held-out losses of an arm in the order of its seeds."""
    mine = sorted((row["seed"], row["val_loss"]) for row in rows if arm_of(row) == arm)
    seeds = [seed for seed, _ in mine]
    if len(set(seeds)) < len(seeds):
        raise RRError(f"{arm} has several runs of one seed: choose among them with [lr=…]")
    if not mine:
        known = {arm_of(row) for row in rows}
        raise RRError(f"no arm {arm!r} in these runs: {nearest(arm, known)}")
    if set(seeds) != {row["seed"] for row in rows}:
        raise RRError(f"{arm} lacks seeds that other arms have: choose whole ones")
    return [loss for _, loss in mine]


def _published() -> pd.DataFrame:
    return pd.read_csv(rr.DATA / "published" / "review_residuals.csv")


def _published_family() -> pd.DataFrame:
    """The ten published comparisons of Review, one family."""
    pairs = [("review", base) for base in ("standard", "highway")]
    return stats.compare(_published(), pairs=pairs, by="rung")


def _survivors() -> str:
    """Published comparisons that survive Holm's correction, by the test for pairs."""
    table = _published_family()
    return f"{(table.holm <= 0.05).sum()} of {len(table)}"


def _fixed_ratio() -> str:
    """Tenfold size at equal tokens per parameter, in the published review − standard."""
    runs = _published()
    loss = runs.pivot_table("val_loss", ["rung", "seed"], "arm", sort=False)
    pairs = [stats.differences(t.review, t.standard) for _, t in loss.groupby("rung", sort=False)]
    noise, df = stats.pooled_sd(pairs)
    first = runs[runs.arm == "review"].groupby("rung", sort=False).first()
    size, tokens = 1e6 * first.params_M.to_numpy(), first.steps.to_numpy() * 64 * 256
    mean, _ = emergence.at_fixed_ratio(size, tokens, [pair.mean() for pair in pairs])
    errors = [noise / len(pair) ** 0.5 for pair in pairs]
    weights = [emergence.at_fixed_ratio(size, tokens, one)[0] for one in np.eye(len(pairs))]
    error = float(np.hypot.reduce(np.array(weights) * errors))
    half = scipy.stats.t.ppf(0.975, df) * error  # the noise is an estimate, too
    return spread(mean, float(mean - half), float(mean + half))


def _published_large(column: str) -> list[float]:
    """p of Review's comparisons at 590M and 1B, by one test."""
    rows = stats.as_rows(_published_family())
    return [row[column] for row in rows if row["rung"] in ("590M", "1B")]


def _large_survivors() -> str:
    """Of the published comparisons at 590M and 1B, how many survive Holm over all ten, paired."""
    p_values = _published_large("paired_holm")
    return f"{sum(p <= 0.05 for p in p_values)} of {len(p_values)}"


def _as_published() -> str:
    """p of both comparisons at 590M as the study tests them: unpaired, without a correction."""
    return " and ".join(f"{p:.3f}" for p in _published_large("welch_p")[:2])


def _published_gap(rung: str) -> str:
    """Review − standard as published at one size, paired by seed."""
    rows = stats.as_rows(_published_family())
    of_rung = {row["baseline"]: row for row in rows if row["rung"] == rung}
    row = of_rung["standard"]
    return spread(row["difference"], row["lo"], row["hi"], digits=4)


def _published_training(rung: str) -> str:
    """Tokens per parameter of the published runs of one size, in steps of 64 windows of 256."""
    run = _published().query("rung == @rung and arm == 'review'").iloc[0]
    return f"{run.steps * 64 * 256 / (run.params_M * 1e6):.2f}"


def _unpaired_survivors() -> str:
    """Of the ten published comparisons, how many survive Holm by the unpaired test."""
    table = _published_family()
    return f"{(table.welch_holm <= 0.05).sum()} of {len(table)}"


def _faded() -> str:
    """E2's review − constant ½ in training loss: its change at the constant rate, by seed."""
    rows = _runs(rr.DATA / "measured" / "e2_training", curves=True)
    gaps = []
    for first, last in ((2401, 3400), (601, 1200)):
        losses = {name: _windows(rows, name, first, last) for name in ("review", "constant")}
        gaps.append(stats.differences(losses["review"], losses["constant"]))
    over = stats.paired(*gaps)
    return f"{spread(over.mean, over.lo, over.hi)}, p = {over.p:.3f}"


def _windows(rows: list[dict], arm: str, first: int, last: int) -> list[float]:
    """Mean logged training loss of an arm's runs over some steps, in the order of its seeds."""
    mine = sorted((row["seed"], row["curve"]) for row in rows if arm_of(row) == arm)
    return [
        float(np.mean([x for s, x in curve.items() if first <= s <= last])) for _, curve in mine
    ]


def _eight_passes(stories: bool = False) -> str:
    """F3: 1/N − 1/√N at eight passes of two blocks, mean of the five planned rates, by seed."""
    rows = _runs(rr.DATA / "measured" / "f3_loops", curves=False)
    rows = [row for row in rows if (row["corpus"] != "fables") == stories and row["lr"] <= 8e-3]
    table = pd.DataFrame(rows).pivot_table("val_loss", "seed", ["rule", "lr"])
    root, linear = "scaled:init=flat,law=sqrt,reference=2", "scaled:init=flat,reference=2"
    over = stats.paired(table[linear].mean(axis=1), table[root].mean(axis=1))
    return spread(over.mean, over.lo, over.hi, digits=4)


def _houses() -> str:
    """review − constant in an attached GPT-2, less the same in `rr.Model`, paired by seed."""
    folder = rr.DATA / "measured" / "attached_nano"
    gaps = []
    for path in (folder / "attached.csv", folder):
        rows = _runs(path, curves=False)
        gaps.append(stats.differences(_by_seed(rows, "review"), _by_seed(rows, "constant")))
    over = stats.paired(*gaps)
    return spread(over.mean, over.lo, over.hi)


def _unwidened() -> str:
    """review − constant ½ without its wider MLP at E2's longest budget, paired by seed."""
    ends = [
        [row for row in _runs(rr.DATA / "measured" / name, curves=False) if row["steps"] == 4800]
        for name in ("e2_training", "e2_after")
    ]
    over = stats.paired(_by_seed(ends[0], "review"), _by_seed(ends[1], "constant"))
    return spread(over.mean, over.lo, over.hi)


def _large_and_small() -> dict[str, list[dict]]:
    """E3's reported runs, and those of E2 they are compared with, by arm."""
    result = {}
    for name, steps in (("e3_size", 3973), ("e2_training", 1200)):
        rows = _runs(rr.DATA / "measured" / name, curves=False)
        result[name] = [r for r in rows if r["steps"] == steps]
    return result


def _size() -> str:
    """review − constant in E3's net less that in E2's, at equal tokens per parameter."""
    gaps = [stats.differences(_by_seed(rows, "review"), _by_seed(rows, "constant"))
            for rows in _large_and_small().values()]  # fmt: skip
    over = stats.welch(*gaps)
    return spread(over.mean, over.lo, over.hi)


def _times() -> str:
    """Parameters of E3's net over those of E2's, in the Review arm of both."""
    sizes = [next(r["params"] for r in rows if r["rule"] == "review")
             for rows in _large_and_small().values()]  # fmt: skip
    return f"{sizes[0] / sizes[1]:.1f}"


def _faster() -> str:
    """Review's learning rate over that of constant ½ in E3."""
    rates = {row["rule"]: row["lr"] for row in _large_and_small()["e3_size"]}
    return f"{rates['review'] / rates['constant']:.1f}"


def _loops() -> str:
    """Doublings over which the best rate ranges over N: under 1/N less under 1/√N; its p."""
    rows = stats.as_rows(stats.read_results(rr.DATA / "measured" / "e5_loops"))
    rows = [row for row in rows if "n_layer=2," in row["rung"]]
    one, other = ([row for row in rows if row["loops"] == 1 or ("law=sqrt" in row["rule"]) == root]
                  for root in (False, True))  # fmt: skip
    result = rate_spreads(one, other)
    interval = f"{result.difference:+.1f} ({result.lo:+.1f} to {result.hi:+.1f})".replace("-", "−")
    return f"{interval} by resampled seeds, p = {result.p:.2g}"


def _cache() -> str:
    """Bytes in SVFormer's caches over the plain model's, 8 blocks, counted in running models."""
    held = {}
    for values in ("own", "svformer"):
        shape = "nano:d_model=32,n_layer=8,n_head=2,d_ff=32,seq_len=16"
        model = rr.Model(rr.plan(shape, "standard", values=values, flavour="llama").model)
        caches = model.caches()
        with torch.no_grad():
            model.hidden(torch.zeros(1, 16, dtype=torch.long), caches)
        held[values] = sum(cache.nbytes for cache in caches)
    return f"{held['svformer'] / held['own']:.4f}"


NAMED = {
    "published comparisons that survive": _survivors,
    "published comparisons that survive at 590M and 1B": _large_survivors,
    "published comparisons that survive unpaired": _unpaired_survivors,
    "p at 590M as published": _as_published,
    **{f"published at {r}: review - standard": partial(_published_gap, r) for r in ("590M", "1B")},
    **{
        f"published at {r}: tokens per parameter": partial(_published_training, r)
        for r in ("590M", "1B")
    },
    "published size at equal training": _fixed_ratio,
    "review - constant, change along the run": _faded,
    "1/N - 1/√N at eight passes, mean of the rates": _eight_passes,
    "1/N - 1/√N at eight passes, TinyStories": lambda: _eight_passes(stories=True),
    "review - unwidened constant, 4,800 steps": _unwidened,
    "review - constant, larger net less smaller": _size,
    "larger net over smaller": _times,
    "larger net, rate of review over constant": _faster,
    "spread of the best rate, 1/N less 1/√N": _loops,
    "SVFormer's cache": _cache,
    "review - constant, attached less rr": _houses,
    **advice.NAMED,
}
