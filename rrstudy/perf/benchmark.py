"""Benchmark of a training step: time, model FLOP utilisation and peak memory of each path.

Every case (a rung, a rule, a path) has a process of its own, so that its peak memory is its own.
The cases take turns: in each repeat every case runs a few steps, and ratios are taken within a
repeat, so that whatever slows the machine for a while slows all of them. Batches are the same
random tokens for all: a step costs the same on any text.

    MFU = counted matmul FLOPs of a step / (seconds · bf16 peak of the device)

The FLOPs are `costs.flops_per_token`: linear layers, gates and head, attention counted as causal,
recomputation not counted. A device that is not in `gpus.GPUS` has no MFU.
"""

import itertools
import math
import platform
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from multiprocessing import get_context
from statistics import median

import torch

from rr import __version__
from rr.errors import RRError, RunFailed, nearest, positive
from rr.model import sizes
from rr.residual import allow_rule, canonical
from rr.specs import PROTOCOLS
from rr.training import memory, planning, provenance
from rr.training.backend import default, parse_backend
from rr.training.device import cores, device_name, pick_device, set_threads
from rr.training.memory_fit import free, margin

from .benchmark_case import Case, arm, run_command, start
from .gpus import find


class _Child:
    """A case's own process, which takes commands: the methods of its `benchmark_case.Bench`."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.measured: dict = {}
        self.failed: str | None = None
        self.times: list[float] = []
        self.process = ProcessPoolExecutor(1, get_context("spawn"), start)
        self.answer: Future[dict] = Future()

    def send(self, command: str, *arguments: object) -> None:
        """Send a command, unless the case has failed."""
        if self.failed is not None:
            return
        try:
            self.answer = self.process.submit(run_command, command, *arguments)
        except BrokenProcessPool as error:  # `receive` reports it
            self.answer = Future()
            self.answer.set_exception(error)

    def receive(self) -> dict | None:
        """The answer; None where there is none: the case has then failed."""
        if self.failed is not None:
            return None
        try:
            return self.answer.result()
        except RRError as error:
            self.failed = str(error)
        except BrokenProcessPool:
            self.failed = "its process was killed"
        self.end()
        return None

    def ask(self, command: str, *arguments: object) -> dict | None:
        """`send`, then `receive`."""
        self.send(command, *arguments)
        return self.receive()

    @property
    def row(self) -> dict:
        """The case's row so far."""
        return result_row(self.case, self.measured, self.times, self.failed)

    def end(self) -> None:
        """End the process, which frees its memory."""
        self.process.shutdown()


def measure(
    cases: list[Case],
    steps: int = 5,
    repeats: int = 3,
    device: str | None = None,
    threads: int | None = None,
    together: int = 1,
    keep: Callable[[list[dict]], None] = lambda rows: None,
    log: Callable[[str], None] = lambda line: None,
) -> list[dict]:
    """One row per case; times in milliseconds per step, one per repeat; why a case failed.

    warm_seconds: of all that compiles: the making of the step, and its first two.

    On a GPU the models of all cases lie in its memory at once. together: how many of them compile
    and warm up at once, limited by memory; timed steps are always taken one case at a time. keep:
    called with the rows after every repeat, so that an interrupted benchmark keeps them. A script
    that calls this needs the guard `if __name__ == "__main__"`: its processes import it.
    """
    children = []
    try:
        target = pick_device(device)
        children = [_Child(case) for case in cases]
        size = 1 if target.type == "cpu" else together
        for turn in (children[i : i + size] for i in range(0, len(children), size)):
            for child in turn:
                child.send("build", child.case, device, threads)
            for child in turn:
                child.measured |= child.receive() or {}
        for i in range(0, len(children), together):
            log(f"warming up: {', '.join(c.case.name for c in children[i : i + together])}")
            for child in children[i : i + together]:
                child.send("warm")
            for child in children[i : i + together]:
                child.measured |= child.receive() or {}
        for repeat in range(repeats):
            first = repeat % max(1, len(children))  # no case is always first
            for child in children[first:] + children[:first]:
                answer = child.ask("run", steps)
                if answer is not None:
                    child.times.append(1000 * answer["seconds"] / steps)
                    child.measured["loss"] = answer["loss"]
                    peak = child.ask("peak")
                    if peak is None:
                        continue
                    child.measured["peak_bytes"] = peak["bytes"]
                    log(f"{child.case.name}: {child.times[-1]:.1f} ms per step")
            keep([child.row for child in children])
    finally:
        for child in children:
            if child.failed is None:
                child.end()
    return [child.row for child in children]


