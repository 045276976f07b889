"""What a run is called, and the folder in which it is begun, found again and loaded.

runs/<id>/run.json        the specification, and what produced the numbers
          metrics.jsonl   the curve, a line every few steps
          checkpoint/     the last two, whole or not at all
          tokenizer/      what turns the run's tokens back into text
          result.json     written last, once
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from .. import io
from ..config import PRECISIONS, RRError, Run, RunFailed, file_bytes, positive
from ..data.corpus import Tokens, default_tokenizer, identity, open_corpus
from ..data.tokenizer import FILES, LARGEST_FILE, Vocabulary, planned_size
from ..model.ladder import count, other_size, parse_rung, published_params, specify
from ..model.transformer import Model, at_loops
from ..model.weights import with_weights
from ..residual import as_allowed, content
from . import checkpoint, memory_fit, provenance
from .backend import check, parse_path
from .device import device_name, pick_device, prepare, resolve_precision
from .distributed import World
from .progress import Progress


def plan(
    rung: str = "nano",
    rule: str = "review",
    *,
    corpus: str | None = None,
    tokenizer: str | None = None,
    cache: str | Path | None = None,
    **options,
) -> Run:
    """The run that these names describe; nothing is downloaded, tokenised or trained.

    corpus, tokenizer: see `text_of`, which chooses where one is None.
    Options: values, loops, flavour, seed, protocol, steps, budgets, warmup, lr, batch,
    eval_batches, precision, depth_lr, optimizer.
    """
    corpus, tokenizer = text_of(rung, corpus, tokenizer)
    return specify(
        rung,
        rule,
        **identity(corpus, tokenizer, cache),
        vocab_size=planned_size(tokenizer),
        source={"corpus": corpus, "tokenizer": tokenizer},
        **options,
    )


def text_of(rung: str, corpus: str | None, tokenizer: str | None) -> tuple[str, str]:
    """The corpus and tokenizer of a run that names one of them, or none.

    `fables` with bpe:1024 for nano, mini and their variants; GPT-2's tokenizer for other text. A
    published rung on fables' 1,024 tokens would be another model under the same name, so RRError
    asks for its text, and on fables for the tokenizer.
    """
    published = parse_rung(rung)[0].published
    if published and corpus is None:
        raise RRError(
            f"rung {rung} needs a text: give --corpus tinystories (GPT-2's tokenizer, the "
            "published size), or another --corpus with its --tokenizer"
        )
    if published and corpus == "fables" and not tokenizer:
        raise RRError(
            f"rung {rung} on fables needs a tokenizer: give --tokenizer gpt2 (the published "
            "size) or bpe:N (another size)"
        )
    corpus = "fables" if corpus is None else corpus
    return corpus, tokenizer or default_tokenizer(corpus)


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
        if checkpoint.Checkpoints(folder, folder.name).steps():
            raise RunFailed(f"{path} is missing beside its checkpoints: they are not believed")
        threads = prepare(device, threads)
        _keep_tokenizer(folder, tokens)
        made_by = provenance.provenance(run, device, threads, code_path)
        asked = run.recipe.precision
        precision = resolve_precision(device, asked)
        if precision != asked:
            say(f"{device_name(device)} has no {asked}: {precision} with loss scaling")
        micro = micro or run.recipe.batch // world.size
        made_by["micro_batch"] = micro
        made_by["processes"], made_by["parallel"] = world.size, world.strategy
        made_by["corpus_sha256"], made_by["precision"] = tokens.sha256, precision
        made_by["tokenizer_sha256"] = _tokenizer_sha256(folder)
        made_by["params"] = count(run.model)
        if line := other_size(run):
            made_by["published_params"] = published_params(run)
            say(line)
        record = {"id": folder.name, "run": run.spec(), "source": run.source}
        io.write_record(path, {**record, "provenance": made_by})
        return micro, precision, threads, code_path
    record = io.read_json(path)
    if specification(record, folder).id != run.id:  # its rules are those that the caller named
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
    here = device_name(device)
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
    memory_fit.check(run, device, micro, along, world, say)
    if sha256 != tokens.sha256:
        raise RRError(f"run {folder.name} was begun on other tokens: its corpus is accepted")
    prepare(device, begun)
    before = record["provenance"].get("processes", 1), record["provenance"].get("parallel")
    if before != (world.size, world.strategy):
        say(
            f"the run was begun by {before[0]} processes and goes on with {world.size}: the same "
            "batches in the same order, but sums that may differ in their last bits"
        )
        record["provenance"]["bit_exact"] = False
        io.write_record(path, record)
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
        raise RunFailed(f"{folder / 'tokenizer'} is damaged and is not believed: {why}") from None
    return hashlib.sha256(data).hexdigest()


def finished(folder: Path) -> dict | None:
    """The result of a run that has ended, None before; RunFailed where result.json is damaged."""
    path = folder / "result.json"
    if not path.exists():
        return None
    result = io.read_json(path)
    if result.get("id") != folder.name or "status" not in result:
        raise RunFailed(f"{path} is damaged and is not believed: it is not run {folder.name}'s")
    return result


def load(
    folder: str | Path,
    device: str | None = None,
    loops: int | None = None,
    keep_scale: bool = False,
    allow_rule: str | Sequence[str] = (),
) -> tuple[Model, Run, Vocabulary]:
    """The model of a run's newest checkpoint, its specification, and its tokenizer.

    loops: passes over the stack, where not those of the run; a rule whose scale depends on N takes
    that of the new N, unless keep_scale. See `rr.model.at_loops`. allow_rule: a rule
    in a file, `path.py:Class`, that the run was trained with and that may be imported: see
    `allowed`.
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
        raise RRError("keep-scale without loops: it says which scale another N runs at")
    name = run.source.get("tokenizer", run.tokenizer)
    home, made_by = folder / "tokenizer", record.get("provenance")
    began = made_by.get("tokenizer_sha256") if isinstance(made_by, dict) else None
    if began not in (None, _tokenizer_sha256(folder)):  # the first runs did not say
        raise RunFailed(f"{home} is damaged and is not believed: it is not what the run began with")
    vocabulary = Vocabulary(name, run.tokenizer, home)
    if vocabulary.size != run.model.vocab_size:
        raise RunFailed(f"{home} is damaged: its size is not the model's")
    return model.to(pick_device(device)).eval(), run, vocabulary


