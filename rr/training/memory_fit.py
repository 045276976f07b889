"""Check whether a run fits the free memory, and select settings with which it does.

    predicted peak of a step or an evaluation (`.memory`) · margin(backend) + libraries ≤ free

Checked before anything is allocated, because a system that runs out of RAM kills the process
without a message. The prediction takes seconds; it is skipped where twice a cheap estimate is free.
"""

import bisect
import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from ..errors import RRError, number_of
from ..model.costs import count
from ..specs import ModelConfig, Run
from .backend import Backend, parse_backend
from .device import GPU_SHARE, resolve_precision
from .distributed import World

GIB = 2**30
LIBRARIES = 300 * 2**20  # bytes of code that a process loads with its first step, on a CPU
RAM_LIMIT = "RR_RAM_LIMIT"  # environment variable: bytes of RAM that this run takes at most


def margin(backend: Backend, device: str) -> float:
    """Safety factor on the predicted peak, for freed blocks that allocators keep.

    Measured on CPUs: 1.07 to 1.29, and up to 1.41 along compiled paths
    (data/measured/08_make_it_fast/memory.json); on an H200, without the driver's memory, 0.80 to
    1.07 (data/measured/gpu_h200, gpu_check).
    """
    if device == "cuda":
        return 1.08
    return 1.45 if backend.compile != "none" else 1.3


# -- what is free -------------------------------------------------------------------------------


def free(device: torch.device) -> int | None:
    """Free bytes on the device, or None where they cannot be determined.

    One of several jobs of a sweep gets its share at most.
    """
    if device.type != "cuda":
        return free_ram()
    held = torch.cuda.memory_allocated(device)
    cached = torch.cuda.memory_reserved(device) - held
    unused, total = torch.cuda.mem_get_info(device)
    share = int(number_of(GPU_SHARE, 1) * total)
    return max(0, min(unused + cached, share - held))


def free_ram(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Free bytes of RAM: the least of the machine's, of each control group's, and of RAM_LIMIT.

    Page cache counts as free, because the kernel gives it up on demand; swap does not.
    """
    rooms = list(_group_room(proc, groups))
    if RAM_LIMIT in os.environ:
        rooms.append(int(number_of(RAM_LIMIT)))
    try:
        lines = (line.split() for line in (proc / "meminfo").read_text().splitlines())
        rooms.append(next(1024 * int(line[1]) for line in lines if line[0] == "MemAvailable:"))
    except (OSError, StopIteration):  # not Linux: at most the whole of it
        if "SC_PHYS_PAGES" in os.sysconf_names:
            rooms.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return max(0, min(rooms)) if rooms else None


def _group_room(proc: Path, groups: Path):
    """Limit less use of each memory control group of this process that has a limit, bytes.

    Versions 2 and 1. In a container the mounted root is its own group, whatever the name of the
    process's group: groups that do not exist there are skipped.
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
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_{}_file")
            if kinds
            else ("memory.max", "memory.current", "{}_file")
        )
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
    """A cheap upper estimate of the bytes of a training step, for every registered rule.

    Weights, gradients, moments and copies; activations of the blocks, which some rules keep for all
    later blocks; all logits. Tested against `memory.predict`.
    """
    tokens = windows * config.seq_len
    block = 4 * (40 * config.d_model + 6 * config.d_ff) * (1 + config.depth / 4)
    return int(32 * count(config) + tokens * (config.depth * block + 16 * config.padded_vocab))


def needs(run: Run, micro: int, spec: str, device: torch.device, world: World) -> int:
    """Predicted bytes of a step of `micro` windows, including the safety margin."""
    from . import memory  # takes a second

    precision = resolve_precision(device, run.recipe.precision)
    backend = replace(parse_backend(spec), precision=precision)
    kind = "cuda" if device.type == "cuda" else "cpu"
    held = margin(backend, kind) * memory.predict(run, backend, micro, kind)["total"]
    if kind == "cpu":
        held += LIBRARIES
    if world.strategy == "ddp":
        held += 4 * count(run.model)  # buckets of gradients
    return int(held) * (1 if kind == "cuda" else _local_processes())


