"""Logs of other trainers as rows of arm, seed and final loss: CSV, JSONL, W&B and TensorBoard.

Three shapes are read. A *long* table has a line per measurement, with the arm and the seed in
columns of their own. A *wide* table, W&B's export of a chart, has a column per run,
"<run> - <loss>". A *file per run* holds one curve: TensorBoard's export "Wall time,Step,Value", any
other table without arm and seed, or a folder of event files. In the last two a pattern such as
"{arm}-s{seed}" says how the name of a run (of a file without its ending, of a folder below the one
that was given) holds its arm and its seed.
"""

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ..config import RRError, nearest

NOT_LOGGED = ("", "null", "None")  # an empty cell of a table: nothing was measured there


def read_logs(
    paths: Sequence[str | Path],
    loss: str,
    arm: str | None = None,
    seed: str | None = None,
    step: str | None = None,
    run: str | None = None,
) -> list[dict]:
    """One row per run of these files and folders of another trainer: the final loss.

    Three shapes are read. A *long* table (CSV, TSV, JSONL) has a line per measurement, with the arm
    and the seed in columns. A *wide* table, as Weights & Biases exports a chart, has a column per
    run, "RUN - LOSS". A *file per run* holds one curve: TensorBoard's export, any other table
    without arm and seed, or a folder of event files.

    paths: files, or folders of TensorBoard. loss: column (or tag of an event file) of the loss.
    arm, seed, step: columns of a long table. run: a pattern such as "{arm}-s{seed}" for the names
    of runs, instead of arm and seed: of columns in a wide table, else of files and folders.

    Returns rows with `arm, seed, val_loss` (in the unit of the column), `status` and `step` (the
    run's last). With a step, a run's loss is that at the last step which any run has: a run that
    ends before it is "unfinished", its val_loss None. A loss that is not finite makes the run
    "diverged", its val_loss None; so does an empty one where there is no step. Others are
    "finished".

    Raises RRError for a missing column, a name that does not fit the pattern, a word that is no
    number, a run with two losses at one step, or where there is no loss.

    Example:
        >>> import pathlib, tempfile
        >>> from rr.stats import read_logs
        >>> text = "arm,seed,loss\\na,0,3.1\\na,1,3.2\\nb,0,2.9\\nb,1,3.1"
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "runs.csv")
        ...     _ = path.write_text(text)
        ...     rows = read_logs([path], loss="loss", arm="arm", seed="seed")
        >>> rows[0]["arm"], rows[0]["val_loss"], len(rows)
        ('a', 3.1, 4)
    """
    names = _Names(run, arm, seed)
    curves: dict[tuple, dict] = {}
    for path in map(Path, paths):
        for key, at, value, where in _measured(path, loss, step, names):
            curve = curves.setdefault(key, {})
            if at in curve:
                raise RRError(_twice(where, key, at, step))
            curve[at] = value
    if not curves:
        raise RRError(f"no {loss!r} in {', '.join(map(str, paths))}: give a file with a loss")
    last = max(at for curve in curves.values() for at in curve)
    seeds = _seeds(seed for _, seed in curves)
    return [
        {"arm": name, "seed": seeds[word], **_end(curve, last)}
        for (name, word), curve in curves.items()
    ]


def _end(curve: dict, last: float) -> dict:
    """Loss, status and last step of a run whose curve is step -> loss."""
    at = max(curve)
    lost = not all(map(math.isfinite, curve.values()))
    status = "diverged" if lost else "finished" if at == last else "unfinished"
    return {"val_loss": curve[at] if status == "finished" else None, "status": status, "step": at}


def _twice(where: str, key: tuple, at: float, step: str | None) -> str:
    of = f"{where}: arm {key[0]!r} with seed {key[1]}"
    if step is None:
        return f"{of} has two losses: give one line per run, or --step COLUMN"
    return f"{of} has two losses at step {at:g}: give one per step"


def _seeds(words: Iterable[str]) -> dict[str, int | str]:
    """Seeds as integers where all of them are ("3" and "3.0" alike), else as they stand."""
    words = list(words)
    try:
        numbers = {word: float(word) for word in words}
        if all(number.is_integer() for number in numbers.values()):
            return {word: int(number) for word, number in numbers.items()}
    except ValueError:
        pass
    return {word: word for word in words}


