"""The tidy table: runs of any trainer as lines of arm, seed and loss.

Nothing is guessed. Which rows of a trainer's log are the held-out loss, and what its restarts mean,
only a reader of that log knows; the book's page *Runs of another trainer* has the lines of pandas.
"""

import io
import json
import math
import warnings
from pathlib import Path
from typing import Any

import pandas as pd

from rr.errors import RRError

COLUMNS = {"arm", "seed", "loss"}
OPTIONAL = {"step", "status"}
# words of a status -> as `compare()` knows it; the last line as W&B and MLflow name it
STATUS = {
    "finished": "finished",
    "diverged": "diverged",
    "unfinished": "unfinished",
    **dict.fromkeys(("crashed", "failed", "killed", "preempted", "running"), "unfinished"),
}
SHAPE = "a tidy table has the columns arm, seed and loss, and may have step and status"
PAGE = "the book's page 'Runs of another trainer' shows how to make one"


def read_table(source: str | Path | pd.DataFrame) -> pd.DataFrame:
    """One row per run of a tidy table, for `compare()`, `spread()` and `render()`.

    source: a DataFrame, or a file that pandas reads: .csv (UTF-8, commas, decimal points),
    .parquet, or .jsonl. Its columns are `arm` (text), `seed` (an integer), `loss` (a number, in any
    unit), and maybe `step` and `status`; it has no others.

    Without `step` a run is one row. With it a run may have several, and its loss is that of its
    last step, which must be the same step for all finished runs. status: "finished" (the default),
    "diverged" or "unfinished"; "crashed", "failed", "killed", "preempted" and "running" are
    unfinished. A run whose last loss is NaN or infinite is diverged.

    Returns a DataFrame with `arm, seed, val_loss, status` and, where the table has it, `step`;
    val_loss is NaN where a run is not finished. Raises RRError, one line, for anything else: other
    columns, a cell that is empty or no number, a run with two rows (at one step), with two
    statuses, with a loss that is not finite and a finite one later, or with a loss of exactly 0,
    which trainers write after an overflow; for finished runs that end at different steps.

    Example:
        >>> import pandas as pd
        >>> from rrstudy.stats import compare, read_table
        >>> losses = {"a": [3.1, 3.2], "b": [2.9, 3.1]}
        >>> rows = [(arm, seed, x) for arm in losses for seed, x in enumerate(losses[arm])]
        >>> runs = read_table(pd.DataFrame(rows, columns=["arm", "seed", "loss"]))
        >>> compare(runs, baseline="a").set_index("arm").difference.round(3)["b"]
        np.float64(-0.15)
    """
    if isinstance(source, pd.DataFrame):
        name, frame = "the table", source
    else:
        name, frame = str(source), _read(Path(source))
    columns = [str(column) for column in frame.columns]
    if not COLUMNS <= set(columns) <= COLUMNS | OPTIONAL or len(set(columns)) < len(columns):
        named = ", ".join(columns[:8]) + (", …" if len(columns) > 8 else "")
        raise RRError(f"{name} has the columns {named}: {SHAPE}, and no others; {PAGE}")
    if frame.empty:
        raise RRError(f"{name} has no rows: expected one per run")
    by_run: dict[tuple[str, int], dict[float | None, dict]] = {}
    for place, cells in enumerate(frame.to_dict("records")):
        row = _checked({str(key): cell for key, cell in cells.items()}, f"{name}, row {place + 1}")
        steps = by_run.setdefault((row["arm"], row["seed"]), {})
        if row["step"] in steps:
            at = "" if row["step"] is None else f" at step {row['step']:g}"
            raise RRError(
                f"{name} has two rows of {_run(row)}{at}: keep one (a restart, or another loss?)"
            )
        steps[row["step"]] = row
    runs = [_ended(name, steps) for steps in by_run.values()]
    last = {run["step"]: run for run in runs if run["status"] == "finished"}
    if len(last) > 1:
        least, most = (last[step] for step in (min(last), max(last)))
        raise RRError(
            f"{name}: finished runs end at different steps, {_run(least)} at {least['step']:g} and "
            f"{_run(most)} at {most['step']:g}: keep the rows up to a step that all have, or give "
            "the status of runs that did not finish"
        )
    frame = pd.DataFrame(runs).rename(columns={"loss": "val_loss"})
    frame["val_loss"] = frame["val_loss"].where(frame["status"] == "finished")
    return frame if "step" in columns else frame.drop(columns="step")


