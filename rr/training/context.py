"""What a run settles before its first step: tokens, settings, run.json."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .. import io
from ..config import PRECISIONS, RRError, Run, RunFailed, positive
from ..data import batches
from ..data.corpus import Tokens, open_corpus
from ..data.tokenizer import FILES
from ..model.ladder import count, other_size, published_params
from . import backend, checkpoint, memory_fit, provenance
from .compile_check import CompiledWrong
from .device import (
    check_device,
    check_threads,
    device_name,
    pick_device,
    prepare_device,
    resolve_precision,
)
from .distributed import World, check_strategy
from .loggers import check_loggers, named
from .request import Request
from .run_folder import specification, tokenizer_sha256
from .save_interval import check_interval

Log = Callable[[str], None]


def check_request(request: Request, here: bool = True) -> None:
    """Raise RRError for what no run can be asked for.

    here: the run is computed by this machine, whose device and loggers have to exist.
    """
    if here:
        pick_device(request.device)
    else:
        check_device(request.device or "auto")
    if request.threads is not None:
        check_threads(request.threads)
    if request.backend is not None:
        backend.parse_backend(request.backend)
    if request.micro_batch is not None:
        positive("micro-batch", request.micro_batch)
    check_interval(request.save_every)
    check_strategy(request.parallel or "ddp")
    check_loggers(named(request.charts), here)


@dataclass(frozen=True)
class Settings:
    """The settings of a run, which it keeps from its first checkpoint on; run.json records them."""

    threads: int
    backend_name: str  # with its options, as `backend.parse_backend` reads it
    precision: str
    micro_batch: int  # windows that a process takes at once
    reason: str  # why this backend

    @property
    def backend(self) -> backend.Backend:
        """What `backend_name` names."""
        return backend.parse_backend(self.backend_name)


@dataclass(frozen=True)
class Context:
    """What a run trains with: this process's device, its world, the tokens and the settings.

    request: what was asked for. resumed: whether the run has a checkpoint.
    """

    device: torch.device
    world: World
    tokens: Tokens
    text: np.ndarray | Tensor  # the training stream: on the GPU, where it fits there
    settings: Settings
    request: Request
    resumed: bool


def tokens_of(run: Run, cache: str | Path | None, log: Log) -> Tokens:
    """The run's corpus, tokenised; RRError where it has changed since the run was planned."""
    tokens = open_corpus(
        run.source.get("corpus", run.corpus),
        run.source.get("tokenizer"),
        split="tokens" if run.protocol == "paper" else "documents",
        min_tokens=run.model.seq_len + 2,
        cache=cache,
        log=log,
    )
    if tokens.identity != {"corpus": run.corpus, "tokenizer": run.tokenizer}:
        raise RRError(
            f"{tokens.name} or its tokenizer has changed since the run was planned: plan again"
        )
    if tokens.vocab_size != run.model.vocab_size:
        raise RRError(
            f"tokenizer {tokens.tokenizer_name} has {tokens.vocab_size} tokens, "
            f"the run was planned with {run.model.vocab_size}"
        )
    return tokens


def prepare(
    run: Run,
    folder: Path,
    tokens: Tokens,
    device: torch.device,
    request: Request,
    world: World,
    log: Log,
) -> Context:
    """Settle what a run trains with and write its run.json. Sets torch's threads.

    A run that has a checkpoint keeps the settings in its run.json, except where it goes from a CPU
    to a GPU or back. What was chosen is logged, and so is what the request asks for and the run
    does not have. Raises RRError where the run does not fit or cannot be continued here, RunFailed
    where run.json is corrupt, or missing beside checkpoints.
    """
    text = batches.on_device(tokens.train, device)  # before the free memory is asked for
    settings, resumed = world.agree(
        lambda: _settle(run, folder, tokens, device, request, world, log)
    )
    prepare_device(device, settings.threads)
    return Context(device, world, tokens, text, settings, request, resumed)


