"""The folder of a run: starting, resuming and loading it.

runs/<id>/run.json        the specification, and what produced the numbers
          metrics.jsonl   the curve, a line every few steps
          checkpoint/     the last two
          tokenizer/      the run's vocabulary
          result.json     written last, once
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from .. import io
from ..config import PRECISIONS, RRError, Run, RunFailed, file_bytes, positive
from ..data.corpus import Tokens, open_corpus
from ..data.tokenizer import FILES, LARGEST_FILE, Vocabulary
from ..model.ladder import count, other_size, published_params
from ..model.transformer import Model, at_loops
from ..model.weights import with_weights
from ..residual import as_allowed, content
from . import checkpoint, memory_fit, provenance
from .backend import parse_backend
from .device import device_name, pick_device, prepare, resolve_precision
from .distributed import World
from .planning import plan as plan  # a run's folder begins with its plan
from .progress import Progress


def tokens_of(run: Run, cache: str | Path | None, say: Callable[[str], None]) -> Tokens:
    """The run's corpus, tokenised; RRError where it has changed since the run was planned."""
    tokens = open_corpus(
        run.source.get("corpus", run.corpus),
        run.source.get("tokenizer"),
        split="tokens" if run.protocol == "paper" else "documents",
        min_tokens=run.model.seq_len + 2,
        cache=cache,
        log=say,
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


@dataclass(frozen=True)
class Request:
    """The settings that the caller of a run asked for; None where the run may choose."""

    path: str  # the backend, as `backend.parse_backend` reads it
    micro_batch: int | None = None  # windows
    threads: int | None = None


@dataclass(frozen=True)
class RunContext:
    """The settings of a started run, which it keeps when it is resumed; run.json records them."""

    path: str  # the backend, as `backend.parse_backend` reads it
    precision: str
    micro_batch: int  # windows
    threads: int


def start_run(
    run: Run,
    folder: Path,
    tokens: Tokens,
    device: torch.device,
    request: Request,
    world: World,
    log: Callable[[str], None],
) -> RunContext:
    """Write run.json and the tokenizer of a new run; returns its settings. Sets torch's threads.

    Raises RunFailed where run.json is missing beside checkpoints.
    """
    path = folder / "run.json"
    if checkpoint.Checkpoints(folder, folder.name).steps():
        raise RunFailed(
            f"{path} is missing beside its checkpoints, which cannot be used without it: restore "
            f"it, or remove {folder} to start again"
        )
    threads = prepare(device, request.threads)
    _keep_tokenizer(folder, tokens)
    wanted = run.recipe.precision
    precision = resolve_precision(device, wanted)
    if precision != wanted:
        scaled = " with loss scaling" if precision == "fp16" else ""
        log(f"{device_name(device)} has no {wanted}: using {precision}{scaled}")
    micro_batch = request.micro_batch or run.recipe.batch // world.size
    context = RunContext(request.path, precision, micro_batch, threads)
    record = provenance.provenance(run, device, threads, request.path)
    record |= {
        "micro_batch": micro_batch,
        "processes": world.size,
        "parallel": world.strategy,
        "corpus_sha256": tokens.sha256,
        "precision": precision,
        "tokenizer_sha256": _tokenizer_sha256(folder),
        "params": count(run.model),
    }
    if line := other_size(run):
        record["published_params"] = published_params(run)
        log(line)
    specification = {"id": folder.name, "run": run.spec(), "source": run.source}
    io.write_record(path, {**specification, "provenance": record})
    return context


def resume_run(
    run: Run,
    folder: Path,
    tokens: Tokens,
    device: torch.device,
    request: Request,
    world: World,
    log: Callable[[str], None],
) -> RunContext:
    """Check that a started run can be resumed here; returns its settings. Sets torch's threads.

    What the request asks for and the run does not have is logged. Raises RRError where the run was
    started on another device or other tokens, or its backend is not supported here; RunFailed where
    run.json is corrupt.
    """
    path = folder / "run.json"
    record = io.read_json(path)
    if specification(record, folder).id != run.id:  # its rules are those that the caller named
        raise RRError(f"{path} describes another run: choose another --out")
    context, started_on, corpus_sha256 = _recorded(record, path)
    here = device_name(device)
    if started_on != here:
        raise RRError(
            f"run {folder.name} was started on {started_on}, not on {here}: it resumes, bit for "
            "bit, on that device alone (--device)"
        )
    if request.threads not in (None, context.threads):
        log(f"the run keeps the {context.threads} threads it was started with")
    backend = parse_backend(context.path)
    if parse_backend(request.path) != backend:
        log(f"the run keeps the backend {context.path} it was started with")
    backend.validate(device, run.model, world)
    memory_fit.check_resumed(run, device, context.micro_batch, context.path, world, log)
    if corpus_sha256 != tokens.sha256:
        raise RRError(
            f"run {folder.name} was started on other tokens: resume it with the same corpus"
        )
    prepare(device, context.threads)
    processes = record["provenance"].get("processes", 1)
    if (processes, record["provenance"].get("parallel")) != (world.size, world.strategy):
        log(
            f"the run was started by {processes} processes and resumes with {world.size}: the same "
            "batches in the same order, but sums that may differ in their last bits"
        )
        record["provenance"]["bit_exact"] = False
        io.write_record(path, record)
    for name in _keep_tokenizer(folder, tokens):
        log(f"{name} is corrupt or missing: written again")
    return context


def _recorded(record: dict, path: Path) -> tuple[RunContext, str, str]:
    """The settings, the device and the corpus's SHA-256 that run.json recorded."""
    try:
        made_by = record["provenance"]
        context = RunContext(
            made_by["code_path"], made_by["precision"], made_by["micro_batch"], made_by["threads"]
        )
        parse_backend(context.path)
        positive("threads", context.threads)
        positive("micro_batch", context.micro_batch)
        if context.precision not in PRECISIONS:
            raise RRError(f"unknown precision {context.precision!r}")
        return context, made_by["device"], made_by["corpus_sha256"]
    except (RRError, KeyError, TypeError) as error:
        raise RunFailed(f"{path} is corrupt ({error})") from None


def _keep_tokenizer(folder: Path, tokens: Tokens) -> list[Path]:
    """Copy the tokenizer into the run's folder; returns the files that were missing or corrupt."""
    home, written = folder / "tokenizer", []
    home.mkdir(exist_ok=True)
    for name in FILES:
        data = (tokens.vocabulary.folder / name).read_bytes()
        if not (home / name).is_file() or (home / name).read_bytes() != data:
            io.write_atomic(home / name, data)
            written.append(home / name)
    return written


def _tokenizer_sha256(folder: Path) -> str:
    """SHA-256 over the files of a run's tokenizer. RunFailed where one cannot be read."""
    try:
        home = folder / "tokenizer"
        data = b"".join(file_bytes(home / name, LARGEST_FILE) for name in FILES)
    except (OSError, ValueError) as error:
        why = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) else error
        raise RunFailed(f"{folder / 'tokenizer'} is corrupt ({why})") from None
    return hashlib.sha256(data).hexdigest()