def _local_processes() -> int:
    """The number of this run's processes on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", 1))


# -- what to do ---------------------------------------------------------------------------------


def choose(
    run: Run,
    device: torch.device,
    micro: int | None,
    asked: str | None,
    first: str,
    world: World,
    say: Callable[[str], None],
) -> tuple[int, str]:
    """The micro-batch and the backend of a new run: the largest micro-batch that fits.

    micro, asked: the micro-batch and the backend that were asked for, which are kept; first: the
    backend to try first. Without `micro` the whole batch, halved until its prediction fits what is
    free; without `asked` then with blocks computed again, too. What differs from the whole batch
    and the first backend is logged. Raises RRError where nothing fits. Shards (fsdp) are not
    predicted; a step that runs out of memory all the same halves its micro-batch (`OptimizerStep`).
    """
    largest = micro or run.recipe.batch // world.size
    room = free(device)
    if room is None or world.strategy == "fsdp" or _surely_fits(run, largest, device, room):
        return largest, first
    say(f"predicting the memory of a step of {count(run.model):,} parameters")

    @functools.cache
    def need(windows: int, spec: str) -> int:
        return needs(run, windows, spec, device, world)

    sizes = [micro] if micro else halvings(largest)
    backends = [first] if asked else fallbacks(first)
    selected = search(sizes, backends, need, room)
    if selected == (largest, first):
        return largest, first
    wish = (
        f"{_in_words(largest, first)} may need {need(largest, first) / GIB:.1f} GiB of memory, "
        f"{room / GIB:.1f} GiB are free"
    )
    if selected is None:
        least = sizes[-1], backends[-1]
        more = ", or leave --micro-batch and --backend to rr" if micro or asked else ""
        raise RRError(
            f"rung {run.rung}, rule {run.rule}: {wish}; the least, {_in_words(*least)}, is "
            f"{need(*least) / GIB:.1f} GiB: free that much, use a smaller rung{more}"
        )
    say(
        f"{wish}: selected {_in_words(*selected)}, {need(*selected) / GIB:.1f} GiB; gradients "
        f"are accumulated, the batch stays {run.recipe.batch}"
    )
    return selected


def search(
    sizes: Sequence[int],
    backends: Sequence[str],
    need: Callable[[int, str], int],
    room: float,
) -> tuple[int, str] | None:
    """The first micro-batch and backend that fit; None where none does.

    sizes: of the micro-batch, falling. backends: in the order in which they are tried. need:
    predicted bytes; fewer windows need less. room: the bytes that are free.
    """
    for spec in backends:
        first = bisect.bisect_left(sizes, True, key=lambda size: need(size, spec) <= room)
        if first < len(sizes):
            return sizes[first], spec
    return None


def fallbacks(first: str) -> list[str]:
    """Backends to try in turn: the first one, then with blocks recomputed."""
    return list(dict.fromkeys([first, recomputing(first)]))


def halvings(n: int) -> Sequence[int]:
    """n, half of it rounded up, and so on to 1."""
    return [n, *halvings(-(-n // 2))] if n > 1 else [1]


def recomputing(spec: str) -> str:
    """The backend with each block computed again in the backward pass."""
    if parse_backend(spec).recompute == "layer":
        return spec
    separator = "," if ":" in spec else ":"
    return f"{spec}{separator}recompute=layer"


def _in_words(micro: int, backend: str) -> str:
    windows = "1 window" if micro == 1 else f"{micro} windows"
    return f"{windows} at once with backend {backend}"


def _surely_fits(run: Run, micro: int, device: torch.device, room: int) -> bool:
    """Whether twice the estimate is free, so that no prediction is needed, even for a user's rule.

    Evaluation scores the whole batch without gradients: an eighth of a step's memory is ample.
    """
    windows = max(micro, run.recipe.batch // 8)
    code = GIB if device.type == "cuda" else LIBRARIES
    return (2 * estimate(run.model, windows) + code) * _local_processes() <= room