def without_compiler(
    run: Run, folder: Path, context: Context, error: CompiledWrong, log: Log
) -> Context:
    """The context of a run whose default backend compiles its model wrongly here; logged, recorded.

    Raises RRError where the backend was asked for, and where the run has trained with it: it would
    not be the same run.
    """
    settings, device, world = context.settings, context.device, context.world
    if context.resumed:
        raise RRError(
            f"run {folder.name} trains with backend {settings.backend_name}, and {error}: resume "
            "it with the version of torch in its run.json, or start it again in another --out"
        )
    if settings.reason == backend.ASKED_FOR:
        raise RRError(
            f"--backend {settings.backend_name}: {error}; use --backend {backend.UNCOMPILED}"
        )

    def settle() -> Settings:
        micro_batch, name = memory_fit.choose(
            run,
            device,
            context.request.micro_batch,
            None,
            backend.UNCOMPILED,
            world,
            log,
        )
        log(f"{error}; selected backend {name}")
        record = io.read_json(folder / "run.json")
        record["provenance"] |= {
            "code_path": name,
            "code_path_reason": str(error),
            "micro_batch": micro_batch,
        }
        io.write_record(folder / "run.json", record)
        return replace(settings, backend_name=name, reason=str(error), micro_batch=micro_batch)

    return replace(context, settings=world.agree(settle))


def _settle(
    run: Run,
    folder: Path,
    tokens: Tokens,
    device: torch.device,
    request: Request,
    world: World,
    log: Log,
) -> tuple[Settings, bool]:
    """`prepare` in the process that writes: the settings, and whether the run has a checkpoint."""
    path = folder / "run.json"
    started = bool(checkpoint.Checkpoints(folder, folder.name).steps())
    if started and not path.exists():
        raise RunFailed(
            f"{path} is missing beside its checkpoints, which cannot be used without it: restore "
            f"it, or remove {folder} to start again"
        )
    record = io.read_sealed(path) if path.exists() else {}
    if record and specification(record, folder).id != run.id:
        raise RRError(f"{path} describes another run: choose another --out")
    if not started:
        return _begin(run, folder, tokens, device, request, world, log), False
    recorded = _recorded(record, path)
    if recorded["corpus_sha256"] != tokens.sha256:
        raise RRError(
            f"run {folder.name} was started on other tokens: resume it with the same corpus"
        )
    settings = _resumed(run, recorded, device, request, world, log)
    changed = recorded | _changes(recorded, settings, device, world, log)
    if changed != recorded:
        io.write_record(path, {**record, "provenance": changed})
    for name in _keep_tokenizer(folder, tokens):
        log(f"{name} is corrupt or missing: written again")
    return settings, True


def _begin(
    run: Run,
    folder: Path,
    tokens: Tokens,
    device: torch.device,
    request: Request,
    world: World,
    log: Log,
) -> Settings:
    """The settings of a new run, written to its run.json."""
    _check_disk(run, folder)
    settings = _chosen(run, device, request, world, log)
    _keep_tokenizer(folder, tokens)
    made_by = provenance.provenance(device) | {
        "threads": settings.threads,
        "precision": settings.precision,
        "micro_batch": settings.micro_batch,
        "code_path": settings.backend_name,
        "code_path_reason": settings.reason,
        "processes": world.size,
        "parallel": world.strategy,
        "corpus_sha256": tokens.sha256,
        "tokenizer_sha256": tokenizer_sha256(folder),
        "params": count(run.model),
    }
    if line := other_size(run):
        made_by["published_params"] = published_params(run)
        log(line)
    specified = {"id": folder.name, "run": run.spec(), "source": run.source}
    io.write_record(folder / "run.json", {**specified, "provenance": made_by})
    return settings


def _chosen(run: Run, device: torch.device, request: Request, world: World, log: Log) -> Settings:
    """The settings of a new run: what was asked for, else what fits, which is logged."""
    threads = prepare_device(device, request.threads)
    wanted = run.recipe.precision
    precision = resolve_precision(device, wanted)
    if precision != wanted:
        scaled = " with loss scaling" if precision == "fp16" else ""
        log(f"{device_name(device)} has no {wanted}: using {precision}{scaled}")
    first, reason = backend.of_run(request.backend, device, run, world, log)
    micro_batch, name = memory_fit.choose(
        run, device, request.micro_batch, request.backend, first, world, log
    )
    if name != first:
        reason = f"backend {first} does not fit the memory"
    return Settings(threads, name, precision, micro_batch, reason)


