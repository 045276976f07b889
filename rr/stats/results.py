"""Results of a folder of runs as rows.

A corrupt file is named and never used; so is a run that was begun and has no result yet.
"""

import json
import math
import sys
from dataclasses import dataclass, field
from pathlib import Path

from ..config import RRError, RunFailed
from ..io import unsealed
from .records import Record, read_records

# Runs are comparable only where all of these agree. The learning rate is left out: each arm may
# have been tuned on its own.
GROUP = (
    "rung", "protocol", "corpus", "tokenizer", "loops", "batch", "steps", "flavour", "precision",
    "eval_shortened",
)  # fmt: skip
# The same, where a result says so (two files of one name are two corpora), or its run.json.
TOLD = ("corpus_id", "tokenizer_id", "eval_batches", "depth_lr", "warmup", "optimizer")
NEEDED = ("id", "rule", "values", "seed", "lr", "status", "val_loss", *GROUP)


@dataclass
class Found:
    """The content of a folder of runs, as `scan()` returns it.

    Example:
        >>> import tempfile
        >>> from rr.stats import scan
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     print(scan(folder))
        Found(rows=[], damaged=[], waiting=[])
    """

    rows: list[dict] = field(default_factory=list)  # results; one per budget of a run with several
    damaged: list[tuple[Path, str]] = field(default_factory=list)  # result.json, why it is corrupt
    waiting: list[Path] = field(default_factory=list)  # folders of runs that have no result yet


def problem(row: object) -> str | None:
    """What is wrong with a parsed result.json, or None."""
    if not isinstance(row, dict):
        return "not a JSON object"
    missing = [name for name in NEEDED if name not in row]
    if missing:
        return f"no {', '.join(missing)}"
    if row["status"] not in ("finished", "diverged"):
        return f"status is {row['status']!r}"
    for name, kind in (("id", str), ("rule", str), ("values", str), ("seed", int)):
        if not isinstance(row[name], kind):
            return f"{name} is {row[name]!r}"
    if not isinstance(row["lr"], int | float):
        return f"lr is {row['lr']!r}"
    loss = row["val_loss"]
    number = isinstance(loss, int | float) and not isinstance(loss, bool)
    if row["status"] == "finished" and not (number and math.isfinite(loss)):
        return f"finished with val_loss {loss!r}"
    if row["status"] == "diverged" and loss is not None and not number:
        return f"val_loss is {loss!r}"
    budgets = row.get("budgets") or []
    if not (isinstance(budgets, list) and all(isinstance(ended, dict) for ended in budgets)):
        return f"budgets is {budgets!r}"
    for ended in budgets:
        if wrong := problem({**row, **ended, "budgets": None}):
            return f"budget {ended.get('steps')}: {wrong}"
    return None


def _refuse_constant(word: str) -> float:
    raise ValueError(f"{word} is not JSON")


def _warmup(record: Record) -> dict:
    """What run.json beside a result says of its warm-up, the one choice that results leave out."""
    try:
        return {"warmup": record.object("run.json")["run"]["recipe"]["warmup"]}
    except (RunFailed, KeyError, TypeError):
        return {}


def rows_of(record: Record) -> list[dict]:
    """A run's result as a row, or one per budget. ValueError says why it is corrupt."""
    try:
        row = json.loads(record.read("result.json"), parse_constant=_refuse_constant)
        if isinstance(row, dict):
            row = unsealed(row)
        wrong = problem(row)
    except OSError as error:
        wrong = error.strerror or str(error)
    except (ValueError, OverflowError, RecursionError) as error:  # JSON that is corrupt in any way
        wrong = str(error)
    if wrong:
        raise ValueError(wrong)
    return _by_budget(_warmup(record) | row)


def scan(folder: str | Path) -> Found:
    """Every run below `folder`, sorted by path: results, corrupt files, unfinished runs.

    Raises RRError where there is no folder.

    Example:
        >>> import rr
        >>> from rr.stats import scan
        >>> scan(rr.DATA / "measured" / "mini_arms").damaged
        []
    """
    runs = Found()
    for record in read_records(folder):
        if "result.json" not in record:
            runs.waiting.append(record.place)
            continue
        try:
            runs.rows += rows_of(record)
        except ValueError as error:
            runs.damaged.append((record.place / "result.json", str(error)))
    return runs


def read_results(folder: str | Path) -> list[dict]:
    """Results of all runs below `folder`, sorted by path; with decay branches, a row per budget.

    Returns rows with the keys of result.json: `id, rung, rule, values, seed, lr, steps, status`
    ("finished" or "diverged"), `val_loss` (nats per token), `ece` and others. A corrupt file is
    named on stderr and counted, never used; so are folders with a run.json and no result yet.
    Raises RRError where there is no folder or no result.

    Example:
        >>> import rr
        >>> from rr.stats import read_results
        >>> rows = read_results(rr.DATA / "measured" / "mini_arms")
        >>> {row["rung"] for row in rows}
        {'mini'}
    """
    runs = scan(folder)
    rows, corrupt, waiting = runs.rows, len(runs.damaged), len(runs.waiting)
    for path, why in runs.damaged:
        print(f"rr: left out {path}: {why}", file=sys.stderr)
    if corrupt:
        print(f"rr: {corrupt} corrupt of {corrupt + len(rows)} results", file=sys.stderr)
    if waiting:
        known = waiting + corrupt + len(rows)
        print(f"rr: {waiting} of {known} runs have no result yet", file=sys.stderr)
    if not rows:
        raise RRError(f"no readable result.json below {folder}: train some runs first")
    return rows


def _by_budget(row: dict) -> list[dict]:
    """A run with decay branches as one row per budget, "<id>/<steps>"; any other as it is."""
    if not row.get("budgets"):
        return [row]
    rest = {name: value for name, value in row.items() if name != "budgets"}
    return [{**rest, **ended, "id": f"{row['id']}/{ended['steps']}"} for ended in row["budgets"]]
