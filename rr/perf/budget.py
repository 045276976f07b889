"""What a budget buys: which runs fit a GPU, its hours and its memory, in the order of the sweep.

    hours of a run = training + evaluation + start-up + compilation + checkpoints

Training and evaluation are FLOPs over a rate: measured (`rr.perf.rates`), or an estimate and a
range, never one number. The rest is measured where `rr bench` told it, else assumed: the constants
below.

Memory is `rr.training.memory`'s prediction for one path, which each row names. Prices are the
user's to give: none are kept here.
"""

import hashlib
import shlex
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import groupby
from pathlib import Path

import torch

from .. import DATA
from ..config import RRError, Run
from ..data import cache
from ..model.ladder import count, flops_per_token, group
from ..training import memory
from ..training.backend import Path as Choices
from ..training.backend import parse_path
from ..training.command_line import typed
from ..training.optimizer import step_flops
from ..training.result import PAPER_EVAL_BATCHES
from ..training.trainer import POINTS, PREFIX
from . import rates
from .rates import MFU, SHARE, Bench, Gpu, card_of, gpu, mfu_range, precision, read_bench

# Assumed, in seconds of each run, least and most.
START = (20, 90)  # Python, torch and the GPU start; tokens are read; the model is made
COMPILE = (20, 120)  # of the path `compiled`
DISK = (1e8, 1e9)  # bytes per second to which checkpoints are written, slower and faster
SAVED = 12  # bytes per parameter in a checkpoint: the weights and AdamW's two moments, in float32
SAVING = 0.05  # of the time at most goes to checkpoints on the way (`--save-every auto`)
SPARE = 0.08  # of the memory is left to the allocator, whose losses are not predicted
EASY = 8  # windows at once below which recomputation is tried first: small products are slow
SMALL = 20e6  # parameters below which no such MFU is likely: the published sizes lie above
HELD_OUT = 1_000_000  # tokens that protocol `clean` scores at most
PATH = "compiled"  # what `rr train` takes on a GPU

__all__ = ["MFU", "SHARE", "Bench", "Gpu", "budget", "card_of", "command", "expected", "gpu",
           "mfu_range", "read_bench", "span", "table", "told", "what_fits"]  # fmt: skip


def budget(hours: float | None, dollars: float | None, price: float | None) -> float | None:
    """Hours of the card that may be used; None: no limit. RRError where they contradict."""
    for name, value in (("hours", hours), ("dollars", dollars), ("price", price)):
        if value is not None and not 0 < value < float("inf"):
            raise RRError(f"{name} is {value}: a finite number above 0 is accepted")
    if dollars is None:
        return hours
    if hours is not None:
        raise RRError(f"both hours {hours:g} and dollars {dollars:g}: one of them is accepted")
    if price is None:
        raise RRError("dollars without a price: --price, in dollars an hour, is accepted with it")
    return dollars / price


