"""What a budget buys: which runs fit a GPU, its hours and its memory, and in which order.

Hours come from throughput that was measured on that GPU (`rr bench`, in data/measured), with the
spread of the measurement. Where none was, they are an estimate and a range, never one number:

    hours = FLOPs of the run / (peak of the device · share · MFU),   MFU assumed, from lo to hi

The share is of the 16-bit peak that the run's precision has: `SHARE`.

Memory is `rr.memory`'s prediction. Prices are the user's to give: none are kept here.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from . import DATA, memory
from .bench import HALF_BY_FP16, MEMORY, PEAKS, known_as
from .config import RRError, Run, nearest
from .ladder import count, flops_per_token, parse_rung
from .outcome import PAPER_EVAL_BATCHES
from .paths import parse_path
from .trainer import POINTS, PREFIX

MFU = (0.2, 0.45)  # assumed where nothing was measured
# Of the 16-bit peak, least and most: TF32 has half on every card that has it; float32 without
# tensor cores has from a sixteenth (A100) to a half (RTX 4090).
SHARE = {"bf16": (1, 1), "fp16": (1, 1), "tf32": (1 / 2, 1 / 2), "fp32": (1 / 16, 1 / 2)}
SPARE = 0.08  # of the memory is left to the allocator, whose losses are not predicted
EASY = 8  # windows at once below which recomputation is tried first: small products are slow
SMALL = 20e6  # parameters below which no such MFU is likely: the published sizes lie above
HELD_OUT = 1_000_000  # tokens that protocol `clean` scores at most


@dataclass(frozen=True)
class Gpu:
    """A card: name, dense peak of 16-bit products (FLOP/s), memory (bytes), whether it has bf16."""

    name: str
    flops: float
    memory: float
    bf16: bool = True


def gpu(name: str, tflops: float | None = None, memory_gb: float | None = None) -> Gpu:
    """The card of that name; of any name where both figures are given (TFLOP/s, 10⁹ bytes).

    A figure that is given replaces the table's: an A100 of 80 GB. RRError for an unknown name.
    """
    for what, value in (("tflops", tflops), ("memory", memory_gb)):
        if value is not None and not 0 < value < float("inf"):
            raise RRError(f"{what} is {value}: a finite number above 0 is accepted")
    key = next((known for known in PEAKS if known.lower() == name.lower()), None)
    if key is None and (tflops is None or memory_gb is None):
        raise RRError(
            f"unknown GPU {name!r}: {nearest(name, PEAKS)}; any other with --tflops and --memory"
        )
    flops = PEAKS[key] if tflops is None else 1e12 * tflops
    held = MEMORY[key] if memory_gb is None else memory_gb
    return Gpu(key or name, flops, 1e9 * held, key not in HALF_BY_FP16)


def mfu_range(words: str | None) -> tuple[float, float]:
    """`"0.3-0.5"` -> (0.3, 0.5); one number is a range of no width. RRError outside (0, 1]."""
    if words is None:
        return MFU
    try:
        low, *high = (float(word) for word in words.split("-"))
    except ValueError:
        low, high = -1.0, []
    high = high[0] if len(high) == 1 else low
    if not 0 < low <= high <= 1:
        raise RRError(f"mfu {words!r}: LO-HI, as in 0.2-0.45, above 0 and at most 1, is accepted")
    return low, high


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
) -> list[dict]:
    """One plain row a run, in the order to train them: complete pairs first, small rungs first.

    The arms of one (rung, protocol, steps, seed) are a group, and groups go by the size of their
    models, then by seed. A group is taken whole: "fits" is "yes" where its last run ends within
    `hours` by the slower estimate, "perhaps" by the faster one alone, else "no"; "memory" where no
    micro-batch fits the card. Nothing after a group that does not fit is tried in its place.

    Rows: rung, rule, seed, id, params, tokens (of training, branches included), hours (low, high),
    until (sum so far: low, high), cost (dollars: low, high; None without price), memory_bytes,
    micro_batch, recompute, precision, measured (the record, or None: estimated from `mfu`), fits.
    """
    found = list(_measured(records, card))
    made: list[dict] = []
    low = high = 0.0
    verdict = "yes"
    ordered = sorted(runs, key=_place)
    for _, group in groupby(ordered, key=_group):
        rows = [_row(run, card, mfu, price, found) for run in group]
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


def _group(run: Run) -> tuple:
    rung, _ = parse_rung(run.rung)  # not the arm's own width, which protocol `paper` widens
    size = rung.n_layer * rung.d_model**2
    return size, run.rung, run.protocol, run.recipe.steps, run.recipe.budgets or (), run.seed


def _place(run: Run) -> tuple:
    size, rung, protocol, steps, budgets, seed = _group(run)
    return size, rung, protocol, steps, budgets, seed, run.rule != "standard", run.rule, run.values


def _row(
    run: Run, card: Gpu, mfu: tuple[float, float], price: float | None, found: list[dict]
) -> dict:
    recipe, each = run.recipe, run.model.seq_len * run.recipe.batch
    tokens = recipe.segments[-1].end * each
    scored = _scored(run)
    flops = flops_per_token(run.model) * (tokens + scored / 3)  # scoring: the forward pass alone
    slow, fast, source = _rate(run, card, mfu, found)
    spent = (flops / fast / 3600, flops / slow / 3600)
    micro, recompute, held = _memory(run, card)
    return {
        "rung": run.rung, "rule": run.rule, "values": run.values, "seed": run.seed, "id": run.id,
        "params": count(run.model), "tokens": tokens, "scored_tokens": scored, "hours": spent,
        "until": None, "cost": None if price is None else tuple(price * h for h in spent),
        "memory_bytes": held, "micro_batch": micro, "recompute": recompute,
        "precision": _precision(run, card), "measured": source,
    }  # fmt: skip


def _scored(run: Run) -> int:
    """Held-out tokens that the run scores at most, at its ends and on the way."""
    recipe, each = run.recipe, run.model.seq_len * run.recipe.batch
    limit = None if recipe.eval_batches is None else recipe.eval_batches * each
    if run.protocol == "paper":
        return PAPER_EVAL_BATCHES * each if limit is None else limit
    ends = len(recipe.budgets or (1,)) * min(HELD_OUT, limit or HELD_OUT)
    return ends + (POINTS - 1) * min(PREFIX * each, limit or HELD_OUT, HELD_OUT)


def _precision(run: Run, card: Gpu) -> str:
    asked = run.recipe.precision
    return asked if card.bf16 else {"bf16": "fp16", "tf32": "fp32"}.get(asked, asked)


def _memory(run: Run, card: Gpu) -> tuple[int | None, bool, int]:
    """The largest micro-batch that fits, whether blocks are computed again, bytes at the peak.

    Recomputation is a last resort: it costs a third more FLOPs, which the hours do not count.
    """
    room, least = (1 - SPARE) * card.memory, None
    for word in ("none", "layer"):
        path = replace(parse_path("compiled"), precision=_precision(run, card), recompute=word)
        micro = run.recipe.batch
        while micro >= 1:
            held = memory.predict(run, path, micro, "cuda")["total"]
            if held <= room and (micro >= min(EASY, run.recipe.batch) or word == "layer"):
                return micro, word == "layer", held
            least = held if least is None else min(least, held)
            micro //= 2
    return None, True, least


# -- throughput ---------------------------------------------------------------------------------


def _measured(records: Path, card: Gpu) -> Iterator[dict]:
    """Rows of every benchmark in `records` that ran on this card, with the file they are from."""
    for path in sorted(records.rglob("*.json")):
        try:
            told = json.loads(path.read_text())
        except ValueError:
            continue  # not ours to judge: a record that is read is checked where it is read
        rows = told.get("rows") if isinstance(told, dict) else None
        if not isinstance(rows, list) or not isinstance(told.get("made_by"), dict):
            continue
        if known_as(str(told["made_by"].get("device"))) != card.name:
            continue
        for row in rows:
            if isinstance(row, dict) and not row.get("failed") and row.get("step_ms"):
                yield {**row, "record": str(path.relative_to(records))}


def _rate(
    run: Run, card: Gpu, mfu: tuple[float, float], found: Sequence[dict]
) -> tuple[float, float, str | None]:
    """FLOP/s of the run, slower and faster, and the record that says so; None: an assumption.

    Of the rung's measured rows at the run's precision, those of its own rule, else of any: each
    path by the slowest and fastest of its repeats; the path with the best median counts.
    """
    own = [row for row in found
           if row["rung"] == run.rung and not row.get("peer")
           and row["precision"] == _precision(run, card)]  # fmt: skip
    exact = [row for row in own if row["rule"] == run.rule]
    best: dict[str, dict] = {}
    for row in exact or own:
        before = best.get(row["rule"])
        if before is None or row["tokens_per_second"] > before["tokens_per_second"]:
            best[row["rule"]] = row
    if not best:
        low, high = SHARE[_precision(run, card)]
        return card.flops * low * mfu[0], card.flops * high * mfu[1], None
    rates = [1000 * row["tokens_per_step"] * row["flops_per_token"] / ms
             for row in best.values() for ms in row["step_ms"]]  # fmt: skip
    return min(rates), max(rates), ", ".join(sorted({row["record"] for row in best.values()}))


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
    lines.append(
        f"memory is predicted, for {card.memory / 1e9:g} GB less {SPARE:.0%}; a compiled path "
        "takes less; recomputation takes up to a third more time than the hours say"
    )
    if hours is not None:
        taken = {word: sum(row["fits"] == word for row in rows)
                 for word in ("yes", "perhaps", "no", "memory")}  # fmt: skip
        lines.append(
            f"within {hours:g} hours: {taken['yes']} of {len(rows)} runs fit, {taken['perhaps']} "
            f"perhaps, {taken['no']} do not; {taken['memory']} do not fit the memory"
        )
    return lines
