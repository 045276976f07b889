"""Which runs fit a GPU, its hours and its memory, in the order of the sweep.

    hours of a run = training + evaluation + start-up + compilation + checkpoints + report

Training and evaluation are FLOPs over a rate: measured, or a range that is scaled from what was
measured or assumed (`rrstudy.perf.rates`), never one number. The rest is measured where `rr bench`
recorded it, else assumed: the constants below.

Memory is `rr.training.memory`'s prediction for one path, which each row names. Prices are given by
the user; none are stored here.
"""

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import groupby
from pathlib import Path

import torch

from rr import DATA
from rr.errors import RRError
from rr.model.costs import count, flops_per_token
from rr.model.transformer import Model
from rr.options import Request
from rr.specs import ModelConfig, Recipe, Run
from rr.training import memory, memory_fit
from rr.training.backend import on_gpu, parse_backend
from rr.training.checkpoint import CHECKPOINT_BYTES, LARGEST_SHARE, WEIGHT_BYTES, disk_bytes
from rr.training.evaluate import CLEAN_LIMIT, PAPER_EVAL_BATCHES
from rr.training.optimizer import block_matrices
from rr.training.trainer import HELD_OUT_BATCHES, PARTS
from rrstudy.command_line import typed
from rrstudy.perf.ladder import group

from . import rates
from .gpus import GPUSpec, find, gpu
from .rates import MFU, SHARE, Bench, chosen_gpu, computed, mfu_range, precision, read_bench

