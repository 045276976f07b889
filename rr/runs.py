"""What a run is called, and the folder in which it is begun, found again and loaded.

    runs/<id>/run.json        the specification, and what produced the numbers
              metrics.jsonl   the curve, a line every few steps
              checkpoint/     the last two, whole or not at all
              tokenizer/      what turns the run's tokens back into text
              result.json     written last, once
"""

import hashlib
from collections.abc import Callable
from pathlib import Path

import torch

from . import runtime
from .config import PRECISIONS, RRError, Run, RunFailed, positive
from .corpus import Tokens, default_tokenizer, identity, open_corpus
from .distributed import World
from .ladder import specify
from .model import Model, at_loops
from .paths import check, parse_path
from .progress import Progress
from .residual import content
from .tokens import FILES, Vocabulary, planned_size


def plan(
    rung: str = "nano",
    rule: str = "review",
    *,
    corpus: str = "fables",
    tokenizer: str | None = None,
    cache: str | Path | None = None,
    **options,
) -> Run:
    """The run that these names describe; nothing is downloaded, tokenised or trained.

    Options: values, loops, flavour, seed, protocol, steps, budgets, warmup, lr, batch,
    eval_batches, precision, depth_lr.
    """
    tokenizer = tokenizer or default_tokenizer(corpus)
    return specify(
        rung,
        rule,
        **identity(corpus, tokenizer, cache),
        vocab_size=planned_size(tokenizer),
        source={"corpus": corpus, "tokenizer": tokenizer},
        **options,
    )


def tokens_of(run: Run, cache: str | Path | None, say: Callable[[str], None]) -> Tokens:
    """The run's corpus, tokenised; RRError unless it is what it was when the run was planned."""
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


def begin(
    run: Run,
    folder: Path,
    tokens: Tokens,
    device: torch.device,
    threads: int | None,
    micro: int | None,
    code_path: str,
    world: World,
    say: Callable[[str], None],
) -> tuple[int, str, int, str]:
    """Write run.json and the tokenizer, or check those that are there.

    Returns what the run keeps when it goes on: micro-batch (windows), precision, threads, path.

    Sets torch's threads. Raises RRError where the run was begun on another device or other tokens,
    or cannot go its path here; RunFailed where run.json is damaged, or missing beside checkpoints.
    """
    path = folder / "run.json"
    if not path.exists():
        if runtime.Checkpoints(folder, folder.name).steps():
            raise RunFailed(f"{path} is missing beside its checkpoints: they are not believed")
        threads = runtime.prepare(device, threads)
        _keep_tokenizer(folder, tokens)
        made_by = runtime.provenance(run, device, threads, code_path)
        asked = run.recipe.precision
        precision = runtime.resolve_precision(device, asked)
        if precision != asked:
            say(f"{runtime.device_name(device)} has no {asked}: {precision} with loss scaling")
        micro = micro or run.recipe.batch // world.size
        made_by["micro_batch"] = micro
        made_by["processes"], made_by["parallel"] = world.size, world.strategy
        made_by["corpus_sha256"], made_by["precision"] = tokens.sha256, precision
        made_by["tokenizer_sha256"] = _tokenizer_sha256(folder)
        record = {"id": folder.name, "run": run.spec(), "source": run.source}
        runtime.write_record(path, {**record, "provenance": made_by})
        return micro, precision, threads, code_path
    record = runtime.read_json(path)
    if recorded(record, folder).id != run.id:
        raise RRError(f"{path} is of another specification: choose another --out")
    try:
        names = ("device", "threads", "micro_batch", "corpus_sha256", "precision", "code_path")
        told = (record["provenance"][name] for name in names)
        begun_on, begun, micro, sha256, precision, along = told
        went = parse_path(along)
        positive("threads", begun)
        positive("micro_batch", micro)
        if precision not in PRECISIONS:
            raise RRError(f"unknown precision {precision!r}")
    except (RRError, KeyError, TypeError) as error:
        raise RunFailed(f"{path} is damaged and is not believed: {error}") from None
    here = runtime.device_name(device)
    if begun_on != here:
        raise RRError(
            f"run {folder.name} was begun on {begun_on}, not on {here}: "
            "it goes on, bit for bit, on that device alone (--device)"
        )
    if threads not in (None, begun):
        say(f"the run keeps the {begun} threads it was begun with")
    if parse_path(code_path) != went:
        say(f"the run keeps the path {along} that it was begun along")
    check(went, device, run.model, world)
    if sha256 != tokens.sha256:
        raise RRError(f"run {folder.name} was begun on other tokens: its corpus is accepted")
    runtime.prepare(device, begun)
    before = record["provenance"].get("processes", 1), record["provenance"].get("parallel")
    if before != (world.size, world.strategy):
        say(
            f"the run was begun by {before[0]} processes and goes on with {world.size}: the same "
            "batches in the same order, but sums that may differ in their last bits"
        )
        record["provenance"]["bit_exact"] = False
        runtime.write_record(path, record)
    for name in _keep_tokenizer(folder, tokens):
        say(f"{name} is damaged: written again")
    return micro, precision, begun, along


