"""What a machine lacks, found before anything is paid for.

Every check is one that a sweep would fail at, hours later: the disk that fills, the compiler that
is missing, the text that no network brings, the evaluation that does not fit. The last one takes
two real steps of the largest run, evaluates, saves and reads what it saved.
"""

import contextlib
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from rr.data.corpus import Tokens, open_corpus
from rr.data.hub import require_hub
from rr.errors import RRError, install
from rr.model.costs import count, flops_per_token
from rr.options import Request
from rr.specs import ModelConfig, Run
from rr.training import memory_fit
from rr.training.backend import compile_error, has_compiler
from rr.training.context import Context
from rr.training.device import cores, device_name, let_go, pick_device, resolve_precision
from rr.training.distributed import World
from rr.training.progress import Progress
from rr.training.trainer import Training

from .budget import disk_of, staying

SLOW = 3e12  # FLOPs of two steps above which a CPU would take more than a minute or two
HUB = ("tinystories", "fineweb-edu")
MARKS = {True: "✓", False: "✗", None: "–"}


@dataclass(frozen=True)
class Check:
    """One line of the table.

    good: True, False, or None where it could not be checked here, or decides speed alone. todo:
    what to do about it. stops: whether a sweep would fail.
    """

    name: str
    good: bool | None
    found: str
    todo: str = ""
    stops: bool = False


def examine(
    runs: Sequence[Run],
    out: str | Path,
    device: str | None = None,
    request: Request | None = None,
    steps: bool = True,
    say: Callable[[str], None] = lambda line: None,
) -> list[Check]:
    """Check this machine for `runs` in the folder `out`; nothing is left in it.

    device: "cpu", "cuda" or None, as `rr.train` takes it. request: how the runs will be computed.
    steps: whether the largest run takes two steps, which needs up to two minutes. say: called with
    each line of progress.
    """
    picked = pick_device(device)
    largest = max(runs, key=lambda run: count(run.model))
    checks = [_software(picked), _device(picked), _compiler(picked), *_kernels(runs, picked)]
    checks += [
        _disk(runs, Path(out), staying(request or Request())),
        _memory(),
        _cores(),
        *_texts(runs),
    ]
    if steps and not any(check.stops for check in checks):
        checks.append(_steps(largest, Path(out), picked, request or Request(), say))
        let_go(picked)  # for the runs, which are other processes
    return checks


def _software(device: torch.device) -> Check:
    words = f"Python {platform.python_version()}, torch {torch.__version__}"
    if device.type == "cuda":
        words += f" for CUDA {torch.version.cuda}, driver {_driver()}"
    return Check("software", True, words)


def _driver() -> str:
    ask = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return (
            subprocess.run(ask, capture_output=True, text=True).stdout.split("\n")[0] or "unknown"
        )
    except OSError:
        return "unknown"


def _device(device: torch.device) -> Check:
    if device.type != "cuda":
        return Check("GPU", None, f"none: {device_name(device)}; what a GPU needs is not checked")
    free, total = torch.cuda.mem_get_info(device)
    good = free > 0.9 * total
    words = f"{device_name(device)}, {free / 1e9:.1f} of {total / 1e9:.1f} GB free"
    return Check("GPU", good or None, words, "" if good else "another process holds the rest")


def _compiler(device: torch.device) -> Check:
    why = compile_error(device.type)
    if why is None:
        return Check("compiler", True, "a block compiles")
    todo = "" if has_compiler() else "apt install gcc python3-dev"
    slower = "runs take a slower path" if device.type == "cuda" else "long runs take longer"
    return Check("compiler", None if device.type == "cpu" else False, f"{why}: {slower}", todo)


def _kernels(runs: Sequence[Run], device: torch.device) -> list[Check]:
    """The attention kernel that each shape of head gets, on a GPU."""
    if device.type != "cuda":
        return []
    shapes = {}
    for run in runs:
        precision = resolve_precision(device, run.recipe.precision)
        shapes[run.model.head_dim, run.model.kv_heads == run.model.n_head, precision] = run
    lines = [
        f"{run.rung} {run.rule} (heads of {size}, {precision}): {_kernel(run.model, precision)}"
        for (size, _, precision), run in sorted(shapes.items())
    ]
    slow = [line for line in lines if line.endswith("math")]
    todo = "these store the (T, T) scores: slower, and more memory than predicted" if slow else ""
    return [Check("attention", not slow, "; ".join(slow or lines), todo)]