def _resumed(
    run: Run, recorded: dict, device: torch.device, request: Request, world: World, log: Log
) -> Settings:
    """The recorded settings, checked against this machine; chosen anew on another kind of device.

    A run goes from a CPU to a GPU or back only where the device was asked for.
    """
    threads = recorded["threads"]
    if request.threads not in (None, threads):
        log(f"the run keeps the {threads} threads it was started with")
    if _device_type(recorded["device"]) != device.type:
        if request.device in (None, "auto"):
            raise RRError(
                f"run {run.id} was started on {recorded['device']}, not on {device_name(device)}: "
                f"resume it there, or continue it here, not bit for bit, with --device "
                f"{device.type}"
            )
        return _chosen(run, device, replace(request, threads=threads), world, log)
    settings = Settings(
        threads,
        recorded["code_path"],
        recorded["precision"],
        recorded["micro_batch"],
        recorded.get("code_path_reason", "not recorded"),
    )
    if request.backend and backend.parse_backend(request.backend) != settings.backend:
        log(f"the run keeps the backend {settings.backend_name} it was started with")
    settings.backend.validate(device, run.model, world)
    prepare_device(device, threads)
    return settings


def _changes(
    recorded: dict, settings: Settings, device: torch.device, world: World, log: Log
) -> dict:
    """What changes in the provenance of a resumed run: on another GPU, with other processes, …"""
    changes = []
    if recorded["device"] != device_name(device):
        changes.append(f"on {recorded['device']} and resumes on {device_name(device)}")
    here = provenance.cpu() if device.type == "cpu" else {}  # on a GPU it computes no sums
    for name, now in here.items():
        if recorded.get(name, now) != now:
            changes.append(f"on {recorded[name]} and resumes on {now}")
    processes = recorded.get("processes", 1)
    if (processes, recorded.get("parallel")) != (world.size, world.strategy):
        changes.append(f"by {processes} processes and resumes with {world.size}")
    for change in changes:
        log(
            f"the run was started {change}: the same batches in the same order, but sums that may "
            "differ in their last bits"
        )
    changed = {
        "device": device_name(device),
        "code_path": settings.backend_name,
        "code_path_reason": settings.reason,
        "micro_batch": settings.micro_batch,
        "precision": settings.precision,
        **here,
    }
    if changes:
        changed["bit_exact"] = False
    return changed


def _device_type(name: str) -> str:
    """The type of the device that a run recorded: a GPU by its model, others by their type."""
    return name if name in ("cpu", "mps") else "cuda"


def _recorded(record: dict, path: Path) -> dict:
    """The provenance in run.json, which holds every setting; RunFailed where one is corrupt."""
    try:
        recorded = record["provenance"]
        backend.parse_backend(recorded["code_path"])
        positive("threads", recorded["threads"])
        positive("micro_batch", recorded["micro_batch"])
        if recorded["precision"] not in PRECISIONS:
            raise RRError(f"unknown precision {recorded['precision']!r}")
        if missing := {"device", "corpus_sha256"} - recorded.keys():
            raise RRError(f"{missing.pop()} is missing")
        return recorded
    except (RRError, KeyError, TypeError) as error:
        raise RunFailed(f"{path} is corrupt or of another version ({error})") from None


def _check_disk(run: Run, folder: Path) -> None:
    """Raise RRError unless a run's checkpoints fit the free disk, before its first step."""
    need = checkpoint.disk_bytes(run)
    free = shutil.disk_usage(folder).free
    if need > free:
        raise RRError(
            f"{folder} needs {need / 1e9:.2g} GB for checkpoints, {free / 1e9:.2g} GB are free: "
            "make space, or choose another --out"
        )


def _keep_tokenizer(folder: Path, tokens: Tokens) -> list[Path]:
    """Copy the tokenizer into the run's folder; returns the files that were missing or corrupt."""
    copy, written = folder / "tokenizer", []
    copy.mkdir(exist_ok=True)
    for name in FILES:
        data = (tokens.vocabulary.folder / name).read_bytes()
        if not (copy / name).is_file() or (copy / name).read_bytes() != data:
            io.write_atomic(copy / name, data)
            written.append(copy / name)
    return written