class _Names:
    """Where arm and seed stand: in two columns, or in the name of a run by a pattern."""

    def __init__(self, pattern: str | None, arm: str | None, seed: str | None) -> None:
        self.pattern, self.columns = pattern, (arm, seed)
        if pattern is not None:
            if arm or seed:
                raise RRError(
                    f"arm and seed stand in columns or in the run's name, not in both: give --run "
                    f"{pattern!r}, or --arm and --seed"
                )
            if pattern.count("{arm}") != 1 or pattern.count("{seed}") != 1:
                raise RRError(
                    f"--run must hold {{arm}} and {{seed}} once each, as '{{arm}}-s{{seed}}' does, "
                    f"got {pattern!r}"
                )
            parts = re.escape(pattern).replace(r"\{arm\}", "(?P<arm>.+)")
            self.regex = re.compile(parts.replace(r"\{seed\}", r"(?P<seed>\w+)"))

    def of_run(self, name: str) -> tuple[str, str]:
        """Arm and seed of a run that is called so."""
        if self.pattern is None:
            raise RRError(
                f"arm and seed of {name!r} are in no column: "
                "give --arm and --seed, or --run '{arm}-s{seed}'"
            )
        match = self.regex.fullmatch(name)
        if match is None:
            raise RRError(f"run {name!r} does not fit --run {self.pattern!r}")
        return match["arm"], match["seed"]


def _measured(
    path: Path, loss: str, step: str | None, names: _Names
) -> Iterator[tuple[tuple[str, str], float, float, str]]:
    """(arm, seed), step (0 where there is none), loss, and where that stands."""
    if path.is_dir():
        yield from _events(path, loss, names)
        return
    columns, rows = _table(path)
    wide = [] if loss in columns else [name for name in columns if name.endswith(f" - {loss}")]
    if loss not in columns and not wide:
        raise _missing(path, loss, columns)
    if wide:  # W&B names the column of its steps so
        step = step or "Step"
    for name in filter(None, (step, *(() if wide else names.columns))):
        if name not in columns:
            raise _missing(path, name, columns)
    runs = {name: names.of_run(name.removesuffix(f" - {loss}")) for name in wide}
    whole = None if wide or all(names.columns) else names.of_run(path.stem)
    for where, row in rows:
        at = 0.0 if step is None else _number(row.get(step), step, where)
        for name in wide or [loss]:
            value = _number(row.get(name), name, where)
            if value is None and step is not None:
                continue  # this run logged nothing at this step
            if at is None or not math.isfinite(at):
                raise RRError(
                    f"{where}: {step!r} must be a finite number beside a loss, got "
                    f"{row.get(step)!r}"
                )
            key = runs.get(name) or whole or _cells(row, names.columns, where)
            yield key, at, math.nan if value is None else value, where


def _missing(path: Path, name: str, columns: Sequence[str]) -> RRError:
    return RRError(f"{path} has no column {name!r}: {nearest(name, columns)}")


def _cells(row: dict, columns: Sequence[str | None], where: str) -> tuple[str, str]:
    arm, seed = (row.get(name) for name in columns)
    for name, value in zip(columns, (arm, seed), strict=True):
        if value is None or str(value).strip() in NOT_LOGGED:
            raise RRError(f"{where}: {name!r} is empty: every run needs its arm and its seed")
    return str(arm).strip(), str(seed).strip()


def _number(cell: object, name: str, where: str) -> float | None:
    """A cell as a number (NaN and infinities are some); None where nothing was logged."""
    if cell is None or str(cell).strip() in NOT_LOGGED:
        return None
    try:
        if isinstance(cell, bool):
            raise ValueError
        return float(cell)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise RRError(f"{where}: {name!r} must be a number, got {cell!r}") from None


def _table(path: Path) -> tuple[list[str], list[tuple[str, dict]]]:
    """Columns and rows of a CSV, TSV or JSONL file; a row with the words that name its line."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise RRError(f"{path} is not UTF-8 text: give CSV, TSV or JSONL") from None
    if path.suffix in (".jsonl", ".ndjson", ".json"):
        rows = [
            (f"{path}, line {i}", _object(line, f"{path}, line {i}"))
            for i, line in enumerate(text.splitlines(), 1)
            if line.strip()
        ]
        return list(dict.fromkeys(name for _, row in rows for name in row)), rows
    reader = csv.DictReader(text.splitlines(), delimiter="\t" if path.suffix == ".tsv" else ",")
    rows = [(f"{path}, line {reader.line_num}", row) for row in reader]
    return list(reader.fieldnames or []), rows


def _object(line: str, where: str) -> dict:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        raise RRError(f"{where} is not a JSON object: give one per line")
    return row


def _events(
    folder: Path, tag: str, names: _Names
) -> Iterator[tuple[tuple[str, str], float, float, str]]:
    """The same from TensorBoard's event files, a folder below `folder` per run."""
    files = sorted(folder.rglob("events.out.tfevents.*"))
    if not files:
        raise RRError(
            f"no event files below {folder}: give TensorBoard's folder, or a file of losses"
        )
    # imported here: it is needed for these files alone
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for where in dict.fromkeys(file.parent for file in files):
        key = names.of_run(where.relative_to(folder).as_posix())
        events = EventAccumulator(str(where), size_guidance={"scalars": 0}).Reload()
        tags = events.Tags()["scalars"]
        if tag not in tags:
            raise RRError(f"{where} has no scalar {tag!r}: {nearest(tag, tags)}")
        for event in events.Scalars(tag):
            yield key, float(event.step), float(event.value), str(where)
