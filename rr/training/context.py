"""What a run settles before its first step: tokens, settings, run.json."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import io
from ..data import batches
from ..data.corpus import Tokens, identity, open_corpus
from ..data.tokenizer import FILES
from ..errors import CompiledWrong, RRError, RunFailed, check_number, positive
from ..model.costs import count
from ..model.sizes import other_size, published_params
from ..options import Request
from ..specs import PRECISIONS, Run
from . import backend, checkpoint, memory_fit, provenance
from .device import (
    check_device,
    check_threads,
    device_name,
    pick_device,
    prepare_device,
    resolve_precision,
)
from .distributed import World, check_strategy
from .run_folder import specification, tokenizer_sha256

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
    if request.save_every is not None:
        wanted = "a number of seconds above 0, or auto"
        check_number("save-every", request.save_every, wanted, lambda every: every > 0)
    check_strategy(request.parallel or "ddp")
    if request.charts:
        from .loggers import check_loggers

        check_loggers(request.charts, here)


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

    def recorded(self) -> dict:
        """What run.json records of them, beside the threads, which never change."""
        return {
            "precision": self.precision,
            "micro_batch": self.micro_batch,
            "code_path": self.backend_name,
            "code_path_reason": self.reason,
        }


def tokens_of(run: Run, cache: str | Path | None, log: Log) -> Tokens:
    """The run's corpus, tokenised; RRError where it has changed since the run was planned."""
    names = run.source.get("corpus", run.corpus), run.source.get("tokenizer")
    # before anything is tokenised
    if identity(*names) != {"corpus": run.corpus, "tokenizer": run.tokenizer}:
        raise RRError(
            f"{names[0]} or its tokenizer has changed since the run was planned: plan again"
        )
    tokens = open_corpus(
        *names,
        split="tokens" if run.protocol == "paper" else "documents",
        min_tokens=run.model.seq_len + 2,
        cache=cache,
        log=log,
    )
    if tokens.identity != {"corpus": run.corpus, "tokenizer": run.tokenizer}:
        raise RRError(f"{tokens.name} or its tokenizer changed while it was read: start again")
    if tokens.vocab_size != run.model.vocab_size:
        raise RRError(
            f"tokenizer {tokens.tokenizer_name} has {tokens.vocab_size} tokens, "
            f"the run was planned with {run.model.vocab_size}"
        )
    return tokens


