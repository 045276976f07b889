"""Results of a folder of runs as a DataFrame.

A corrupt file is named and never used; so is a run that was begun and has no result yet.
"""

import json
import math
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rr.errors import RRError, RunFailed
from rr.io import unsealed

from .records import RUNS, Record, read_records

if TYPE_CHECKING:
    import pandas as pd

# Runs are comparable only where all of these agree. The learning rate is left out: each arm may
# have been tuned on its own.
GROUP = (
    "rung", "protocol", "corpus", "tokenizer", "loops", "batch", "steps", "flavour", "precision",
    "eval_shortened",
)  # fmt: skip
# The same, where a result says so (two files of one name are two corpora), or its run.json.
TOLD = (
    "corpus_id", "tokenizer_id", "eval_batches", "depth_lr", "warmup", "optimizer", "settings",
)  # fmt: skip
# Fields of a recipe and of a model that no option of `rr train` sets: their defaults, by protocol.
FIXED = {"betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "clip": 1.0, "tied": True}
UNASKED = {
    "clean": FIXED | {"schedule": "plateau", "decay_all": False, "pad_vocab": True},
    "paper": FIXED | {"schedule": "cosine", "decay_all": True, "pad_vocab": False},
}
KINDS = {"string": str, "int64": int, "double": (int, float)}  # of columns
MARKUP = re.compile(r"<[a-zA-Z/!?]|[\r\n`]")
NEEDED = ("id", "rule", "values", "seed", "lr", "status", "val_loss", *GROUP)


def short_name(rule: str) -> str:
    """A rule's name in tables: that of `folder/my_rule.py:Class` without its folder."""
    path, dot_py, rest = rule.partition(".py:")
    return f"{Path(path).name}{dot_py}{rest}"


def arm_named(spec: str) -> str:
    """The arm of `rr`'s runs with the rules `spec`, whose options are as a run takes them.

    Runs name their rules canonically: `constant:c=0.5` is the arm `constant`. A rule that `rr`
    lacks, or that is in a file, stays as it is named: nothing is imported here.
    """
    from rr.residual import canonical  # imports torch, which tables do without otherwise

    rule, plus, values = spec.partition(" + ")
    try:
        name = short_name(canonical(rule))
        return f"{name} + {short_name(canonical(values, 'values'))}" if plus else name
    except RRError:
        return short_name(spec)


def arm_of(row: Mapping) -> str:
    """The name of a run's arm: its rule, with its value rule where that is not `own`.

    A row of a tidy table names its arm itself.
    """
    if "rule" not in row:
        return row["arm"]
    rule, values = short_name(row["rule"]), short_name(row["values"])
    return rule if values == "own" else f"{rule} + {values}"


def group_key(row: Mapping, names: Iterable[str] = GROUP + TOLD) -> tuple[str, ...]:
    """A key that is equal for two runs exactly where these of their columns agree."""
    values = [row.get(name) for name in names]
    return tuple(value if isinstance(value, str) else json.dumps(value) for value in values)


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
    for name in RUNS.keys() & row.keys():
        value, kind = row[name], KINDS[RUNS[name]]
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            return f"{name} is {value!r}"
    for name, value in row.items():
        if isinstance(value, str) and MARKUP.search(value):  # a report would show it as its own
            return f"{name} holds markup or a line break: {value!r}"
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
        if not isinstance(ended.get("steps"), int):
            return f"a budget's steps are {ended.get('steps')!r}"
        if wrong := problem({**row, **ended, "budgets": None}):
            return f"budget {ended.get('steps')}: {wrong}"
    return None


def _refuse_constant(word: str) -> float:
    raise ValueError(f"{word} is not JSON")


def _described(record: Record, row: dict) -> dict:
    """What run.json beside a result says that results leave out: `warmup` and `settings`.

    settings: what no option of `rr train` gives, where it is not the default, "clip=0.5"; absent
    where nothing is.
    """
    try:
        described = record.object("run.json")
        run = described["run"]
        given, usual = run.get("model", {}) | run["recipe"], UNASKED.get(row["protocol"], FIXED)
        found = {"warmup": run["recipe"]["warmup"]}
        other = [
            f"{name}={given[name]}" for name in usual if given.get(name, usual[name]) != usual[name]
        ]
    except (RunFailed, KeyError, TypeError, AttributeError):
        return {}
    if described.get("id") != row.get("id"):
        raise ValueError(f"it is the result of run {row.get('id')}, not of the run.json beside it")
    return found | ({"settings": ", ".join(other)} if other else {})


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
    return _by_budget(_described(record, row) | row)


def scan(folder: str | Path) -> "pd.DataFrame":
    """Every run below `folder`, sorted by path, as `read_results()` gives them; may be empty.

    Nothing is printed: `attrs["corrupt"]` lists (a corrupt file, what is wrong with it), and
    `attrs["unfinished"]` the folders of runs that have no result yet. Raises RRError where there is
    no folder.

    Example:
        >>> import rr
        >>> from rrstudy.stats import scan
        >>> scan(rr.DATA / "measured" / "mini_arms").attrs["corrupt"]
        []
    """
    from .frames import as_frame  # pandas: needed for this alone

    rows, corrupt, unfinished = [], [], []
    for record in read_records(folder):
        if "result.json" not in record:
            unfinished.append(record.place)
            continue
        try:
            if "run.json" in record:  # without it a result is of no known recipe
                record.object("run.json")
        except RunFailed as error:
            why = str(error).partition(" is corrupt: ")[2]
            corrupt.append((record.place / "run.json", why))
            continue
        try:
            rows += rows_of(record)
        except ValueError as error:
            corrupt.append((record.place / "result.json", str(error)))
    frame = as_frame(rows)
    frame.attrs = {"corrupt": corrupt, "unfinished": unfinished}
    return frame


def read_results(folder: str | Path) -> "pd.DataFrame":
    """Results of all runs below `folder`, sorted by path; with decay branches, a row per budget.

    Returns a DataFrame with the keys of result.json as columns: `id, rung, rule, values, seed, lr,
    steps, status` ("finished" or "diverged"), `val_loss` (nats per token), `ece` and others.
    `as_rows()` makes dictionaries of it. A corrupt file is named on stderr and counted, never used;
    so are folders with a run.json and no result yet (`scan()` has both). Raises RRError where there
    is no folder or no result.

    Example:
        >>> import rr
        >>> from rrstudy.stats import read_results
        >>> runs = read_results(rr.DATA / "measured" / "mini_arms")
        >>> set(runs.rung)
        {'mini'}
    """
    runs = scan(folder)
    corrupt, unfinished = runs.attrs["corrupt"], runs.attrs["unfinished"]
    results = len(runs) + len(corrupt)
    for path, why in corrupt:
        print(f"rr: left out {path}: {why}", file=sys.stderr)
    if corrupt:
        print(f"rr: {len(corrupt)} corrupt of {results} results", file=sys.stderr)
    if unfinished:
        known = len(unfinished) + results
        print(f"rr: {len(unfinished)} of {known} runs have no result yet", file=sys.stderr)
    if runs.empty:
        raise RRError(f"no readable result.json below {folder}: train some runs first")
    return runs


def _by_budget(row: dict) -> list[dict]:
    """A run with decay branches as one row per budget, "<id>/<steps>"; any other as it is.

    Whole stories are scored, and the time is taken, at the end of the run: the last row's alone.
    """
    if not row.get("budgets"):
        return [row]
    rest = {name: value for name, value in row.items() if name != "budgets"}
    rows = [{**rest, **ended, "id": f"{row['id']}/{ended['steps']}"} for ended in row["budgets"]]
    whole = {"story_loss", "seconds"} & row.keys()
    return [earlier | dict.fromkeys(whole) for earlier in rows[:-1]] + rows[-1:]