def read_specification(folder: Path) -> tuple[dict, Run]:
    """run.json of a folder, and the run that it describes; RRError where it is no run's folder."""
    if not (folder / "run.json").is_file():
        raise RRError(f"{folder} is no run: a folder with run.json is accepted")
    record = io.read_json(folder / "run.json")
    return record, specification(record, folder)


def specification(record: dict, folder: Path) -> Run:
    """The run that run.json describes, whose id is the record's; nothing of it is imported.

    So a rule in a file cannot be resolved yet: see `allowed`.
    """
    path = folder / "run.json"
    try:
        run = Run.from_spec(record["run"], dict(record["source"]))
        same = run.id == record["id"]
    except (RRError, KeyError, TypeError, ValueError) as error:
        raise RunFailed(f"{path} is damaged and is not believed: {error}") from None
    if not same:
        raise RunFailed(f"{path} is damaged and is not believed: ids differ")
    return run


def allowed(run: Run, folder: Path, allow_rule: str | Sequence[str] = ()) -> Run:
    """A run that was read from a folder, with rules that can be resolved and are what they were.

    A folder may be anybody's, and a rule in a file is code. So such a rule, `path.py:Class`, is
    imported only where the caller names it, in allow_rule or as a run of their own before, and the
    file that they name has the content that was recorded. It is imported from the path that the
    caller gave. Raises RRError (RunFailed where a rule is unknown or has changed): one line.
    """
    read = [(run.rule, run.rule_content), (run.values, run.values_content)]
    rule, values = as_allowed(read, allow_rule, str(folder))
    model = replace(run.model, rule=rule, values=values)
    run = replace(run, rule=rule, values=values, model=model)
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