def finished(folder: Path) -> dict | None:
    """The result of a finished run, from its folder; None before its end.

    Returns the content of result.json: the run's id, rule, seed, `status` ("finished" or
    "diverged"), `val_loss` (nats per token), and how it was trained. Raises RunFailed where that
    file is corrupt.

    Example:
        >>> import tempfile
        >>> import rr
        >>> from rr.training import finished
        >>> tiny = "nano:d_model=16,n_layer=1,n_head=1,d_ff=32,seq_len=16"
        >>> run = rr.plan(tiny, steps=2, batch=1, eval_batches=1)
        >>> with tempfile.TemporaryDirectory() as out:
        ...     folder = rr.train(run, out, log=lambda line: None)
        ...     print(finished(folder)["status"])
        finished
    """
    path = folder / "result.json"
    if not path.exists():
        return None
    result = io.read_json(path)
    if result.get("id") != folder.name or "status" not in result:
        raise RunFailed(f"{path} is corrupt (it is not the result of run {folder.name})")
    return result


def load(
    folder: str | Path,
    device: str | None = None,
    loops: int | None = None,
    keep_scale: bool = False,
    allow_rule: str | Sequence[str] = (),
) -> tuple[Model, Run, Vocabulary]:
    """The model of a run's newest checkpoint, its specification, and its tokenizer.

    The model is in evaluation mode. The tokenizer has `encode(text)` and `decode(ids)`.

    folder: that `rr.train` returned. device: "cpu", "cuda" or "mps"; None: CUDA where there is a
    GPU, else the CPU. loops, keep_scale: passes over the stack, where not those of the run, and
    whether a rule whose scale depends on them keeps its own: see `rr.model.at_loops`. allow_rule: a
    rule in a file, `path.py:Class`, that the run was trained with and that may be imported: a
    folder may come from anybody, and a file is code.

    Raises RRError where `folder` is no run's folder or has no checkpoint yet, the device is not
    here, or a rule in a file was not allowed or has changed; RunFailed where a file is corrupt.

    Example:
        >>> import tempfile
        >>> import rr
        >>> tiny = "nano:d_model=16,n_layer=1,n_head=1,d_ff=32,seq_len=16"
        >>> run = rr.plan(tiny, steps=2, batch=1, eval_batches=1)
        >>> with tempfile.TemporaryDirectory() as out:
        ...     folder = rr.train(run, out, log=lambda line: None)
        ...     model, run, vocabulary = rr.load(folder)
        >>> model.config.seq_len, run.rule
        (16, 'review')
    """
    folder = Path(folder)
    record, run = read_specification(folder)
    run = allowed(run, folder, allow_rule)
    state = checkpoint.Checkpoints(folder, run.id).newest(Progress(None).say)
    if state is None:
        raise RRError(f"{folder} has no checkpoint yet: train it first")
    try:
        model = with_weights(run.model, state.get("model"))
    except RRError as error:
        raise RunFailed(f"{folder} cannot be loaded: {error}") from None
    if loops is not None:
        model = at_loops(model, loops, keep_scale)
    elif keep_scale:
        raise RRError(
            "keep-scale needs loops: it keeps the scale of the run at another number of passes"
        )
    name = run.source.get("tokenizer", run.tokenizer)
    home, made_by = folder / "tokenizer", record.get("provenance")
    recorded = made_by.get("tokenizer_sha256") if isinstance(made_by, dict) else None
    if recorded not in (None, _tokenizer_sha256(folder)):  # the first runs did not record it
        raise RunFailed(f"{home} is corrupt (it is not the tokenizer the run was started with)")
    vocabulary = Vocabulary(name, run.tokenizer, home)
    if vocabulary.size != run.model.vocab_size:
        raise RunFailed(
            f"{home} is corrupt (it has {vocabulary.size} tokens, the model has "
            f"{run.model.vocab_size})"
        )
    return model.to(pick_device(device)).eval(), run, vocabulary


