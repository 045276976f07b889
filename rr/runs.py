"""What a run is called, and the folder in which it is begun, found again and loaded.

    runs/<id>/run.json        the specification, and what produced the numbers
              metrics.jsonl   the curve, a line every few steps
              checkpoint/     the last two, whole or not at all
              tokenizer/      what turns the run's tokens back into text
              result.json     written last, once
"""

from collections.abc import Callable
from pathlib import Path

import torch

from . import runtime
from .config import RRError, Run, RunFailed, positive
from .corpus import Tokens, default_tokenizer, identity
from .ladder import specify
from .model import Model
from .progress import Progress
from .tokens import Vocabulary, planned_size


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

    Options: values, loops, flavour, seed, protocol, steps, lr, batch, eval_batches, precision.
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


def begin(
    run: Run,
    folder: Path,
    tokens: Tokens,
    device: torch.device,
    threads: int | None,
    say: Callable[[str], None],
) -> int:
    """Write run.json and the tokenizer, or check those that are there; returns the micro-batch.

    Sets torch's threads. Raises RRError where the run was begun on another device or other tokens,
    RunFailed where run.json is damaged, or missing beside checkpoints.
    """
    path = folder / "run.json"
    if not path.exists():
        if runtime.Checkpoints(folder, folder.name).steps():
            raise RunFailed(f"{path} is missing beside its checkpoints: they are not believed")
        threads = runtime.prepare(device, threads)
        home = folder / "tokenizer"
        home.mkdir(exist_ok=True)
        for name in ("vocab.json", "merges.txt"):
            runtime.write_atomic(home / name, (tokens.vocabulary.folder / name).read_bytes())
        made_by = runtime.provenance(run, device, threads)
        made_by["corpus_sha256"] = tokens.sha256
        record = {"id": folder.name, "run": run.spec(), "source": run.source}
        runtime.write_json(path, {**record, "provenance": made_by})
        return run.recipe.batch
    record = runtime.read_json(path)
    if recorded(record, folder).id != run.id:
        raise RRError(f"{path} is of another specification: choose another --out")
    try:
        names = ("device", "threads", "micro_batch", "corpus_sha256")
        begun_on, begun, micro, sha256 = (record["provenance"][name] for name in names)
        positive("threads", begun)
        positive("micro_batch", micro)
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
    if sha256 != tokens.sha256:
        raise RRError(f"run {folder.name} was begun on other tokens: its corpus is accepted")
    runtime.prepare(device, begun)
    return micro


def finished(folder: Path) -> dict | None:
    """The result of a run that has ended, None before; RunFailed where result.json is damaged."""
    path = folder / "result.json"
    if not path.exists():
        return None
    result = runtime.read_json(path)
    if result.get("id") != folder.name or "status" not in result:
        raise RunFailed(f"{path} is damaged and is not believed: it is not run {folder.name}'s")
    return result


def load(folder: str | Path, device: str | None = None) -> tuple[Model, Run, Vocabulary]:
    """The model of a run's newest checkpoint, its specification, and its tokenizer."""
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
    name = run.source.get("tokenizer", run.tokenizer)
    vocabulary = Vocabulary(name, run.tokenizer, folder / "tokenizer")
    if vocabulary.size != run.model.vocab_size:
        raise RunFailed(f"{folder / 'tokenizer'} is damaged: its size is not the model's")
    return model.to(runtime.pick_device(device)).eval(), run, vocabulary


def recorded(record: dict, folder: Path) -> Run:
    """The run that run.json describes, whose id is the record's."""
    path = folder / "run.json"
    try:
        run = Run.from_spec(record["run"], dict(record["source"]))
        same = run.id == record["id"]
    except OSError as error:  # a rule in a reader's own file
        raise RunFailed(f"{folder} needs {error.filename}: {error.strerror}") from None
    except (RRError, KeyError, TypeError, ValueError) as error:
        raise RunFailed(f"{path} is damaged and is not believed: {error}") from None
    if not same:
        own = [spec for spec in (run.rule, run.values) if ".py:" in spec]
        changed = f", or {' or '.join(own)} has changed since" if own else ""
        raise RunFailed(f"{path} is damaged and is not believed: ids differ{changed}")
    return run
