"""How fast a GPU trains a run: measured on it, scaled from what was measured, or assumed.

Throughput comes from `rr bench --json`: a file of this machine (`--measured`), else the records in
data/measured of the same GPU. What neither contains is a range, by the first that applies:

1. scaled: the run's rung was measured on another GPU in the run's precision, or a smaller and a
   larger rung were, on this GPU or another. A step waits for arithmetic, for memory or for the
   launches of its kernels, and nobody has measured which; so its FLOP/s change with the GPU by a
   factor between the least and the most of

       peak / other's peak,     bandwidth / other's bandwidth,     1

   and reach no more than the largest MFU below, unless the peaks' ratio alone takes them there.
   Between two rungs: from the slower one's least to the faster one's most.
2. assumed: FLOP/s = peak of the GPU · share · MFU, where MFU goes from lo to hi and the share is
   that of the 16-bit peak which the run's precision has (`SHARE`).
"""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from rr import DATA
from rr.errors import RRError
from rr.model.costs import count
from rr.specs import Run
from rr.training.device import resolve_precision

from .gpus import GPUS, GPUSpec, find, gpu

MFU = (0.2, 0.45)  # assumed where nothing was measured
# Of the 16-bit peak, least and most: TF32 has half on every GPU that has it; float32 without
# tensor cores has from a sixteenth (A100) to a half (RTX 4090).
SHARE = {"bf16": (1, 1), "fp16": (1, 1), "tf32": (1 / 2, 1 / 2), "fp32": (1 / 16, 1 / 2)}
NUMBERS = ("tokens_per_step", "flops_per_token", "tokens_per_second")  # that a row must have
TEXTS = ("rung", "rule", "path", "precision")


@dataclass(frozen=True)
class Bench:
    """What `rr bench --json` wrote: the device's own name, and a row for each case that ran."""

    file: str
    device: str
    rows: tuple[dict, ...]


@dataclass(frozen=True)
class Rate:
    """FLOP/s, slower and faster; seconds to compile and the record, None where not measured.

    scaled: the GPU and the rungs that the rate is scaled from, where it is.
    """

    low: float
    high: float
    compile: tuple[float, float] | None = None
    source: str | None = None
    scaled: str | None = None


@dataclass(frozen=True)
class Source:
    """Rows of benchmarks that ran on one GPU."""

    card: GPUSpec
    rows: Sequence[dict]


def chosen_gpu(
    name: str | None, tflops: float | None, memory_gb: float | None, bench: Bench | None
) -> GPUSpec:
    """The GPU that is named, else the one that `bench` ran on. RRError where they differ."""
    ran_on = None if bench is None else find(bench.device)
    if name is None:
        if bench is None:
            raise RRError("no GPU is named: give --gpu NAME, or --measured FILE")
        if ran_on is None:
            raise RRError(
                f"{bench.file} was measured on {bench.device}, whose peak and memory are unknown: "
                "add --gpu NAME --tflops T --memory GB"
            )
        name = ran_on.name
    chosen = gpu(name, tflops, memory_gb)
    if bench is not None and chosen.name in GPUS and (ran_on is None or ran_on.name != chosen.name):
        raise RRError(
            f"{bench.file} was measured on {bench.device}, not on {chosen.name}: "
            f"measure on {chosen.name}, or leave --measured out"
        )
    if bench is not None and bench.device == "cpu":  # by which `precision` knows it
        return replace(chosen, name="cpu")
    return chosen


def mfu_range(words: str) -> tuple[float, float]:
    """`"0.3-0.5"` -> (0.3, 0.5); one number is a range of no width. RRError outside (0, 1].

    >>> mfu_range("0.3-0.5")
    (0.3, 0.5)
    """
    try:
        low, *high = (float(word) for word in words.split("-"))
    except ValueError:
        low, high = -1.0, []
    high = high[0] if len(high) == 1 else low
    if not 0 < low <= high <= 1:
        raise RRError(f"mfu must be LO-HI with 0 < LO ≤ HI ≤ 1, as in 0.2-0.45, got {words!r}")
    return low, high


def precision(run: Run, card: GPUSpec) -> str:
    """The precision of the run's matrix products on this GPU, or on this machine's CPU."""
    asked = run.recipe.precision
    if card.name == "cpu":
        return resolve_precision(torch.device("cpu"), asked)
    return "fp16" if asked == "bf16" and not card.bf16 else asked


def computed(precision: str, card: GPUSpec) -> str:
    """The precision of products asked for in this one: TF32 is fp32 on a card without."""
    return "fp32" if precision == "tf32" and not card.bf16 else precision


# -- measured -----------------------------------------------------------------------------------


def read_bench(path: str) -> Bench:
    """The file that `rr bench --json` wrote. RRError where it is none, or no case of it ran."""
    try:
        record = json.loads(Path(path).read_text())
        device, rows = record["made_by"]["device"], record["rows"]
        ran = tuple({**row, "record": path} for row in rows if not row["failed"])
    except OSError as error:
        raise RRError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        ran = None
    if ran is None or not all(map(_is_complete, ran)) or not isinstance(device, str):
        raise RRError(f"{path} is not the output of rr bench --json: expected made_by and rows")
    if not ran:
        raise RRError(f"{path} has no case that ran: expected at least one")
    return Bench(path, device, ran)


def _is_complete(row: dict) -> bool:
    """Whether a row has all that a rate needs."""
    times = row.get("step_ms")
    return (
        all(_positive(row.get(name)) for name in NUMBERS)
        and all(_positive(row[name]) for name in ("params", "warm_seconds") if name in row)
        and isinstance(row.get("values", ""), str)
        and all(isinstance(row.get(name), str) for name in TEXTS)
        and isinstance(row.get("choices"), dict)
        and isinstance(times, list)
        and bool(times)
        and all(map(_positive, times))
    )


