"""The folder of a run: its specification and its result; `.loading` reads its model.

runs/<id>/run.json        the specification, and what produced the numbers
          metrics.jsonl   the curve, a line every few steps
          checkpoint/     the last two; when the run has ended, its last weights
          tokenizer/      the run's vocabulary
          result.json     written last, once
"""

import hashlib
from pathlib import Path

from .. import io
from ..data.tokenizer import FILES, LARGEST_FILE
from ..errors import RRError, RunFailed
from ..io import file_bytes
from ..residual import content
from ..specs import Run


def tokenizer_sha256(folder: Path) -> str:
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
    "diverged"), `val_loss` (nats per token), and how it was trained. RunFailed where it is corrupt.

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
    result = io.read_sealed(path)
    if result.get("id") not in (folder.name, folder.resolve().name) or "status" not in result:
        raise RunFailed(f"{path} is corrupt (it is not the result of run {folder.resolve().name})")
    return result


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