class Context:
    """What a run trains with: this process's device, its world, the tokens, and the settings.

    Settles them when it is made and writes them to run.json: `begin` for a new run; `resume` for
    one that has a checkpoint, which keeps its settings except where it goes from a CPU to a GPU or
    back. Sets torch's threads. What was chosen is logged, and so is what the request asks for and
    the run does not have. Raises RRError where the run does not fit or cannot be continued here,
    RunFailed where run.json is corrupt, or missing beside checkpoints.

    text: the training stream, on the GPU where it fits there. resumed: whether the run has a
    checkpoint.
    """

    settings: Settings
    resumed: bool
    changed: dict | None = None  # run.json as `resume` changes it, in the process that writes

    def __init__(
        self, run: Run, folder: Path, tokens: Tokens, request: Request, world: World, log: Log
    ) -> None:
        self.run, self.folder, self.tokens, self.request = run, folder, tokens, request
        self.world, self.device, self.log = world, world.device, log
        self.text = batches.on_device(tokens.train, self.device)  # before free memory is asked for
        self.settings, self.resumed = world.agree(self._settle)
        if request.parallel and world.strategy is None:
            log(f"--parallel {request.parallel} needs several processes, and this run has one")
        prepare_device(self.device, self.settings.threads)

    @property
    def path(self) -> Path:
        """The run's run.json."""
        return self.folder / "run.json"

    def _settle(self) -> tuple[Settings, bool]:
        """The settings, and whether the run has a checkpoint, in the process that writes."""
        resumed = bool(checkpoint.Checkpoints(self.folder, self.run.id).steps())
        if resumed and not self.path.exists():
            raise RunFailed(
                f"{self.path} is missing beside its checkpoints, which cannot be used without it: "
                f"restore it, or remove {self.folder} to start again"
            )
        record = io.read_sealed(self.path) if self.path.exists() else {}
        if record and specification(record, self.folder).id != self.run.id:
            raise RRError(f"{self.path} describes another run: choose another --out")
        return (self.resume(record) if resumed else self.begin()), resumed

    def begin(self) -> Settings:
        """The settings of a new run, written to its run.json."""
        run = self.run
        _check_disk(run, self.folder)
        settings = self._chosen(self.request)
        _keep_tokenizer(self.folder, self.tokens)
        made_by = provenance.provenance(self.device) | {
            "threads": settings.threads,
            **settings.recorded(),
            "processes": self.world.size,
            "parallel": self.world.strategy,
            "corpus_sha256": self.tokens.sha256,
            "tokenizer_sha256": tokenizer_sha256(self.folder),
            "params": count(run.model),
        }
        if line := other_size(run):
            made_by["published_params"] = published_params(run)
            self.log(line)
        specified = {"id": run.id, "run": run.spec(), "source": run.source}
        io.write_record(self.path, {**specified, "provenance": made_by})
        return settings

    def resume(self, record: dict) -> Settings:
        """The settings of a run that has a checkpoint, by its run.json, which learns of changes."""
        recorded = _recorded(record, self.path)
        if recorded["corpus_sha256"] != self.tokens.sha256:
            raise RRError(
                f"run {self.run.id} was started on other tokens: resume it with the same corpus"
            )
        settings = self._kept(recorded)
        changed = recorded | self._changes(recorded, settings)
        if changed != recorded:
            self.changed = {**record, "provenance": changed}
        for name in _keep_tokenizer(self.folder, self.tokens):
            self.log(f"{name} is corrupt or missing: written again")
        return settings

    def keep_changes(self) -> None:
        """Write what has changed to run.json, now that the model is built and nothing refuses."""
        if self.changed:
            io.write_record(self.path, self.changed)

    def drop_compiler(self, error: CompiledWrong) -> None:
        """Go on without a compiler, where the default backend compiles the model wrongly here.

        Logged and recorded. Raises RRError where the backend was asked for, and where the run has
        trained with it: it would not be the same run.
        """
        name = self.settings.backend_name
        if self.resumed:
            raise RRError(
                f"run {self.run.id} trains with backend {name}, and {error}: resume it with the "
                "version of torch in its run.json, or start it again in another --out"
            )
        if self.settings.reason == backend.ASKED_FOR:
            raise RRError(f"--backend {name}: {error}; use --backend {backend.UNCOMPILED}")

        def uncompiled() -> Settings:
            micro_batch, name = memory_fit.choose(
                self.run,
                self.device,
                self.request.micro_batch,
                None,
                backend.UNCOMPILED,
                self.world,
                self.log,
            )
            self.log(f"{error}; selected backend {name}")
            settings = replace(
                self.settings, backend_name=name, reason=str(error), micro_batch=micro_batch
            )
            record = io.read_sealed(self.path)
            record["provenance"] |= settings.recorded()
            io.write_record(self.path, record)
            return settings

        self.settings = self.world.agree(uncompiled)

    def _chosen(self, request: Request) -> Settings:
        """The settings of a new run: what was asked for, else what fits, which is logged."""
        run, device, world, log = self.run, self.device, self.world, self.log
        threads = prepare_device(device, request.threads)
        precision = self._precision(run.recipe.precision)
        first, reason = backend.of_run(request.backend, device, run, world, log)
        micro_batch, name = memory_fit.choose(
            run, device, request.micro_batch, request.backend, first, world, log
        )
        if name != first:
            reason = f"backend {first} does not fit the memory"
        return Settings(threads, name, precision, micro_batch, reason)

    def _precision(self, wanted: str) -> str:
        """The precision that the device has in place of the wanted one, which is logged."""
        precision = resolve_precision(self.device, wanted)
        if precision != wanted:
            scaled = " with loss scaling" if precision == "fp16" else ""
            self.log(f"{device_name(self.device)} has no {wanted}: using {precision}{scaled}")
        return precision

    def _kept(self, recorded: dict) -> Settings:
        """The recorded settings, checked against this machine; chosen anew on another kind of it.

        A run goes from a CPU to a GPU or back only where the device was asked for.
        """
        request, device, threads = self.request, self.device, recorded["threads"]
        if request.threads not in (None, threads):
            self.log(f"the run keeps the {threads} threads it was started with")
        if _device_type(recorded["device"]) != device.type:
            if request.device in (None, "auto"):
                raise RRError(
                    f"run {self.run.id} was started on {recorded['device']}, not on "
                    f"{device_name(device)}: resume it there, or continue it here, not bit for "
                    f"bit, with --device {device.type}"
                )
            return self._chosen(replace(request, threads=threads))
        micro_batch = recorded["micro_batch"]
        if request.micro_batch and request.micro_batch > micro_batch:  # that did not fit, maybe
            self.log(f"the run keeps its micro-batch of {micro_batch}")
        settings = Settings(
            threads,
            recorded["code_path"],
            self._precision(recorded["precision"]),
            min(micro_batch, request.micro_batch or micro_batch),
            recorded.get("code_path_reason", "not recorded"),
        )
        if request.backend and backend.parse_backend(request.backend) != settings.backend:
            self.log(f"the run keeps the backend {settings.backend_name} it was started with")
        settings.backend.validate(device, self.run.model, self.world)
        prepare_device(device, threads)
        return settings

    def _changes(self, recorded: dict, settings: Settings) -> dict:
        """What changes in the provenance of a resumed run: another GPU, another version, …"""
        device, world, changes = self.device, self.world, []
        if recorded["device"] != device_name(device):
            changes.append(f"on {recorded['device']} and resumes on {device_name(device)}")
        cpu = provenance.cpu() if device.type == "cpu" else {}  # on a GPU it computes no sums
        here: dict[str, Any] = provenance.versions() | cpu
        was, now = ({**one, **one.get("packages", {})} for one in (recorded, here))
        for name in sorted(now.keys() & was.keys() - {"packages"}):
            if was[name] != now[name]:
                changes.append(f"with {name} {was[name]} and resumes with {now[name]}")
        processes = recorded.get("processes", 1)
        if (processes, recorded.get("parallel")) != (world.size, world.strategy):
            changes.append(f"by {processes} processes and resumes with {world.size}")
        if (was := recorded["precision"]) != (now := settings.precision):
            changes.append(f"in {was} and resumes in {now}")
        if (was := recorded["micro_batch"]) != (now := settings.micro_batch):
            changes.append(f"with a micro-batch of {was} and resumes with one of {now}")
        for change in changes:
            self.log(
                f"the run was started {change}: the same batches in the same order, but sums that "
                "may differ in their last bits"
            )
        changed = {"device": device_name(device), **settings.recorded(), **here}
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