def _positive(value: object) -> bool:
    """Whether it is a number above 0 that a float holds."""
    return isinstance(value, int | float) and 0 < value <= sys.float_info.max


def recorded(records: Path) -> Iterator[tuple[GPUSpec, dict]]:
    """Rows of every benchmark in `records` that ran on a known GPU, with the file they are from."""
    for path in sorted(records.rglob("*.json")):
        try:
            record = json.loads(path.read_text())
        except ValueError:
            continue  # not ours to judge: a record is checked where it is read
        rows = record.get("rows") if isinstance(record, dict) else None
        if not isinstance(rows, list) or not isinstance(record.get("made_by"), dict):
            continue
        ran_on = find(str(record["made_by"].get("device")))
        if ran_on is None:
            continue
        for row in rows:
            if isinstance(row, dict) and not row.get("failed") and _is_complete(row):
                yield ran_on, {**row, "record": str(path.relative_to(records))}


def sources(
    card: GPUSpec, bench: Bench | None = None, records: Path = DATA / "measured"
) -> list[Source]:
    """What was measured: on this machine, then on the same GPU, then on others."""
    by_card: dict[str, list[dict]] = {card.name: []}
    for ran_on, row in recorded(records):
        by_card.setdefault(ran_on.name, []).append(row)
    mine = [Source(card, bench.rows)] if bench else []
    return mine + [Source(card if name == card.name else GPUS[name], rows)
                   for name, rows in by_card.items()]  # fmt: skip


def measured(run: Run, card: GPUSpec, rows: Sequence[dict], rung: str | None = None) -> Rate | None:
    """The run's rate by `rows`; None where they lack its rung (or `rung`) at its precision.

    Rows of its own rules, else of its residual rule, else of any: each path by the slowest and
    fastest of its repeats; the path with the best median counts.
    """
    same_rung = [row for row in _usable(run, card, rows) if row["rung"] == (rung or run.rung)]
    same_rule = [row for row in same_rung if row["rule"] == run.rule]
    same_arm = [row for row in same_rule if row.get("values", "own") == run.values]
    best: dict[tuple[str, str], dict] = {}
    for row in same_arm or same_rule or same_rung:
        arm = row["rule"], row.get("values", "own")  # records of earlier versions lack the second
        if arm not in best or row["tokens_per_second"] > best[arm]["tokens_per_second"]:
            best[arm] = row
    if not best:
        return None
    rates = [
        1000 * row["tokens_per_step"] * row["flops_per_token"] / ms
        for row in best.values()
        for ms in row["step_ms"]
    ]
    compiled = [row for row in best.values() if row["choices"].get("compile") != "none"]
    warm = [row.get("warm_seconds") for row in compiled] or [0.0]
    known = [seconds for seconds in warm if seconds is not None]
    compiling = None if len(known) < len(warm) else (min(known), max(known))
    files = ", ".join(sorted({row["record"] for row in best.values()}))
    return Rate(min(rates), max(rates), compiling, files)


def _usable(run: Run, card: GPUSpec, rows: Sequence[dict]) -> list[dict]:
    """Rows of networks of `rr` in the precision that the run has on this GPU."""
    exact = precision(run, card)
    return [row for row in rows if not row.get("peer") and row["precision"] == exact]


def scaled(run: Run, card: GPUSpec, source: Source) -> Rate | None:
    """The run's range from what `source` measured; see the module. None where it lacks the rungs.

    The rung itself, else the nearest smaller and the nearest larger one, by parameters.
    """
    name = precision(run, card)
    if computed(name, card) != computed(name, source.card):
        return None
    rows = [row for row in _usable(run, card, source.rows) if "params" in row]
    own, sizes = count(run.model), {row["rung"]: row["params"] for row in rows}
    below = [name for name in sizes if sizes[name] <= own]
    above = [name for name in sizes if sizes[name] >= own]
    if run.rung in sizes:
        rungs = [run.rung]
    elif below and above:
        rungs = [max(below, key=sizes.__getitem__), min(above, key=sizes.__getitem__)]
    else:
        return None
    rates = [rate for name in rungs if (rate := measured(run, card, rows, name))]
    low, high = min(rate.low for rate in rates), max(rate.high for rate in rates)
    words = f"{source.card.name}: {', '.join(dict.fromkeys(rungs))}"
    if card.name == source.card.name:
        return Rate(low, high, scaled=words)
    peaks = card.flops / source.card.flops
    factors = [peaks, 1.0]
    if card.bandwidth and source.card.bandwidth:
        factors.append(card.bandwidth / source.card.bandwidth)
    likely = MFU[1] * SHARE[computed(precision(run, card), card)][1] * card.flops
    most = min(high * max(factors), max(likely, high * peaks))
    return Rate(low * min(factors), most, scaled=words)


def rate(run: Run, card: GPUSpec, mfu: tuple[float, float] | None, known: Sequence[Source]) -> Rate:
    """The run's rate by the first of `sources` that has it on this GPU, else scaled, else assumed.

    mfu: assumed instead of anything scaled; None: `MFU`, where nothing can be scaled.
    """
    for source in known:
        if source.card.name == card.name and (result := measured(run, card, source.rows)):
            return result
    if mfu is None:
        for source in known:
            if result := scaled(run, card, source):
                return result
    lo, hi = mfu or MFU
    low, high = SHARE[computed(precision(run, card), card)]
    return Rate(card.flops * low * lo, card.flops * high * hi)
