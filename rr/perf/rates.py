"""How fast a card is: its peak and memory, throughput measured on it, and what is assumed else.

Throughput comes from `rr bench --json`: a file of this machine (`--measured`), else the records in
data/measured of the same card. A rung that neither holds is estimated:

    FLOP/s = peak of the card · share · MFU,     MFU assumed, from lo to hi

The share is of the 16-bit peak that the run's precision has: `SHARE`.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .. import DATA
from ..config import RRError, Run, nearest
from ..training.backend import parse_backend
from .gpus import HALF_BY_FP16, MEMORY, PEAKS, known_as

MFU = (0.2, 0.45)  # assumed where nothing was measured
# Of the 16-bit peak, least and most: TF32 has half on every card that has it; float32 without
# tensor cores has from a sixteenth (A100) to a half (RTX 4090).
SHARE = {"bf16": (1, 1), "fp16": (1, 1), "tf32": (1 / 2, 1 / 2), "fp32": (1 / 16, 1 / 2)}
NUMBERS = ("tokens_per_step", "flops_per_token", "tokens_per_second")  # that a row must have


@dataclass(frozen=True)
class Gpu:
    """A card: name, dense peak of 16-bit products (FLOP/s), memory (bytes), whether it has bf16."""

    name: str
    flops: float
    memory: float
    bf16: bool = True


@dataclass(frozen=True)
class Bench:
    """What `rr bench --json` wrote: the device's own name, and a row for each case that ran."""

    file: str
    device: str
    rows: tuple[dict, ...]


@dataclass(frozen=True)
class Rate:
    """FLOP/s, slower and faster; seconds to compile and the record, None where not measured."""

    low: float
    high: float
    compile: tuple[float, float] | None = None
    source: str | None = None


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


def card_of(
    name: str | None, tflops: float | None, memory_gb: float | None, bench: Bench | None
) -> Gpu:
    """The card that is named, else the one that `bench` ran on. RRError where they differ."""
    ran_on = None if bench is None else known_as(bench.device)
    if name is None:
        if bench is None:
            raise RRError("no GPU is named: expected --gpu NAME, or --measured FILE")
        if ran_on is None:
            raise RRError(
                f"{bench.file} was measured on {bench.device}, whose peak and memory are unknown: "
                "add --gpu NAME --tflops T --memory GB"
            )
        name = ran_on
    card = gpu(name, tflops, memory_gb)
    if bench is not None and card.name in PEAKS and card.name != ran_on:
        raise RRError(f"{bench.file} was measured on {bench.device}, not on {card.name}")
    return card


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


def precision(run: Run, card: Gpu) -> str:
    """What the run's products are in on this card."""
    asked = run.recipe.precision
    return asked if card.bf16 else {"bf16": "fp16", "tf32": "fp32"}.get(asked, asked)


# -- measured -----------------------------------------------------------------------------------


def read_bench(path: str) -> Bench:
    """The file that `rr bench --json` wrote. RRError where it is none, or no case of it ran."""
    try:
        told = json.loads(Path(path).read_text())
        device, rows = told["made_by"]["device"], told["rows"]
        kept = tuple({**row, "record": path} for row in rows if not row["failed"])
    except OSError as error:
        raise RRError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        kept = None
    if kept is None or not all(map(_whole, kept)) or not isinstance(device, str):
        raise RRError(f"{path} is not the output of rr bench --json: expected made_by and rows")
    if not kept:
        raise RRError(f"{path} has no case that ran: expected at least one")
    return Bench(path, device, kept)


def _whole(row: dict) -> bool:
    """Whether a row says all that a rate needs."""
    times, known = row.get("step_ms"), all(isinstance(row.get(k), int | float) for k in NUMBERS)
    words = all(isinstance(row.get(k), str) for k in ("rung", "rule", "path", "precision"))
    return words and known and isinstance(times, list) and bool(times) and all(
        isinstance(ms, int | float) and ms > 0 for ms in times
    )  # fmt: skip


def recorded(records: Path, card: Gpu) -> Iterator[dict]:
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
            if isinstance(row, dict) and not row.get("failed") and _whole(row):
                yield {**row, "record": str(path.relative_to(records))}


def sources(card: Gpu, bench: Bench | None = None, records: Path = DATA / "measured") -> list:
    """Rows of this machine, then those recorded of the same card."""
    return [*([bench.rows] if bench else []), list(recorded(records, card))]


def measured(run: Run, card: Gpu, rows: Sequence[dict]) -> Rate | None:
    """The run's rate by `rows`; None where they do not hold its rung at its precision.

    Rows of its own rule, else of any: each path by the slowest and fastest of its repeats; the path
    with the best median counts.
    """
    own = [row for row in rows
           if row["rung"] == run.rung and not row.get("peer")
           and row["precision"] == precision(run, card)]  # fmt: skip
    exact = [row for row in own if row["rule"] == run.rule]
    best: dict[str, dict] = {}
    for row in exact or own:
        before = best.get(row["rule"])
        if before is None or row["tokens_per_second"] > before["tokens_per_second"]:
            best[row["rule"]] = row
    if not best:
        return None
    rates = [1000 * row["tokens_per_step"] * row["flops_per_token"] / ms
             for row in best.values() for ms in row["step_ms"]]  # fmt: skip
    compiled = [row for row in best.values() if parse_backend(row["path"]).compile != "none"]
    warm = [row.get("warm_seconds") for row in compiled] or [0.0]
    compiling = None if None in warm else (min(warm), max(warm))
    files = ", ".join(sorted({row["record"] for row in best.values()}))
    return Rate(min(rates), max(rates), compiling, files)


def rate(run: Run, card: Gpu, mfu: tuple[float, float], found: Sequence[Sequence[dict]]) -> Rate:
    """The run's rate by the first of `sources` that holds it, else by the card's peak and `mfu`."""
    for rows in found:
        if (told := measured(run, card, rows)) is not None:
            return told
    low, high = SHARE[precision(run, card)]
    return Rate(card.flops * low * mfu[0], card.flops * high * mfu[1])
