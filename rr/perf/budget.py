"""Which runs fit a GPU, its hours and its memory, in the order of the sweep.

    hours of a run = training + evaluation + start-up + compilation + checkpoints

Training and evaluation are FLOPs over a rate: measured (`rr.perf.rates`), or an estimate and a
range, never one number. The rest is measured where `rr bench` recorded it, else assumed: the
constants below.

Memory is `rr.training.memory`'s prediction for one path, which each row names. Prices are given by
the user; none are stored here.
"""

import hashlib
import json
import shlex
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import groupby
from pathlib import Path

from .. import DATA
from ..config import RRError, Run
from ..data import cache
from ..model.ladder import count, flops_per_token, group
from ..training import memory
from ..training.backend import Backend, parse_backend
from ..training.command_line import typed
from ..training.optimizer import step_flops
from ..training.result import PAPER_EVAL_BATCHES
from ..training.trainer import POINTS, PREFIX
from . import rates
from .gpus import GPUSpec, find, gpu
from .rates import MFU, SHARE, Bench, chosen_gpu, mfu_range, precision, read_bench

# Assumed, in seconds of each run, least and most.
START = (20, 90)  # Python, torch and the GPU start; tokens are read; the model is made
COMPILE = (20, 120)  # of the path `compiled`
DISK = (1e8, 1e9)  # bytes per second to which checkpoints are written, slower and faster
SAVED = 12  # bytes per parameter in a checkpoint: the weights and AdamW's two moments, in float32
SAVING = 0.05  # share of the time that checkpoints during training take at most (`auto`)
SPARE = 0.08  # share of the memory left to the allocator, whose losses are not predicted
EASY = 8  # windows at once below which recomputation is tried first: small products are slow
SMALL = 20e6  # parameters below which no such MFU is likely: the published sizes lie above
HELD_OUT = 1_000_000  # tokens that protocol `clean` scores at most
PATH = "compiled"  # what `rr train` uses on a GPU
# Peaks of the study's own runs, all 64 windows at once: counting them takes longer than a plan may.
# Written by book/tools/peaks.py; tests count them again.
PEAKS = Path(__file__).with_name("peaks.json")

__all__ = ["MFU", "SHARE", "Bench", "GPUSpec", "budget", "chosen_gpu", "command", "expected", "gpu",
           "mfu_range", "notes", "read_bench", "span", "table", "what_fits"]  # fmt: skip


def budget(hours: float | None, dollars: float | None, price: float | None) -> float | None:
    """GPU hours to spend; None: no limit. RRError where hours and dollars are both given."""
    for name, value in (("hours", hours), ("dollars", dollars), ("price", price)):
        if value is not None and not 0 < value < float("inf"):
            raise RRError(f"{name} must be a finite number > 0, got {value}")
    if dollars is None:
        return hours
    if hours is not None:
        raise RRError(
            f"both hours ({hours:g}) and dollars ({dollars:g}) are given: give one of them"
        )
    if price is None:
        raise RRError("dollars need a price: add --price, in dollars per GPU hour")
    return dollars / price