# Assumed, in seconds of each run, least and most.
START = (20, 90)  # Python, torch and the GPU start; tokens are read; the model is made
COMPILE = (20, 120)  # of the path `compiled`
REPORT = (15, 120)  # the run's report, which a sweep by papermill executes and evaluates
DISK = (1e8, 1e9)  # bytes per second to which checkpoints are written, slower and faster
SPARE = 0.08  # share of the memory left to the allocator, whose losses are not predicted
SMALL = 20e6  # parameters below which no such MFU is likely: the published sizes lie above

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
    mfu: tuple[float, float] | None = None,
    price: float | None = None,
    records: Path = DATA / "measured",
    bench: Bench | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> list[dict]:
    """One row of plain values per run, in their order; that of `rrstudy.sweep.cells`.

    The arms of one (rung, protocol, text, steps, seed) that follow each other are a group, which is
    taken whole: "fits" is "yes" where its last run ends within `hours` by the slower estimate,
    "perhaps" by the faster one alone, else "no"; "memory" where no micro-batch fits the card.
    Nothing after a group that does not fit is tried in its place.

    bench: measured on this machine, preferred to `records`; RRError where it has none of the runs.
    mfu: assumed of every run that was not measured on this GPU; None: scaled from what was measured
    on others or at other sizes, `MFU` where that cannot be. say: called with each progress line.

    Rows: rung, rule, seed, id, params, tokens (of training, branches included), hours (low, high),
    parts (the same of "training", "evaluation", "start-up", "compilation", "checkpoints" and
    "report"), until (sum so far: low, high), cost (dollars: low, high; None without price),
    memory_bytes, path (that they are predicted for), disk_bytes (while it trains), micro_batch,
    recompute, precision, measured (the record, or None), scaled (what the hours are scaled from, or
    None: measured, or assumed from `mfu`), fits.
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
            arms.append(estimate(run, card, known, mfu, price) | _memory(run, card))
        for row in arms:
            if row["micro_batch"] is not None:
                low, high = low + row["hours"][0], high + row["hours"][1]
                row["until"] = (low, high)
        if hours is not None and verdict != "no":
            verdict = "yes" if high <= hours else "perhaps" if low <= hours else "no"
        for row in arms:
            row["fits"] = "memory" if row["micro_batch"] is None else verdict
        rows += arms
    if bench and all(row["measured"] is None or bench.file not in row["measured"] for row in rows):
        raise _none_measured(bench, runs, card)
    return rows


def _none_measured(bench: Bench, runs: Sequence[Run], card: GPUSpec) -> RRError:
    has = sorted({f"{row['rung']} in {row['precision']}" for row in bench.rows})
    wanted = sorted({f"{run.rung} in {precision(run, card)}" for run in runs})
    return RRError(
        f"{bench.file} has measured none of these runs: it has {', '.join(has)}, they are "
        f"{', '.join(wanted)}: run rr bench with their --rung, and --protocol paper for the study's"
    )


def command(options: Mapping[str, object], **more: object) -> str:
    """The `rr sweep` that trains what was planned: the options that were given, and `more`."""
    return shlex.join(["rr", "sweep", *typed({**options, **more})])


def expected(bench: Bench, runs: Sequence[Run]) -> Callable[[Run], float | None]:
    """Seconds that a run takes at most, by a benchmark; None for a rung that it lacks.

    RRError where it lacks those of all `runs`.
    """
    card = find(bench.device) or GPUSpec(bench.device, 0.0, 0.0)
    if not any(rates.measured(run, card, bench.rows) for run in runs):
        raise _none_measured(bench, runs, card)

    def seconds(run: Run) -> float | None:
        rate = rates.measured(run, card, bench.rows)
        return None if rate is None else sum(high for _, high in _seconds(run, rate).values())

    return seconds


def estimate(
    run: Run,
    card: GPUSpec,
    known: Sequence[rates.Source],
    mfu: tuple[float, float] | None = None,
    price: float | None = None,
) -> dict:
    """What a row of `what_fits()` holds of a run but for its memory, which takes seconds to count.

    known: of `rates.sources()`. mfu, price: as in `what_fits()`.
    """
    rate = rates.rate(run, card, mfu, known)
    parts = {name: (low / 3600, high / 3600) for name, (low, high) in _seconds(run, rate).items()}
    spent = tuple(sum(ends) for ends in zip(*parts.values(), strict=True))
    return {
        "rung": run.rung,
        "rule": run.rule,
        "values": run.values,
        "seed": run.seed,
        "id": run.id,
        "params": count(run.model),
        "tokens": run.tokens,
        "scored_tokens": _scored(run),
        "hours": spent,
        "parts": parts,
        "until": None,
        "cost": None if price is None else tuple(price * h for h in spent),
        "disk_bytes": disk_of([run]),
        "precision": precision(run, card),
        "measured": rate.source,
        "scaled": rate.scaled,
    }


def _seconds(run: Run, rate: rates.Rate) -> dict[str, tuple[float, float]]:
    """Seconds of each part of a run, least and most."""
    each = flops_per_token(run.model)
    steps = run.recipe.segments[-1].end
    training = each * run.tokens + steps * step_flops(run.model, run.recipe)
    scoring = each * _scored(run) / 3  # the forward pass alone
    # One at the end of each segment; more on the way as time passes.
    written = len(run.recipe.segments) * CHECKPOINT_BYTES * count(run.model)
    slow, fast = rate.low, rate.high
    return {
        "training": (training / fast, training / slow),
        "evaluation": (scoring / fast, scoring / slow),
        "start-up": START,
        "compilation": rate.compile or COMPILE,
        "checkpoints": (written / DISK[1], written / DISK[0] + LARGEST_SHARE * training / slow),
        "report": REPORT,
    }


def _scored(run: Run) -> int:
    """Held-out tokens that the run scores at most, at its ends and on the way."""
    recipe, each = run.recipe, run.model.seq_len * run.recipe.batch
    limit = None if recipe.eval_batches is None else recipe.eval_batches * each
    if run.protocol == "paper":
        return PAPER_EVAL_BATCHES * each if limit is None else limit
    ends = len(recipe.budgets or (1,)) * min(CLEAN_LIMIT, limit or CLEAN_LIMIT)
    return ends + (PARTS - 1) * min(HELD_OUT_BATCHES * each, limit or CLEAN_LIMIT, CLEAN_LIMIT)


def _memory(run: Run, card: GPUSpec) -> dict:
    """A row's memory: micro-batch and path that a run would select on this GPU, and the peak.

    Where nothing fits, the micro-batch is None and the bytes are those of the smallest.
    Recomputation costs a third more FLOPs, which the hours do not count.
    """
    usual = on_gpu(card.capability)

    @cache
    def need(micro: int, spec: str) -> int:
        backend = replace(parse_backend(spec), precision=precision(run, card))
        return memory.stacked(run, backend, micro, "cuda")

    specs, room = memory_fit.fallbacks(usual), (1 - SPARE) * card.memory
    selected = memory_fit.search(memory_fit.halvings(run.recipe.batch), specs, need, room)
    micro, path = selected or (None, specs[-1])
    return {
        "memory_bytes": need(micro or 1, path),
        "path": path,
        "micro_batch": micro,
        "recompute": parse_backend(path).recompute == "layer",
    }


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


def step_flops(config: ModelConfig, recipe: Recipe) -> int:
    """Matmul FLOPs of one optimiser step, whatever the batch.

    AdamW has none. Muon takes five iterations for each matrix of a × b, a ≤ b, with 4a²b + 2a³
    FLOPs each.
    """
    if recipe.optimizer == "adamw":
        return 0
    with torch.device("meta"):
        shapes = [sorted(p.shape) for p in block_matrices(Model(config))]
    return sum(5 * (4 * a * a * b + 2 * a**3) for a, b in shapes)


def staying(request: Request) -> int:
    """Bytes per parameter that stay of a run: its weights, or the last two checkpoints."""
    return 2 * CHECKPOINT_BYTES if request.keep_checkpoints else WEIGHT_BYTES


def disk_of(runs: Sequence[Run], at_once: int = 1, stay: int = WEIGHT_BYTES) -> int:
    """Bytes on disk that these runs need at most, with `at_once` of them trained at a time.

    What stays of each, `stay` bytes per parameter, and the checkpoints of the largest while they
    train.
    """
    largest = sorted(map(disk_bytes, runs), reverse=True)[:at_once]
    return sum(stay * count(run.model) for run in runs) + sum(largest)


def disk_of_rows(rows: Sequence[dict]) -> int:
    """Bytes on disk that the runs of `what_fits` need at most, trained one at a time."""
    kept = [WEIGHT_BYTES * row["params"] for row in rows]
    while_training = [row["disk_bytes"] - mine for row, mine in zip(rows, kept, strict=True)]
    return sum(kept) + max(while_training)


def notes(
    rows: Sequence[dict],
    card: GPUSpec,
    hours: float | None,
    mfu: tuple[float, float] | None = None,
) -> list[str]:
    """The table's measurements, assumptions and limits, one sentence per line."""
    lines = []
    known = sorted({row["measured"] for row in rows if row["measured"]})
    if known:
        count = sum(row["measured"] is not None for row in rows)
        lines.append(
            f"measured on {card.name}: {count} of {len(rows)} runs, by {'; '.join(known)}; ranges "
            "span its repeats and, where the run's rule was not measured, its rules"
        )
    ranges = [row["scaled"] for row in rows if row["scaled"]]
    if ranges:
        cards = sorted({words.partition(":")[0] for words in ranges})
        lines.append(
            f"scaled: {len(ranges)} of {len(rows)} runs, from sizes measured on {', '.join(cards)}"
            "; between two of them: from the slower's slowest to the faster's fastest repeat"
        )
        if cards != [card.name]:
            lines.append(
                "scaled to another GPU: the speed times the least and the most of 1, the ratio of "
                "the peaks and the ratio of the bandwidths, since a step may wait for launches, "
                f"arithmetic or memory; to an MFU of {MFU[1]:g} at most"
            )
    guessed = [row for row in rows if row["measured"] is None and row["scaled"] is None]
    if guessed:
        shares = "".join(
            f", of which {name} has {'half' if low == high else '1/16 to 1/2'}"
            for name, (low, high) in SHARE.items()
            if low < 1 and any(computed(row["precision"], card) == name for row in guessed)
        )
        low, high = mfu or MFU
        lines.append(
            f"not measured: {len(guessed)} of {len(rows)} runs, estimated from "
            f"{card.flops / 1e12:g} TFLOP/s{shares} × an assumed MFU of "
            f"{low:g}–{high:g} (--mfu)"
        )
        if small := sum(row["params"] < SMALL for row in guessed):
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
        f"disk: {disk_of_rows(rows) / 1e9:.3g} GB at most, one run at a time; "
        f"{sum(WEIGHT_BYTES * row['params'] for row in rows) / 1e9:.3g} GB of weights stay",
        f"assumed per run: {START[0]}–{START[1]} s of start-up, {REPORT[0]}–{REPORT[1]} s of the "
        f"report; checkpoints of {CHECKPOINT_BYTES} bytes "
        f"per parameter written at {DISK[0] / 1e9:g}–{DISK[1] / 1e9:g} GB/s, those during training "
        f"at most {LARGEST_SHARE:.0%} of its time; {COMPILE[0]}–{COMPILE[1]} s of compilation "
        "where not measured",
        f"memory is predicted for --backend {on_gpu(card.capability)} on {card.memory / 1e9:g} GB "
        f"less {SPARE:.0%}, with recompute=layer where the micro-batch says recompute; it is "
        "counted uncompiled, an upper bound; recomputation takes up to a third longer than the "
        "hours say",
    ]
    if hours is not None:
        fit = Counter(row["fits"] for row in rows)
        lines.append(
            f"within {hours:g} hours: {fit['yes']} of {len(rows)} runs fit, {fit['perhaps']} "
            f"perhaps, {fit['no']} do not; {fit['memory']} do not fit the memory"
        )
    return lines