def _kernel(shape: ModelConfig, precision: str) -> str:
    """The first of torch's kernels that takes the padded heads."""
    from torch.backends.cuda import (
        SDPAParams,
        can_use_cudnn_attention,
        can_use_efficient_attention,
        can_use_flash_attention,
    )

    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    size = -(-shape.head_dim // 8) * 8
    q, k = (
        torch.empty(1, heads, shape.seq_len, size, dtype=dtype, device="cuda")
        for heads in (shape.n_head, shape.kv_heads)
    )
    grouped = shape.kv_heads != shape.n_head
    given = SDPAParams(q, k, k, None, 0.0, True, grouped)
    for name, can_use in (
        ("cudnn", can_use_cudnn_attention),
        ("flash", can_use_flash_attention),
        ("efficient", can_use_efficient_attention),
    ):
        if can_use(given):
            return name
    assert scaled_dot_product_attention(q, k, k, enable_gqa=grouped).shape == q.shape
    return "math"


def on_disk(runs: Iterable[Run], out: Path) -> int:
    """Bytes that the runs have in `out` already, from an earlier start."""
    held = 0
    for run in runs:
        for top, _, names in os.walk(out / run.id):
            for name in names:
                with contextlib.suppress(FileNotFoundError):  # another process trains it
                    held += os.path.getsize(os.path.join(top, name))
    return held


def _disk(runs: Sequence[Run], out: Path, stay: int) -> Check:
    need = max(0, disk_of(runs, stay=stay) - on_disk(runs, out))
    place = next(path for path in (out.resolve(), *out.resolve().parents) if path.exists())
    free = shutil.disk_usage(place).free
    words = f"{need / 1e9:.3g} GB needed for {len(runs)} runs, {free / 1e9:.3g} GB free in {place}"
    todo = "make space, choose another --out, or plan fewer runs"
    return Check("disk", need <= free, words, "" if need <= free else todo, stops=need > free)


def _memory() -> Check:
    free = memory_fit.free_ram()
    words = "unknown" if free is None else f"{free / 1e9:.1f} GB free"
    return Check("RAM", None if free is None else True, words)


def _cores() -> Check:
    """A container's quota may be less than the cores that it sees."""
    return Check("cores", True, f"{cores()} may be used")


def _texts(runs: Sequence[Run]) -> list[Check]:
    """Each text is here, or the hub that has it answers."""
    checks = []
    for name in dict.fromkeys(str(run.source.get("corpus", run.corpus)) for run in runs):
        if name == "fables":
            checks.append(Check("text", True, "fables ships with rr"))
        elif name.startswith("file:"):
            exists = Path(name.removeprefix("file:")).exists()
            todo = "" if exists else "give --corpus file:PATH of a text on this machine"
            words = f"{name} is {'here' if exists else 'missing'}"
            checks.append(Check("text", exists, words, todo, stops=not exists))
        else:
            checks.append(_hub(name))
    return checks


def _hub(name: str) -> Check:
    try:
        require_hub(name, "give --corpus file:PATH, or fables")
    except ImportError:
        todo = install("hub")
        return Check("text", False, f"{name} needs datasets", todo, stops=True)
    except RRError as error:
        words, _, todo = str(error).rpartition(": ")
        return Check("text", False, words, todo, stops=True)
    return Check("text", True, f"{name}: the hub answers, or its cache is used")


def _steps(
    run: Run, out: Path, device: torch.device, request: Request, say: Callable[[str], None]
) -> Check:
    """Two steps, an evaluation, a checkpoint saved and read, of the largest run."""
    name = f"{run.rung} {run.rule}"
    tokens = 2 * run.recipe.batch * run.model.seq_len
    if device.type == "cpu" and flops_per_token(run.model) * tokens > SLOW:
        return Check("two steps", None, f"{name} would take minutes on a CPU: not tried")
    short = replace(run.recipe, steps=2, warmup=1, budgets=None, eval_batches=1)
    trial = replace(run, recipe=short)
    created = [path for path in (out, *out.parents) if not path.exists()]
    began = time.monotonic()
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=out) as folder:
            home = Path(folder) / trial.id
            home.mkdir()
            given = replace(request, device=device.type, charts=None)
            context = Context(trial, home, _tokens(trial), given, World(device=device), say)
            training = Training(context, Progress(say))
            training.go()
            weights = training.checkpoints.weights(say)
            assert weights is not None and len(weights) > 0
            chosen = context.settings
    except (RRError, RuntimeError, OSError) as error:
        why = " ".join(str(error).split())[:300] or type(error).__name__
        return Check("two steps", False, f"{name}: {why}", "mend this first", stops=True)
    finally:
        with contextlib.suppress(OSError):  # not made, or no longer empty
            for path in created:
                path.rmdir()
    seconds = time.monotonic() - began

    words = (
        f"{name}, an evaluation, saved and read: {seconds:.0f} s (backend {chosen.backend_name}, "
    )
    words += f"{chosen.micro_batch} windows at once)"
    if "wrongly" in chosen.reason:
        return Check(
            "two steps", False, words, f"{chosen.reason}: install another version of torch"
        )
    return Check("two steps", True, words)


def _tokens(run: Run) -> Tokens:
    """The run's text where it ships with rr; else tokens of its vocabulary that are drawn."""
    ships = open_corpus("fables", log=lambda line: None)
    if run.source.get("corpus", run.corpus) == "fables":
        return open_corpus("fables", run.source.get("tokenizer"), log=lambda line: None)
    draws = np.random.RandomState(0)
    length = (run.recipe.batch + 2) * run.model.seq_len
    train, valid = (
        draws.randint(run.model.vocab_size, size=length).astype(np.uint32) for _ in range(2)
    )
    return replace(ships, name="drawn", train=train, valid=valid)


def rows(checks: Sequence[Check]) -> list[tuple[str, str, str]]:
    """The table: mark, name, what was found and what to do."""
    return [
        (MARKS[check.good], check.name, check.found + (f": {check.todo}" if check.todo else ""))
        for check in checks
    ]