def what_fits(
    runs: Iterable[Run],
    card: Gpu,
    hours: float | None = None,
    mfu: tuple[float, float] = MFU,
    price: float | None = None,
    records: Path = DATA / "measured",
    bench: Bench | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> list[dict]:
    """One plain row per run, in the order of the runs; see `rr.sweep.cells` for orders.

    The arms of one (rung, protocol, text, steps, seed) that follow each other are a group, which is
    taken whole: "fits" is "yes" where its last run ends within `hours` by the slower estimate,
    "perhaps" by the faster one alone, else "no"; "memory" where no micro-batch fits the card.
    Nothing after a group that does not fit is tried in its place.

    bench: measured on this machine, believed before `records`. say: is told what is being counted.

    Rows: rung, rule, seed, id, params, tokens (of training, branches included), hours (low, high),
    parts (the same of "training", "evaluation", "start-up", "compilation", "checkpoints"), until
    (sum so far: low, high), cost (dollars: low, high; None without price), memory_bytes, path (that
    they are predicted for), micro_batch, recompute, precision, measured (the record, or None:
    estimated from `mfu`), fits.
    """
    runs, found = list(runs), rates.sources(card, bench, records)
    made: list[dict] = []
    low = high = 0.0
    verdict = "yes"
    for _, members in groupby(runs, key=group):
        rows = []
        for run in members:
            name = f"{run.rung} {run.rule} seed {run.seed}"
            say(f"plan: {len(made) + len(rows) + 1} of {len(runs)} runs, {name}")
            rows.append(_row(run, card, mfu, price, found))
        able = [row for row in rows if row["micro_batch"] is not None]
        for row in able:
            low, high = low + row["hours"][0], high + row["hours"][1]
            row["until"] = (low, high)
        if hours is not None and verdict != "no":
            verdict = "yes" if high <= hours else "perhaps" if low <= hours else "no"
        for row in rows:
            row["fits"] = verdict if row in able else "memory"
        made += rows
    return made


def command(options: Mapping[str, object], **more: object) -> str:
    """The `rr sweep` that trains what was planned: the options that were given, and `more`."""
    return shlex.join(["rr", "sweep", *typed({**options, **more})])


def expected(bench: Bench) -> Callable[[Run], float | None]:
    """At most how many seconds a run takes, by a benchmark; None for a rung it does not hold."""
    card = Gpu(bench.device, 0.0, 0.0, rates.known_as(bench.device) not in rates.HALF_BY_FP16)

    def seconds(run: Run) -> float | None:
        rate = rates.measured(run, card, bench.rows)
        return None if rate is None else sum(high for _, high in _seconds(run, rate).values())

    return seconds


def _row(
    run: Run, card: Gpu, mfu: tuple[float, float], price: float | None, found: Sequence
) -> dict:
    rate = rates.rate(run, card, mfu, found)
    parts = {name: (low / 3600, high / 3600) for name, (low, high) in _seconds(run, rate).items()}
    spent = tuple(sum(ends) for ends in zip(*parts.values(), strict=True))
    micro, path, held = _memory(run, card)
    return {
        "rung": run.rung, "rule": run.rule, "values": run.values, "seed": run.seed, "id": run.id,
        "params": count(run.model), "tokens": _trained(run), "scored_tokens": _scored(run),
        "hours": spent, "parts": parts,
        "until": None, "cost": None if price is None else tuple(price * h for h in spent),
        "memory_bytes": held, "path": path, "micro_batch": micro, "recompute": path != PATH,
        "precision": precision(run, card), "measured": rate.source,
    }  # fmt: skip


def _seconds(run: Run, rate: rates.Rate) -> dict[str, tuple[float, float]]:
    """Where a run's time goes, least and most."""
    each = flops_per_token(run.model)
    steps = run.recipe.segments[-1].end
    training = each * _trained(run) + steps * step_flops(run.model, run.recipe)
    scoring = each * _scored(run) / 3  # the forward pass alone
    # One at the end of each segment; more on the way as time passes.
    written = len(run.recipe.segments) * SAVED * count(run.model)
    slow, fast = rate.low, rate.high
    return {
        "training": (training / fast, training / slow),
        "evaluation": (scoring / fast, scoring / slow),
        "start-up": START,
        "compilation": rate.compile or COMPILE,
        "checkpoints": (written / DISK[1], written / DISK[0] + SAVING * training / slow),
    }


def _trained(run: Run) -> int:
    return run.recipe.segments[-1].end * run.model.seq_len * run.recipe.batch


def _scored(run: Run) -> int:
    """Held-out tokens that the run scores at most, at its ends and on the way."""
    recipe, each = run.recipe, run.model.seq_len * run.recipe.batch
    limit = None if recipe.eval_batches is None else recipe.eval_batches * each
    if run.protocol == "paper":
        return PAPER_EVAL_BATCHES * each if limit is None else limit
    ends = len(recipe.budgets or (1,)) * min(HELD_OUT, limit or HELD_OUT)
    return ends + (POINTS - 1) * min(PREFIX * each, limit or HELD_OUT, HELD_OUT)


def _memory(run: Run, card: Gpu) -> tuple[int | None, str, int]:
    """The largest micro-batch that fits, the path it is for, bytes at the peak.

    Recomputation is a last resort: it costs a third more FLOPs, which the hours do not count.
    """
    for path, least in ((PATH, min(EASY, run.recipe.batch)), (f"{PATH}:recompute=layer", 1)):
        micro, held = _largest(run, path, least, card)
        if micro is not None:
            return micro, path, held
    return None, path, held


def _largest(run: Run, path: str, least: int, card: Gpu) -> tuple[int | None, int]:
    """The largest micro-batch of at least `least` that fits, or None, and the bytes it needs.

    Where none fits, the bytes of the smallest.
    """
    batch, room = run.recipe.batch, (1 - SPARE) * card.memory
    sizes = [batch >> i for i in range(batch.bit_length()) if batch >> i >= least]

    def need(micro: int) -> int:
        return _predicted(run, replace(parse_path(path), precision=precision(run, card)), micro)

    first = 0  # usually fits
    if need(sizes[0]) > room:
        first = bisect_left(sizes, True, lo=1, key=lambda micro: need(micro) <= room)
    fits = first < len(sizes)
    return (sizes[first], need(sizes[first])) if fits else (None, need(sizes[-1]))


def _predicted(run: Run, path: Choices, micro: int) -> int:
    """Bytes at the peak of a run, remembered: counting a large model takes a second."""
    key = [run.model, run.rule_content, run.values_content, path, micro, run.recipe.batch,
           run.recipe.decay_all, run.recipe.optimizer]  # fmt: skip
    return cache.remembered(
        "memory", repr(key), _code(), lambda: memory.predict(run, path, micro, "cuda")["total"]
    )


@lru_cache
def _code() -> str:
    """What decides a count beside its key: all code of `rr`, and torch's version."""
    here = hashlib.sha256(torch.__version__.encode())
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        here.update(file.read_bytes())
    return here.hexdigest()


# -- told ---------------------------------------------------------------------------------------


def table(rows: Sequence[dict]) -> list[tuple]:
    """The rows as text, a header first; a cost only where there was a price."""
    priced = any(row["cost"] for row in rows)
    lines = [("run", "seed", "parameters", "tokens", "hours", "hours so far", "memory",
              "micro-batch", "fits", *(["dollars"] if priced else []))]  # fmt: skip
    for row in rows:
        name = f"{row['rung']} {row['rule']}"
        name += "" if row["values"] == "own" else f" {row['values']}"
        micro = "–" if row["micro_batch"] is None else str(row["micro_batch"])
        lines.append((
            name, row["seed"], f"{row['params']:,}", f"{row['tokens']:,}", span(row["hours"]),
            span(row["until"]), f"{row['memory_bytes'] / 1e9:.1f} GB",
            micro + (" + recompute" if row["recompute"] else ""), row["fits"],
            *([span(row["cost"])] if priced else []),
        ))  # fmt: skip
    return lines


def span(pair: tuple[float, float] | None) -> str:
    """`0.12–0.27`; a dash for nothing."""
    if pair is None:
        return "–"
    low, high = (f"{value:.2f}" if value >= 0.1 else f"{value:.2g}" for value in pair)
    return low if low == high else f"{low}–{high}"


def told(rows: Sequence[dict], card: Gpu, hours: float | None, mfu: tuple) -> list[str]:
    """What the table rests on, a sentence a line."""
    lines = []
    known = sorted({row["measured"] for row in rows if row["measured"]})
    if known:
        lines.append(f"measured on {card.name}: {'; '.join(known)}; ranges span its repeats")
    if guessed := sum(row["measured"] is None for row in rows):
        less = "".join(
            f", of which {name} has {'half' if low == high else '1/16 to 1/2'}"
            for name, (low, high) in SHARE.items()
            if low < 1 and any(row["precision"] == name for row in rows)
        )
        lines.append(
            f"not measured: {guessed} of {len(rows)} estimated from {card.flops / 1e12:g} TFLOP/s"
            f"{less} × an assumed MFU of {mfu[0]:g}–{mfu[1]:g} (--mfu)"
        )
        if small := sum(row["measured"] is None and row["params"] < SMALL for row in rows):
            lines.append(f"{small} of these below {SMALL / 1e6:g} M parameters: kernels so small "
                         "leave a GPU waiting, and take longer than the hours say")  # fmt: skip
    parts = {name: [sum(row["parts"][name][end] for row in rows) for end in (0, 1)]
             for name in rows[0]["parts"]}  # fmt: skip
    lines += [
        "hours count " + ", ".join(f"{name} {span(both)}" for name, both in parts.items()),
        f"assumed per run: {START[0]}–{START[1]} s of start-up; checkpoints of {SAVED} bytes per "
        f"parameter written at {DISK[0] / 1e9:g}–{DISK[1] / 1e9:g} GB/s, at most {SAVING:.0%} of "
        f"the time on the way; {COMPILE[0]}–{COMPILE[1]} s of compilation where not measured",
        f"memory is predicted for --path {PATH} on {card.memory / 1e9:g} GB less {SPARE:.0%}, and "
        f"for {PATH}:recompute=layer where the micro-batch says so; it is counted uncompiled, an "
        "upper bound; recomputation takes up to a third more time than the hours say",
    ]
    if hours is not None:
        taken = {word: sum(row["fits"] == word for row in rows)
                 for word in ("yes", "perhaps", "no", "memory")}  # fmt: skip
        lines.append(
            f"within {hours:g} hours: {taken['yes']} of {len(rows)} runs fit, {taken['perhaps']} "
            f"perhaps, {taken['no']} do not; {taken['memory']} do not fit the memory"
        )
    return lines