def _keep_tokenizer(folder: Path, tokens: Tokens) -> list[Path]:
    """Put the tokenizer beside the run; returns the files that were not there, or not whole."""
    home, written = folder / "tokenizer", []
    home.mkdir(exist_ok=True)
    for name in FILES:
        data = (tokens.vocabulary.folder / name).read_bytes()
        if not (home / name).is_file() or (home / name).read_bytes() != data:
            runtime.write_atomic(home / name, data)
            written.append(home / name)
    return written


def _tokenizer_sha256(folder: Path) -> str:
    """SHA-256 over the files of a run's tokenizer. RunFailed where one cannot be read."""
    try:
        data = b"".join((folder / "tokenizer" / name).read_bytes() for name in FILES)
    except OSError as error:
        why = f"{error.strerror}: {error.filename}"
        raise RunFailed(f"{folder / 'tokenizer'} is damaged and is not believed: {why}") from None
    return hashlib.sha256(data).hexdigest()


def finished(folder: Path) -> dict | None:
    """The result of a run that has ended, None before; RunFailed where result.json is damaged."""
    path = folder / "result.json"
    if not path.exists():
        return None
    result = runtime.read_json(path)
    if result.get("id") != folder.name or "status" not in result:
        raise RunFailed(f"{path} is damaged and is not believed: it is not run {folder.name}'s")
    return result


def load(
    folder: str | Path,
    device: str | None = None,
    loops: int | None = None,
    keep_scale: bool = False,
) -> tuple[Model, Run, Vocabulary]:
    """The model of a run's newest checkpoint, its specification, and its tokenizer.

    loops: passes over the stack, where not those of the run; a rule whose scale depends on N takes
    that of the new N, unless keep_scale. See `rr.model.at_loops`.
    """
    folder = Path(folder)
    if not (folder / "run.json").is_file():
        raise RRError(f"{folder} is no run: a folder with run.json is accepted")
    record = runtime.read_json(folder / "run.json")
    run = recorded(record, folder)
    state = runtime.Checkpoints(folder, run.id).newest(Progress(None).say)
    if state is None:
        raise RRError(f"{folder} has no checkpoint yet: train it first")
    model = Model(run.model)
    model.load_state_dict(state["model"])
    if loops is not None:
        model = at_loops(model, loops, keep_scale)
    elif keep_scale:
        raise RRError("keep-scale without loops: it says which scale another N runs at")
    name = run.source.get("tokenizer", run.tokenizer)
    home, began = folder / "tokenizer", record.get("provenance", {}).get("tokenizer_sha256")
    if began not in (None, _tokenizer_sha256(folder)):  # the first runs did not say
        raise RunFailed(f"{home} is damaged and is not believed: it is not what the run began with")
    vocabulary = Vocabulary(name, run.tokenizer, home)
    if vocabulary.size != run.model.vocab_size:
        raise RunFailed(f"{home} is damaged: its size is not the model's")
    return model.to(runtime.pick_device(device)).eval(), run, vocabulary


def recorded(record: dict, folder: Path) -> Run:
    """The run that run.json describes, whose id is the record's and whose rules are at hand."""
    path = folder / "run.json"
    try:
        run = Run.from_spec(record["run"], dict(record["source"]))
        same = run.id == record["id"]
    except (RRError, KeyError, TypeError, ValueError) as error:
        raise RunFailed(f"{path} is damaged and is not believed: {error}") from None
    if not same:
        raise RunFailed(f"{path} is damaged and is not believed: ids differ")
    try:
        check_rules(run)
    except RRError as error:
        raise RunFailed(f"{folder} needs its rule as it was: {error}") from None
    return run


def check_rules(run: Run) -> None:
    """Raise RRError unless the rules that `run` names are known and are what they were."""
    for kind, rule, was in (
        ("residual", run.rule, run.rule_content),
        ("values", run.values, run.values_content),
    ):
        if content(rule, kind) != was:
            raise RRError(
                f"{rule} has changed since the run was planned: "
                "the rule as it was, or a new plan, is accepted"
            )