def read_specification(folder: Path) -> tuple[dict, Run]:
    """run.json of a folder and the run that it describes; RRError where it is no run's folder."""
    if not (folder / "run.json").is_file():
        raise RRError(f"{folder} is no run: expected a folder with run.json")
    record = io.read_json(folder / "run.json")
    return record, specification(record, folder)


def specification(record: dict, folder: Path) -> Run:
    """The run that run.json describes; RunFailed unless its id is the recorded one.

    Nothing is imported, so that a rule in a file cannot be resolved yet: see `allowed`.
    """
    path = folder / "run.json"
    try:
        run = Run.from_spec(record["run"], dict(record["source"]))
        same = run.id == record["id"]
    except (RRError, KeyError, TypeError, ValueError) as error:
        raise RunFailed(f"{path} is corrupt ({error})") from None
    if not same:
        raise RunFailed(f"{path} is corrupt (its id is not that of its specification)")
    return run


def allowed(run: Run, folder: Path, allow_rule: str | Sequence[str] = ()) -> Run:
    """A run that was read from a folder, with rules that can be resolved and have not changed.

    A rule in a file is code, and the folder may come from anybody. So such a rule, `path.py:Class`,
    is imported only where the caller names it, in allow_rule or as a run of their own before, and
    the file has the content that was recorded. It is imported from the caller's path. Raises
    RRError (RunFailed where a rule is unknown or has changed): one line.
    """
    read = [(run.rule, run.rule_content), (run.values, run.values_content)]
    rule, values = as_allowed(read, allow_rule, str(folder))
    model = replace(run.model, rule=rule, values=values)
    run = replace(run, rule=rule, values=values, model=model)
    try:
        check_rules(run)
    except RRError as error:
        raise RunFailed(f"{folder} cannot be loaded: {error}") from None
    return run


def check_rules(run: Run) -> None:
    """Raise RRError unless the rules that `run` names are known and have not changed."""
    for kind, rule, was in (
        ("residual", run.rule, run.rule_content),
        ("values", run.values, run.values_content),
    ):
        if content(rule, kind) != was:
            raise RRError(
                f"{rule} has changed since the run was planned: restore the rule, or plan again"
            )
