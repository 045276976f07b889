"""Whether a run fits the memory that is free here, and what it can do to fit.

    predicted peak of a step or an evaluation (`.memory`) · margin(path) + libraries ≤ free

held before anything is allocated: a system that runs out of RAM kills the process without a word.
Where twice a cheap estimate is free nothing is predicted, which takes seconds.
"""

import bisect
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from ..config import ModelConfig, RRError, Run
from ..model.ladder import count
from .backend import Backend, parse_backend
from .distributed import World

EASY = 8  # windows at once below which recomputation is tried first: small products are slow
GIB = 2**30
LIBRARIES = 300 * 2**20  # bytes of code that a process loads with its first step, on a CPU
# Environment variables by which a sweep divides the memory among its jobs.
RAM_LIMIT = "RR_RAM_LIMIT"  # bytes of RAM that this run takes at most
GPU_SHARE = "RR_GPU_SHARE"  # share of a GPU's memory that this run takes at most


def margin(backend: Backend, device: str) -> float:
    """What a process may hold of its predicted peak: allocators keep freed blocks.

    Recorded on CPUs: 1.07 to 1.16, and up to 1.29 where all logits are made at once
    (data/measured/08_make_it_fast/memory.json). Not measured on a GPU, whose allocator is torch's.
    """
    if device == "cuda":
        return 1.08
    return 1.3 if backend.loss == "whole" else 1.2


# -- what is free -------------------------------------------------------------------------------


def free(device: torch.device) -> int | None:
    """Bytes that this process can still take on the device, or None where nothing tells.

    One of several jobs of a sweep gets its share at most.
    """
    if device.type != "cuda":
        return free_ram()
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    unused, total = torch.cuda.mem_get_info(device)
    share = int(float(os.environ.get(GPU_SHARE, 1)) * total)
    return min(unused + kept, share)


