"""The sentences of a report, each chosen by the data that it is about. All return Markdown."""

import math
import platform
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import numpy as np

from rrstudy.stats.results import arm_named, arm_of, group_key
from rrstudy.stats.show import written_arm

from .folder import Survey, text_of
from .run import Ended, Look, outcome
from .tables import labelled

BARELY = 1.0  # training tokens per parameter below which a net is called barely trained
SENTENCES = 12  # more comparisons than these are told by the table alone, but for the clear ones


def listed(lines: Sequence[str], none: str = "") -> str:
    """The lines as a list, or `none`."""
    return "\n".join(f"- {line}" for line in lines) or none


def _signed(value: float) -> str:
    return f"{value:+.4f}".replace("-", "−")


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _joined(words: Sequence[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def made_by() -> str:
    """Which Python made the report: its version, and where it is."""
    return f"report made by Python {platform.python_version()}, {sys.executable}"


def _today() -> str:
    return f"{datetime.now(UTC):%-d %B %Y}"


# ---- one run -------------------------------------------------------------------------------------


def run_title(ended: Ended, command: str) -> str:
    """A heading with the run's name, the day and the command that repeats the run."""
    run = ended.run
    return (
        f"# Run `{run.id}`: {run.rung}, {_arm(ended)}, seed {run.seed}\n\n"
        f"Report of {_today()}. The run again, in a folder of its own: `{command}`"
    )


def _arm(ended: Ended) -> str:
    """What the run is of: its arm and, where they are not the usual, passes and optimiser."""
    run = ended.run
    passes = "" if run.loops == 1 else f", {run.loops} passes"
    optimizer = "" if run.recipe.optimizer == "adamw" else f", {run.recipe.optimizer}"
    return f"{written_arm(arm_of(ended.result))}{passes}{optimizer}"


def run_summary(ended: Ended, bigram: float, look: Look) -> str:
    """What came out: the loss beside the bigram table, the calibration. Figures show the rest."""
    run, result = ended.run, ended.result
    lines = [
        f"A {run.flavour} model of {result['params']:,} parameters under `{_arm(ended)}` on "
        f"*{result['corpus']}*: {outcome(ended)}.",
        _against(bigram, result, ended.diverged),
        _calibration(look),
    ]
    return listed([line for line in lines if line])


def _against(bigram: float, result: Mapping, diverged: bool) -> str:
    if diverged:
        return f"A table of token pairs reaches {bigram:.4f} nats per token on this text."
    gap = bigram - result["val_loss"]
    side, verdict = "above", "so the net has not yet learned what counting pairs gives"
    if gap > 0:
        side, verdict = "below", "so the net has learned more than which token follows which"
    return f"It is {abs(gap):.4f} nats {side} a table of token pairs ({bigram:.4f}), {verdict}."


def _calibration(look: Look) -> str:
    if look.bins is None or look.score is None:
        return ""
    tokens, confidence, right = np.asarray(look.bins, dtype=float).sum(0)
    gap = (confidence - right) / tokens
    verdict = "too sure" if gap > 0 else "not sure enough"
    return (
        f"It is {verdict} by {abs(gap):.3f} on average: its likeliest token has a probability of "
        f"{confidence / tokens:.3f} and is right {right / tokens:.1%} of the time, over "
        f"{tokens:,.0f} held-out tokens."
    )


def run_warnings(ended: Ended, bigram: float) -> str:
    """What makes the run's numbers weaker than they look; "" where nothing does."""
    result, lines = ended.result, []
    if ended.diverged:
        lines.append("**Diverged.** The loss is not finite; the curves end where it happened.")
    if not ended.diverged and result["val_loss"] > bigram:
        lines.append("**Barely trained.** A table of token pairs does better.")
    per = result["tokens"] / result["params"]
    if per < BARELY:
        lines.append(f"**Few tokens.** It saw {per:.2g} training tokens per parameter.")
    if result["eval_shortened"]:
        lines.append("**Shortened evaluation.** Its loss is of a part of the held-out text.")
    if ended.made_by.get("bit_exact") is False:
        lines.append("**Not bit for bit.** It went on with another device, version or processes.")
    lines.append("**One seed.** A difference to another run needs several pairs of seeds.")
    return listed(lines)


# ---- a folder ------------------------------------------------------------------------------------


def folder_title(here: Survey, command: str, plan: Mapping[str, Sequence]) -> str:
    """A heading with the folder's name, the day, the command that makes the report, its plan."""
    chosen = [f"{name} {_joined(list(map(str, each)))}" for name, each in plan.items() if each]
    of = f" The plan: {'; '.join(chosen)}." if chosen else ""
    return f"# Runs in `{here.shown}`\n\nReport of {_today()}, made by `{command}`.{of}"


def folder_summary(here: Survey, baseline: str) -> str:
    """What is there, and how each arm compares with the baseline at each size."""
    ids = {row["id"].partition("/")[0] for row in here.results}
    arms = list(dict.fromkeys(arm_of(row) for row in here.results))
    rungs = list(dict.fromkeys(row["rung"] for row in here.results))
    seeds = sorted({row["seed"] for row in here.results})
    lines = []
    if ids:
        lines.append(
            f"{_count(len(ids), 'run')} that ended: "
            f"{_joined([f'`{written_arm(arm)}`' for arm in arms])} at "
            f"{_joined(rungs)}, seed{'' if len(seeds) == 1 else 's'} "
            f"{_joined(list(map(str, seeds)))}."
        )
    else:
        lines.append("No run has ended yet.")
    compared = [row for row in labelled(here) if row["difference"] is not None]
    clear = [row for row in compared if row["holm"] is not None and row["holm"] <= 0.05]
    lines += [_compared(row) for row in (compared if len(compared) <= SENTENCES else clear)]
    if len(compared) > SENTENCES:
        lines.append(
            f"The table has all {len(compared)} differences; above are those that are significant "
            "after Holm's correction."
            if clear
            else f"The table has all {len(compared)} differences."
        )
    if len(compared) > 1:
        lines.append(_corrected(compared))
    if ids and not compared:
        lines.append(f"No arm can be compared with `{baseline}`: {_why_not(here, arms, baseline)}.")
    return listed(lines)


def _why_not(here: Survey, arms: Sequence[str], baseline: str) -> str:
    if arm_named(baseline) not in arms:
        return f"no run of it has ended here (the arms are {_joined(list(map(written_arm, arms)))})"
    if len(arms) == 1:
        return "it is the only arm"
    notes = [note for row in here.rows for note in row["notes"]]
    return "; ".join(dict.fromkeys(notes)) or "no two arms share two seeds"


def _compared(row: Mapping) -> str:
    gap, pairs = row["difference"], _count(len(row["pairs"]), "pair")
    side = "above" if gap > 0 else "below"
    interval, verdict = f"{pairs}, no interval", ""
    if row["lo"] is not None:
        interval = f"95 % interval {_signed(row['lo'])} to {_signed(row['hi'])}, {pairs}"
        outside = row["lo"] * row["hi"] > 0
        verdict = "; the interval leaves zero out" if outside else "; zero is within the interval"
    arm, base = written_arm(row["arm"]), written_arm(row["baseline"])
    if not gap:
        return f"At {row['rung']}{row['where']} `{arm}` and `{base}` finish alike ({pairs})."
    return (
        f"At {row['rung']}{row['where']} `{arm}` finishes {abs(gap):.4f} nats {side} "
        f"`{base}` ({interval}){verdict}."
    )


def _corrected(compared: Sequence[Mapping]) -> str:
    tested = [row for row in compared if row["holm"] is not None]
    clear = [row for row in tested if row["holm"] <= 0.05]
    if not tested:
        return "None of these differences can be tested."
    family = max(row["comparisons"] for row in tested)
    names = [f"`{written_arm(row['arm'])}` at {row['rung']}{row['where']}" for row in clear]
    return (
        f"After Holm's correction for {_count(family, 'comparison')} of this folder, "
        f"significant at 5 %: {_joined(names) if names else 'none'}."
    )


def folder_warnings(here: Survey) -> str:
    """What makes the table weaker than it looks; "" where nothing does."""
    lines = []
    if here.damaged:
        lines.append(f"**Corrupt and left out:** {_count(len(here.damaged), 'run')}.")
    if here.begun:
        lines.append(f"**In progress or cut off:** {_count(len(here.begun), 'run')}.")
    lost = [row for row in here.results if row["status"] == "diverged"]
    if lost:
        names = _joined(
            [
                f"`{written_arm(arm_of(row))}` seed {row['seed']} at {row['rung']}, "
                f"rate {row['lr']:g}"
                for row in lost
            ]
        )
        lines.append(f"**Diverged:** {names}.")
    if len({row["seed"] for row in here.results}) == 1:
        lines.append("**One seed.** Nothing here tells a difference between arms from chance.")
    lines += _at_the_edge(here.results) + _barely(here)
    short = [row for row in here.results if row["tokens"] < BARELY * row["params"]]
    few = list(dict.fromkeys(row["rung"] for row in sorted(short, key=lambda row: row["params"])))
    if few:
        lines.append(f"**Few tokens.** Less than one per parameter at {_joined(few)}.")
    if any(row["eval_shortened"] for row in here.results):
        lines.append("**Shortened evaluation.** Some losses are of a part of the held-out text.")
    return listed(lines, "Nothing.")


def _barely(here: Survey) -> list[str]:
    """Runs that end above the table of token pairs of their text, by text; texts not counted."""
    lines = []
    for key, (line, why) in here.bigrams.items():
        rows = [row for row in here.results if text_of(row) == key and row["val_loss"] is not None]
        corpus = key[0]
        above = [row for row in rows if line is not None and row["val_loss"] > line]
        if above:
            count = "All" if len(above) == len(rows) else f"{len(above)} of"
            lines.append(
                f"**Barely trained.** {count} {_count(len(rows), 'result')} on *{corpus}* "
                f"{'is' if len(rows) == 1 else 'are'} above a table of token pairs ({line:.4f})."
            )
        elif line is None:
            lines.append(f"**Not held against counting.** *{corpus}*: {why}.")
    return lines


def _at_the_edge(results: Sequence[Mapping]) -> list[str]:
    """Arms that were run at several learning rates and did best at the lowest or the highest."""
    losses: dict[tuple, dict[float, dict]] = defaultdict(lambda: defaultdict(dict))
    for row in results:
        loss = math.inf if row["val_loss"] is None else row["val_loss"]  # it was tried, too
        losses[row["rung"], arm_of(row), group_key(row)][row["lr"]][row["seed"]] = loss
    lines = []
    for (rung, arm, _), by_rate in losses.items():
        shared = set.intersection(*map(set, by_rate.values()))  # seeds differ more than rates
        if not shared:
            continue
        means = {rate: sum(each[s] for s in shared) for rate, each in by_rate.items()}
        best = min(means, key=means.__getitem__)
        if len(means) > 1 and best in (min(means), max(means)) and math.isfinite(means[best]):
            lines.append(
                f"**Rate at the edge.** `{written_arm(arm)}` at {rung} does best at {best:g}, the "
                "end of the rates that were tried: a better one may lie beyond."
            )
    return lines