def _read(path: Path) -> pd.DataFrame:
    """The table in a file, the cells of a CSV as text."""
    if not path.exists():
        raise RRError(f"no file {path}: expected a folder of runs, or a tidy table")
    if path.suffix not in (".csv", ".parquet", ".jsonl"):
        raise RRError(
            f"{path} is neither a folder of runs nor a .csv, .parquet or .jsonl file: {SHAPE}; "
            f"{PAGE}"
        )
    try:
        if path.suffix == ".parquet":
            return pd.read_parquet(path)
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix == ".jsonl":
            lines = filter(str.strip, text.split("\n"))
            rows = [json.loads(line, object_pairs_hook=_object) for line in lines]
            names = list(dict.fromkeys(name for row in rows for name in row))
            return pd.DataFrame([[row.get(name) for name in names] for row in rows], None, names,
                                dtype=object)  # fmt: skip
        if not text.endswith("\n"):
            raise ValueError("its last line does not end, so it may be cut off")
        with warnings.catch_warnings():  # of lines with more cells than the header
            warnings.simplefilter("error", pd.errors.ParserWarning)
            return pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False, index_col=False)
    except UnicodeDecodeError:
        raise RRError(f"{path} is not UTF-8 text: save it as CSV in UTF-8") from None
    except (ValueError, TypeError, AttributeError, OSError, RecursionError, LookupError,
            OverflowError, NotImplementedError, pd.errors.ParserWarning) as error:  # fmt: skip
        words = " ".join(str(error).split())
        raise RRError(f"{path} cannot be read as a table: {words}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; ValueError where it has a key twice."""
    if len(dict(pairs)) < len(pairs):
        raise ValueError("an object has a key twice")
    return dict(pairs)


def _checked(cells: dict[str, Any], at: str) -> dict:
    """A row with cells of the right types; RRError for one that is empty or of another type."""
    row: dict[str, Any] = {
        "arm": str(_known(cells["arm"], "arm", at)).strip(),
        "seed": _number(cells["seed"], "seed", at),
        "loss": _number(cells["loss"], "loss", at),
        "step": _number(cells["step"], "step", at) if "step" in cells else None,
        "status": str(_known(cells.get("status", "finished"), "status", at)).strip().lower(),
    }
    for name in ("seed", "step"):
        if row[name] is not None and not math.isfinite(row[name]):
            raise RRError(f"{at}: {name} must be a finite number, got {cells[name]!r}")
    if row["seed"] != int(row["seed"]):
        raise RRError(f"{at}: seed must be an integer, got {cells['seed']!r}")
    if row["status"] not in STATUS:
        raise RRError(f"{at}: status must be one of {', '.join(STATUS)}, got {cells['status']!r}")
    return row | {"seed": int(row["seed"]), "status": STATUS[row["status"]]}


def _known(cell: object, name: str, at: str) -> object:
    """A cell that is not empty; NaN is a number, of a loss alone."""
    missing = cell is None or cell is pd.NA or (isinstance(cell, float) and math.isnan(cell))
    if (missing and not (name == "loss" and isinstance(cell, float))) or not str(cell).strip():
        more = "; write nan for a loss that is not finite" if name == "loss" else ""
        raise RRError(f"{at}: {name} is empty: every row has its {name}{more}")
    return cell


def _number(cell: object, name: str, at: str) -> float | int:
    _known(cell, name, at)
    try:
        if name == "seed" and str(cell).strip().lstrip("-").isdigit():
            return int(str(cell))  # above 2⁵³ a float would be another seed
        if isinstance(cell, bool) or not hasattr(cell, "__float__") and not isinstance(cell, str):
            raise ValueError
        return float(cell)  # pyright: ignore[reportArgumentType]
    except (ValueError, TypeError, OverflowError):
        kind = "an integer" if name == "seed" else "a number with a decimal point"
        raise RRError(f"{at}: {name} must be {kind}, got {str(cell)[:60]!r}") from None


def _run(row: dict) -> str:
    return f"arm {row['arm']!r}, seed {row['seed']}"


def _ended(name: str, steps: dict[Any, dict]) -> dict:
    """The last row of a run, with the status of the whole."""
    rows = [steps[step] for step in sorted(steps)] if None not in steps else list(steps.values())
    last = rows[-1]
    if len({row["status"] for row in rows}) > 1:
        raise RRError(f"{name} has two statuses for {_run(last)}: a run has one")
    finite = [math.isfinite(row["loss"]) for row in rows]
    if last["status"] != "finished":
        return last
    if not finite[-1]:
        last = last | {"status": "diverged"}
    elif not all(finite):
        raise RRError(
            f"{name}: {_run(last)} has a loss that is not finite and a finite one later: leave out "
            "rows where nothing was measured, or set the run's status"
        )
    elif last["loss"] == 0:
        raise RRError(
            f"{name}: {_run(last)} ends with a loss of exactly 0, as trainers write it after an "
            "overflow: set the run's status"
        )
    return last
