"""The model of a run, read from the run's folder, which may come from anybody."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from .. import io
from ..data.tokenizer import Vocabulary
from ..errors import RRError, RunFailed
from ..model.transformer import Model, at_loops
from ..model.weights import with_weights
from ..residual import as_allowed
from ..specs import Run
from . import checkpoint
from .device import pick_device
from .progress import Progress
from .run_folder import check_rules, finished, specification, tokenizer_sha256


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

    Raises RRError where `folder` is no run's folder or has no weights (yet), the device is not
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
    checkpoints = checkpoint.Checkpoints(folder, run.id)
    weights = checkpoints.weights(Progress(None).say)
    if weights is None:
        if finished(folder) is None:
            raise RRError(f"{folder} has no checkpoint yet: train it first")
        raise RRError(
            f"{folder} has a result but no weights: put its checkpoint/weights back, or train it "
            "again with another --out"
        )
    try:
        model = with_weights(run.model, weights)
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
    if recorded not in (None, tokenizer_sha256(folder)):  # the first runs did not record it
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
    record = io.read_sealed(folder / "run.json")
    return record, specification(record, folder)


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
    run = replace(run, model=model)
    try:
        check_rules(run)
    except RRError as error:
        raise RunFailed(f"{folder} cannot be loaded: {error}") from None
    return run