def what_fits(
    runs: Iterable[Run],
    card: GPUSpec,
    hours: float | None = None,
    mfu: tuple[float, float] = MFU,
    price: float | None = None,
    records: Path = DATA / "measured",
    bench: Bench | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> list[dict]:
    """One row of plain values per run, in the order of the runs; `rr.sweep.cells` has the orders.

    The arms of one (rung, protocol, text, steps, seed) that follow each other are a group, which is
    taken whole: "fits" is "yes" where its last run ends within `hours` by the slower estimate,
    "perhaps" by the faster one alone, else "no"; "memory" where no micro-batch fits the card.
    Nothing after a group that does not fit is tried in its place.

    bench: measured on this machine, preferred to `records`. say: called with each progress line.

    Rows: rung, rule, seed, id, params, tokens (of training, branches included), hours (low, high),
    parts (the same of "training", "evaluation", "start-up", "compilation", "checkpoints"), until
    (sum so far: low, high), cost (dollars: low, high; None without price), memory_bytes, path (that
    they are predicted for), micro_batch, recompute, precision, measured (the record, or None:
    estimated from `mfu`), fits.
    """
    runs = list(runs)
    known = rates.sources(card, bench, records)
    rows: list[dict] = []
    low = high = 0.0
    verdict = "yes"
    for _, members in groupby(runs, key=group):
        arms = []
        for run in members:
            name = f"{run.rung} {run.rule} seed {run.seed}"
            say(f"plan: {len(rows) + len(arms) + 1} of {len(runs)} runs, {name}")
            arms.append(_row(run, card, mfu, price, known))
        for row in arms:
            if row["micro_batch"] is not None:
                low, high = low + row["hours"][0], high + row["hours"][1]
                row["until"] = (low, high)
        if hours is not None and verdict != "no":
            verdict = "yes" if high <= hours else "perhaps" if low <= hours else "no"
        for row in arms:
            row["fits"] = "memory" if row["micro_batch"] is None else verdict
        rows += arms
    return rows


def command(options: Mapping[str, object], **more: object) -> str:
    """The `rr sweep` that trains what was planned: the options that were given, and `more`."""
    return shlex.join(["rr", "sweep", *typed({**options, **more})])


def expected(bench: Bench) -> Callable[[Run], float | None]:
    """Seconds that a run takes at most, by a benchmark; None for a rung that it lacks."""
    card = find(bench.device) or GPUSpec(bench.device, 0.0, 0.0)

    def seconds(run: Run) -> float | None:
        rate = rates.measured(run, card, bench.rows)
        return None if rate is None else sum(high for _, high in _seconds(run, rate).values())

    return seconds


def _row(
    run: Run, card: GPUSpec, mfu: tuple[float, float], price: float | None, known: Sequence
) -> dict:
    rate = rates.rate(run, card, mfu, known)
    parts = {name: (low / 3600, high / 3600) for name, (low, high) in _seconds(run, rate).items()}
    spent = tuple(sum(ends) for ends in zip(*parts.values(), strict=True))
    micro, path, memory_bytes = _memory(run, card)
    return {
        "rung": run.rung,
        "rule": run.rule,
        "values": run.values,
        "seed": run.seed,
        "id": run.id,
        "params": count(run.model),
        "tokens": _trained(run),
        "scored_tokens": _scored(run),
        "hours": spent,
        "parts": parts,
        "until": None,
        "cost": None if price is None else tuple(price * h for h in spent),
        "memory_bytes": memory_bytes,
        "path": path,
        "micro_batch": micro,
        "recompute": path != PATH,
        "precision": precision(run, card),
        "measured": rate.source,
    }


def _seconds(run: Run, rate: rates.Rate) -> dict[str, tuple[float, float]]:
    """Seconds of each part of a run, least and most."""
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


def _memory(run: Run, card: GPUSpec) -> tuple[int | None, str, int]:
    """The largest micro-batch that fits, the path it is for, and the peak in bytes.

    Recomputation is a last resort: it costs a third more FLOPs, which the hours do not count.
    """
    for path, least in ((PATH, min(EASY, run.recipe.batch)), (f"{PATH}:recompute=layer", 1)):
        micro, peak = _largest(run, path, least, card)
        if micro is not None:
            break
    return micro, path, peak


def _largest(run: Run, path: str, least: int, card: GPUSpec) -> tuple[int | None, int]:
    """The largest micro-batch of at least `least` that fits, or None, and the bytes it needs.

    Where none fits, the bytes of the smallest.
    """
    batch, room = run.recipe.batch, (1 - SPARE) * card.memory
    sizes = [batch >> i for i in range(batch.bit_length()) if batch >> i >= least]

    def need(micro: int) -> int:
        return _predicted(run, replace(parse_backend(path), precision=precision(run, card)), micro)

    first = 0  # usually fits
    if need(sizes[0]) > room:
        first = bisect_left(sizes, True, lo=1, key=lambda micro: need(micro) <= room)
    fits = first < len(sizes)
    return (sizes[first], need(sizes[first])) if fits else (None, need(sizes[-1]))


def _predicted(run: Run, path: Backend, micro: int) -> int:
    """Peak bytes of a run: those of the study's own runs are shipped, others counted and cached."""
    key = peak_key(run, path, micro)
    known = _shipped().get(hashlib.sha256(key.encode()).hexdigest())
    if known is not None:
        return known
    return cache.cached_value(
        "memory", key, cache.code_version(), lambda: memory.stacked(run, path, micro, "cuda")
    )


def peak_key(run: Run, path: Backend, micro: int) -> str:
    """What decides a run's peak on a GPU, beside the code; its SHA-256 is a key of `PEAKS`."""
    return repr([run.model, run.rule_content, run.values_content, path, micro, run.recipe.batch,
                 run.recipe.decay_all, run.recipe.optimizer])  # fmt: skip


@lru_cache
def _shipped() -> dict[str, int]:
    return json.loads(PEAKS.read_text(encoding="utf-8"))


# -- printed ------------------------------------------------------------------------------------


def table(rows: Sequence[dict]) -> list[tuple]:
    """The rows as text, a header first; a cost only where there was a price."""
    priced = any(row["cost"] for row in rows)
    lines = [
        (
            "run",
            "seed",
            "parameters",
            "tokens",
            "hours",
            "hours so far",
            "memory",
            "micro-batch",
            "fits",
            *(["dollars"] if priced else []),
        )
    ]
    for row in rows:
        name = f"{row['rung']} {row['rule']}"
        if row["values"] != "own":
            name += f" {row['values']}"
        micro = "–" if row["micro_batch"] is None else str(row["micro_batch"])
        if row["recompute"]:
            micro += " + recompute"
        lines.append(
            (
                name,
                row["seed"],
                f"{row['params']:,}",
                f"{row['tokens']:,}",
                span(row["hours"]),
                span(row["until"]),
                f"{row['memory_bytes'] / 1e9:.1f} GB",
                micro,
                row["fits"],
                *([span(row["cost"])] if priced else []),
            )
        )
    return lines


def span(pair: tuple[float, float] | None) -> str:
    """`0.12–0.27`; a dash for None."""
    if pair is None:
        return "–"
    low, high = (f"{value:.2f}" if value >= 0.1 else f"{value:.2g}" for value in pair)
    return low if low == high else f"{low}–{high}"


def notes(rows: Sequence[dict], card: GPUSpec, hours: float | None, mfu: tuple) -> list[str]:
    """The table's measurements, assumptions and limits, one sentence per line."""
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
            f"not measured: {guessed} of {len(rows)} runs, estimated from "
            f"{card.flops / 1e12:g} TFLOP/s{less} × an assumed MFU of {mfu[0]:g}–{mfu[1]:g} (--mfu)"
        )
        if small := sum(row["measured"] is None and row["params"] < SMALL for row in rows):
            lines.append(
                f"{small} of these have fewer than {SMALL / 1e6:g} M parameters: so small a model "
                "leaves a GPU idle between kernels, and takes longer than the hours say"
            )
    parts = {
        name: [sum(row["parts"][name][end] for row in rows) for end in (0, 1)]
        for name in rows[0]["parts"]
    }
    lines += [
        "hours in total: "
        + ", ".join(f"{name} {span((low, high))}" for name, (low, high) in parts.items()),
        f"assumed per run: {START[0]}–{START[1]} s of start-up; checkpoints of {SAVED} bytes per "
        f"parameter written at {DISK[0] / 1e9:g}–{DISK[1] / 1e9:g} GB/s, those during training at "
        f"most {SAVING:.0%} of its time; {COMPILE[0]}–{COMPILE[1]} s of compilation where not "
        "measured",
        f"memory is predicted for --path {PATH} on {card.memory / 1e9:g} GB less {SPARE:.0%}, and "
        f"for {PATH}:recompute=layer where the micro-batch says recompute; it is counted "
        "uncompiled, an upper bound; recomputation takes up to a third longer than the hours say",
    ]
    if hours is not None:
        fit = Counter(row["fits"] for row in rows)
        lines.append(
            f"within {hours:g} hours: {fit['yes']} of {len(rows)} runs fit, {fit['perhaps']} "
            f"perhaps, {fit['no']} do not; {fit['memory']} do not fit the memory"
        )
    return lines