def free_ram(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes of RAM to be had, by the machine, each control group of this process, and RAM_LIMIT.

    Page cache counts as free: it is given up for whoever needs memory. Swap does not count.
    """
    found = list(_group_room(proc, groups))
    if RAM_LIMIT in os.environ:
        found.append(int(os.environ[RAM_LIMIT]))
    try:
        lines = (line.split() for line in (proc / "meminfo").read_text().splitlines())
        found.append(next(1024 * int(line[1]) for line in lines if line[0] == "MemAvailable:"))
    except (OSError, StopIteration):  # not Linux: at most the whole of it
        if "SC_PHYS_PAGES" in os.sysconf_names:
            found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return max(0, min(found)) if found else None


def _group_room(proc: Path, groups: Path):
    """Limit less use of each memory control group of this process that has a limit, bytes.

    Version 2 and 1. In a container its own group is the root of what is mounted, under whatever
    name the process has: groups that are not there are passed over.
    """
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, kinds, name = line.split(":", 2)
        if kinds and "memory" not in kinds.split(","):
            continue
        top = groups / "memory" if kinds else groups
        most, used, cache = (
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_{}_file") if kinds
            else ("memory.max", "memory.current", "{}_file")
        )  # fmt: skip
        place = top / name.strip("/")
        for group in (place, *place.parents):
            try:
                limit = int((group / most).read_text())  # "max": none
                held = int((group / used).read_text())
                stat = dict(s.split() for s in (group / "memory.stat").read_text().splitlines())
            except (OSError, ValueError):
                pass
            else:
                kept = sum(int(stat.get(cache.format(age), 0)) for age in ("active", "inactive"))
                yield limit - held + kept
            if group == top:
                break


# -- what is needed -----------------------------------------------------------------------------


def estimate(config: ModelConfig, windows: int) -> int:
    """Bytes of a training step, cheaply and on the high side: every registered rule needs less.

    Weights, gradients, moments and copies; what blocks hold, some rules of all blocks before them;
    all logits. Tested against `memory.predict`.
    """
    tokens = windows * config.seq_len
    block = 4 * (40 * config.d_model + 6 * config.d_ff) * (1 + config.depth / 4)
    return int(32 * count(config) + tokens * (config.depth * block + 16 * config.padded_vocab))


def needs(
    run: Run, micro: int, spec: str, device: torch.device, world: World, spare: bool = True
) -> int:
    """Bytes on the device of `micro` windows at once along a path; with what may come on top."""
    from . import memory  # takes a second

    backend = replace(parse_backend(spec), precision=run.recipe.precision)
    kind = "cuda" if device.type == "cuda" else "cpu"
    held = memory.predict(run, backend, micro, kind)["total"]
    if spare:
        held = held * margin(backend, kind) + LIBRARIES * (kind == "cpu")
    if world.strategy == "ddp":
        held += 4 * count(run.model)  # buckets of gradients
    return int(held) * (1 if kind == "cuda" else _beside())


def _beside() -> int:
    """Processes of this run on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", 1))


# -- what to do ---------------------------------------------------------------------------------


def choose(
    run: Run, device: torch.device, micro: int | None, path: str | None, usual: str, world: World,
    say: Callable[[str], None],
) -> tuple[int, str]:  # fmt: skip
    """Micro-batch and path that a run begins with.

    micro, path: what was asked for, which stays; usual: the path in its place. What was not asked
    for is the whole batch and the usual path where they fit, else the first that fits of: the
    micro-batch halved, each block computed again, both. That is said. RRError, one line, where
    nothing fits. Shards (fsdp) are not predicted.
    """
    most = micro or run.recipe.batch // world.size
    _check_host(run, device, world)
    have = free(device)
    if have is None or world.strategy == "fsdp" or _surely_fits(run, most, device, have, world):
        return most, usual
    say(f"predicting the memory of a step of {count(run.model):,} parameters")
    seen: dict[tuple[int, str], int] = {}

    def need(way: tuple[int, str]) -> int:
        if way not in seen:
            seen[way] = needs(run, *way, device, world)
        return seen[way]

    def fitting(micro: int | None, path: str | None) -> tuple[int, str] | None:
        """The first way that fits; of equal paths, fewer windows need less."""
        specs = [usual] if path else dict.fromkeys([usual, recomputing(usual)])
        for spec in specs:
            few = 1 if spec == [*specs][-1] else min(EASY, most)
            ways = [(n, spec) for n in ([most] if micro else halvings(most)) if n >= few]
            if need(ways[0]) <= have:
                return ways[0]
            at = bisect.bisect_left(ways, True, lo=1, key=lambda way: need(way) <= have)
            if at < len(ways):
                return ways[at]
        return None

    found = fitting(micro, path)
    first = f"{_ways(most, usual)} may need {need((most, usual)) / GIB:.1f} GiB of memory"
    there = f"{have / GIB:.1f} GiB are free"
    if found == (most, usual):
        return found
    if found:
        say(f"{first}, {there}: chosen {_ways(*found)}, {need(found) / GIB:.1f} GiB; gradients "
            f"are accumulated, the batch stays {run.recipe.batch}")  # fmt: skip
        return found
    named = f"rung {run.rung}, rule {run.rule}: {first}, {there}"
    if (micro or path) and (other := fitting(None, None)):
        raise RRError(
            f"{named}; {_ways(*other)} need {need(other) / GIB:.1f} GiB: give "
            f"--micro-batch {other[0]} --path {other[1]}"
        )
    least = min(seen, key=seen.get)
    machine = "a GPU" if device.type == "cuda" else "a machine"
    raise RRError(
        f"{named}; the least, {_ways(*least)}, is {seen[least] / GIB:.1f} GiB: use {machine} "
        "with that much free, or a smaller rung"
    )


def check(
    run: Run, device: torch.device, micro: int, path: str, world: World, say: Callable[[str], None]
) -> None:
    """Whether a run that goes on, as it was begun, still fits; a line where it may not.

    RRError where the prediction alone, without its margin, is more RAM than is free. On a GPU too
    much memory is an error that halves the micro-batch, so there it is a line alone.
    """
    _check_host(run, device, world)
    have = free(device)
    if have is None or world.strategy == "fsdp" or _surely_fits(run, micro, device, have, world):
        return
    need = needs(run, micro, path, device, world)
    if need <= have:
        return
    line = (
        f"{_ways(micro, path)}, as the run was begun, may need {need / GIB:.1f} GiB of memory, "
        f"{have / GIB:.1f} GiB are free"
    )
    sure = needs(run, micro, path, device, world, spare=False)
    if device.type != "cuda" and sure > have:
        raise RRError(f"{line}: free memory, or use a machine with more; what was saved stands")
    say(line)


def halvings(n: int) -> Sequence[int]:
    """n, its half, rounded up, and so on to 1."""
    return [n, *halvings(-(-n // 2))] if n > 1 else [1]


def recomputing(spec: str) -> str:
    """The path with each block computed again in the backward pass."""
    if parse_backend(spec).recompute == "layer":
        return spec
    return f"{spec}{',' if ':' in spec else ':'}recompute=layer"


def _ways(micro: int, path: str) -> str:
    return f"{micro} window{'s' * (micro > 1)} at once along {path}"


def _surely_fits(run: Run, micro: int, device: torch.device, have: int, world: World) -> bool:
    """Whether twice the estimate is free: nothing needs to be predicted, a rule of one's own too.

    A scored batch is the whole one, without gradients: an eighth of what a step holds is much.
    """
    windows = max(micro, run.recipe.batch // 8)
    code = GIB if device.type == "cuda" else LIBRARIES
    return (2 * estimate(run.model, windows) + code) * _beside() <= have


def _check_host(run: Run, device: torch.device, world: World) -> None:
    """RRError where the RAM beside a GPU cannot hold the model, which is built there.

    fsdp: every process holds a whole checkpoint there, too, when one is saved.
    """
    have = free_ram() if device.type == "cuda" else None
    need = 1.1 * (12 if world.strategy == "fsdp" else 4) * count(run.model) * _beside()
    if have is not None and need > have:
        raise RRError(
            f"rung {run.rung}, rule {run.rule}: {need / GIB:.1f} GiB of RAM are needed beside the "
            f"GPU to build the model, {have / GIB:.1f} GiB are free: use a machine with more RAM"
        )