def side_by_side(cases: list[Case], device: torch.device, threads: int | None) -> int:
    """How many of these cases may compile and warm up at once, at least one.

    On a CPU as many as have cores of their own, on a GPU one per core; and no more than fit the
    free memory, where the weights, gradients and moments of all of them stay.
    """
    busy = (threads or torch.get_num_threads()) if device.type == "cpu" else 1
    many, room = min(len(cases), cores() // busy), free(device)
    if many <= 1 or room is None:
        return 1
    kind, stay, more = "cuda" if device.type == "cuda" else "cpu", 0, 1
    for case in cases:
        recipe = planning.recipe(case.rung, case.protocol, batch=case.batch)
        backend = parse_backend(case.path)
        try:
            held = memory.predict(case.config, backend, case.micro_batch, kind, recipe)
        except Exception:  # of the user's rule: the case's own process reports it
            return 1
        mine = sum(held[part] for part in ("weights", "gradients", "moments", "context"))
        stay += mine
        more = max(more, int(margin(backend, kind) * held["step"]) - mine)
    return max(1, min(many, (room - stay) // more))


def result_row(case: Case, measured: dict, times: list[float], failed: str | None = None) -> dict:
    """A case's row. measured: what its process reported; times: ms per step, one per repeat."""
    row = {
        "rung": case.rung,
        "rule": case.rule,
        "values": case.values,
        "path": case.path,
        "choices": asdict(parse_backend(case.path)),
        "batch": case.batch,
        "micro_batch": case.micro_batch,
        "failed": failed,
    }
    if failed is not None:
        return row
    tokens, ms = case.batch * case.config.seq_len, median(times)
    row |= {"tokens_per_step": tokens, **measured, "step_ms": times, "step_ms_median": ms}
    rate, gpu = 1000 * tokens / ms, find(measured["device"])
    mfu = None if gpu is None else rate * measured["flops_per_token"] / gpu.flops
    if not math.isfinite(row.get("loss", 0.0)):  # of a rule of one's own: JSON has no NaN
        row["loss"] = None
    return row | {"tokens_per_second": rate, "mfu": mfu}


def ratios(rows: list[dict], base: dict[str, str]) -> list[dict]:
    """Ratios of each row to the row that differs only in the keys of `base`, which has these there.

    base {"path": …}: tokens per second, and peak memory, over those of the base path; {"rule": …,
    "values": …}: the step's time over the base's. Median, least and most over the repeats, paired.
    """
    result = []
    names = ("rung", "rule", "values", "path")
    same = [k for k in (*names, "batch", "micro_batch") if k not in base]
    for row in rows:
        other = next(
            (
                r
                for r in rows
                if all(r[k] == base[k] for k in base)
                and all(r[k] == row[k] for k in same)
                and not r["failed"]
            ),
            None,
        )
        if other is None or other is row or row["failed"]:
            continue
        pairs = list(zip(row["step_ms"], other["step_ms"], strict=True))
        each = [b / a if "path" in base else a / b for a, b in pairs]
        result.append(
            {
                **{k: row[k] for k in names},
                "over": next(iter(base.values())),
                "speed" if "path" in base else "time": median(each),
                "least": min(each),
                "most": max(each),
                "memory": row["peak_bytes"] / other["peak_bytes"],
            }
        )
    return result


def bench(
    rungs: list[str],
    rules: list[str],
    paths: list[str] | None = None,
    *,
    steps: int = 5,
    repeats: int = 3,
    batch: int | None = None,
    micro_batch: int | None = None,
    threads: int | None = None,
    device: str | None = None,
    protocol: str = "clean",
    values: Sequence[str] = ("own",),
    log: Callable[[str], None] = lambda line: None,
) -> dict:
    """Measure rung × rule × values × path; see the module. Raises RRError before it starts any.

    paths: default: on a CPU the reference and the eager one; on a GPU the one that a run takes
    there, in the protocol's precision, so that `rr plan --measured` finds what it plans. The rungs
    are measured one after the other; the cases of a rung compile side by side, as many as have
    cores and memory. batch: windows per step (default: the rung's); micro_batch: windows at once, a
    divisor of it (default: the batch on a GPU, 8 on a CPU). A case that runs out of memory is
    a row whose `failed` says so.
    """
    for name, value in (("steps", steps), ("repeats", repeats)):
        positive(name, value)
    if protocol not in PROTOCOLS:
        raise RRError(f"unknown protocol {protocol!r}: {nearest(protocol, PROTOCOLS)}")
    target = pick_device(device)
    if threads is not None:
        set_threads(threads)
    if not paths and target.type == "cuda":
        exact = planning.recipe(rungs[0], protocol).precision
        usual = default(target, sizes.arm(rungs[0], protocol=protocol))
        paths = [f"{usual}{',' if ':' in usual else ':'}precision={exact}"]
    paths = paths or ["reference", "eager"]
    paths = list(dict.fromkeys(paths))
    for path in paths:
        parse_backend(path).validate(target)
    allow_rule(*values)  # the caller named them
    values = [canonical(each, "values") for each in values]
    by_rung = []
    for rung in map(sizes.canonical_rung, rungs):
        windows = planning.recipe(rung, protocol, batch=batch).batch
        micro = micro_batch
        if micro is None:
            micro = min(windows, 8) if target.type == "cpu" else windows
        positive("micro-batch", micro)
        if windows % micro:
            raise RRError(f"micro-batch must divide the batch: {micro} does not divide {windows}")
        cases = [
            Case(rung, rule, path, windows, micro, protocol, each)
            for rule in rules
            for each in values
            for path in paths
        ]
        by_rung.append(cases)
    for case in itertools.chain(*by_rung):
        _ = case.config  # raises for an unknown rule or an impossible shape
    rows = []
    for cases in by_rung:  # the largest rungs would not fit a GPU together
        rows += measure(
            cases, steps, repeats, device, threads, side_by_side(cases, target, threads), log=log
        )
    if all(row["failed"] for row in rows):
        raise RunFailed(f"no case could be measured: {rows[0]['failed']}")
    return {
        "made_by": made_by(target, next(row["threads"] for row in rows if not row["failed"])),
        "steps": steps,
        "repeats": repeats,
        "rows": rows,
        "over_the_reference": ratios(rows, {"path": "reference"}),
        "over_the_standard": ratios(rows, {"rule": "standard", "values": "own"}),
    }


def made_by(device: torch.device, threads: int) -> dict:
    """What produced the measurements: code, packages, machine."""
    name = device_name(device)
    gpu = find(name)
    return {
        "rr": __version__,
        "git": provenance.git_state(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": f"{sys.platform} {platform.machine()}",
        "device": name,
        "threads": threads,
        "peak_flops": None if gpu is None else gpu.flops,
    }


def _names(row: dict) -> tuple[str, str, str]:
    return row["rung"], arm(row["rule"], row["values"]), row["path"]


def table(result: dict) -> list[tuple[str, ...]]:
    """The rows of `bench` as text, a header first: medians, in brackets the least and most."""
    lines: list[tuple[str, ...]] = [
        ("rung", "rule", "path", "ms per step", "tokens/s", "MFU", "peak memory", "speed", "memory")
    ]
    over = {_names(row): row for row in result["over_the_reference"]}
    for row in result["rows"]:
        names = _names(row)
        if row["failed"]:
            lines.append((*names, row["failed"], *[""] * 5))
            continue
        ratio = over.get(names)
        times = row["step_ms"]
        lines.append(
            (
                *names,
                f"{row['step_ms_median']:.1f} ({min(times):.1f}–{max(times):.1f})",
                f"{row['tokens_per_second']:,.0f}",
                "–" if row["mfu"] is None else f"{100 * row['mfu']:.1f} %",
                f"{row['peak_bytes'] / 2**30:.2f} GiB",
                ""
                if ratio is None
                else f"{ratio['speed']:.2f}× ({ratio['least']:.2f}–{ratio['most']:.2f})",
                "" if ratio is None else f"{ratio['memory']:.2f}×",
            )
        )
    return lines
