"""Logs of other trainers as one row per run.

Three shapes are read. A *long* table has a line per measurement, with the arm and the seed in
columns of their own. A *wide* table, W&B's export of a chart, has a column per run, "RUN - LOSS". A
*file per run* holds one curve: TensorBoard's export, the Trainer's `trainer_state.json`,
Lightning's `metrics.csv`, Keras' CSVLogger, any other table without arm and seed, or a folder of
event files. In the last two a pattern such as "{arm}-s{seed}" says how the name of a run holds its
arm and its seed: of a column, of a file without its ending, or of a folder on the way to it.

Where two readings are possible none is chosen: one line names them and the option that decides.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from ..config import RRError, nearest
from .files import EMPTY, Table, finite, read_table
from .frames import as_frame

STEPS = ("step", "global_step", "_step", "trainer/global_step", "iteration", "iter")
GENERATED = re.compile(r"checkpoint-\d+|version_\d+|trainer_state|metrics|training|history|log")
TENSORBOARD = ["Wall time", "Step", "Value"]  # its export of a chart
PER_RUN = ("trainer_state.json", "metrics.csv")  # what is looked for first in a folder
TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".gz", ".bz2", ".xz", ".zip")


@dataclass
class _Point:
    """One measurement."""

    arm: str
    seed: str
    step: float | None
    loss: float
    source: str  # the file that its place in the order is of
    place: str  # for messages


@dataclass
class _Options:
    """What the caller says of the logs, and what was assumed beside it."""

    loss: str | None
    arm: str | None
    seed: str | None
    step: str | None
    run: str | None
    at: float | None
    duplicates: str | None
    decimal: str | None
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.duplicates not in (None, "first", "last", "error"):
            raise RRError(f"duplicates must be first, last or error, got {self.duplicates!r}")
        if self.decimal not in (None, ".", ","):
            raise RRError(f"the decimal mark must be . or , got {self.decimal!r}")
        if self.run is None:
            return
        if self.arm or self.seed:
            raise RRError(
                f"arm and seed stand in columns or in the run's name, not in both: give --run "
                f"{self.run!r}, or --arm and --seed"
            )
        if self.run.count("{arm}") != 1 or self.run.count("{seed}") != 1:
            raise RRError(
                f"--run must hold {{arm}} and {{seed}} once each, as '{{arm}}-s{{seed}}' does, "
                f"got {self.run!r}"
            )

    def note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    def of_run(self, name: str) -> tuple[str, str]:
        """Arm and seed of a run that is called so."""
        if self.run is None:
            raise RRError(
                f"arm and seed of {name!r} are in no column: "
                "give --arm and --seed, or --run '{arm}-s{seed}'"
            )
        parts = re.escape(self.run).replace(r"\{arm\}", "(?P<arm>.+)")
        match = re.fullmatch(parts.replace(r"\{seed\}", r"(?P<seed>\w+)"), name)
        if match is None:
            raise RRError(f"run {name!r} does not fit --run {self.run!r}")
        return match["arm"], match["seed"]

    def of_path(self, path: Path, below: Path | None) -> tuple[str, str]:
        """Arm and seed of the run that a file holds: from its name, or from folders on the way."""
        parts = path.relative_to(below).parts if below else path.parts[-4:]
        parts = [*parts[:-1], re.sub(r"\.(csv|tsv|jsonl?|ndjson|gz|bz2|xz|zip)\b", "", parts[-1])]
        parts = [part for part in parts if not GENERATED.fullmatch(part)]
        depth = (self.run or "").count("/") + 1
        names = ["/".join(parts[i : i + depth]) for i in range(len(parts) - depth + 1)]
        fits = {}
        for name in names:
            try:
                fits.setdefault(self.of_run(name), name)
            except RRError:
                if len(names) == 1:
                    raise
        if len(fits) > 1:
            named = " and ".join(map(repr, fits.values()))
            raise RRError(f"{path}: {named} fit --run {self.run!r}: give a pattern that one fits")
        if not fits:
            return self.of_run(path.stem if below is None else path.relative_to(below).as_posix())
        return next(iter(fits))


def read_logs(
    paths: Sequence[str | Path],
    loss: str | None = None,
    arm: str | None = None,
    seed: str | None = None,
    step: str | None = None,
    run: str | None = None,
    at: float | None = None,
    duplicates: str | None = None,
    decimal: str | None = None,
) -> pd.DataFrame:
    """One row per run of these files and folders of another trainer: the loss that is compared.

    Three shapes are read. A *long* table (CSV in any dialect, JSON, JSONL, compressed or not) has a
    line per measurement, with the arm and the seed in columns. A *wide* table, as Weights & Biases
    exports a chart, has a column per run, "RUN - LOSS". A *file per run* holds one curve:
    TensorBoard's export, `trainer_state.json`, `metrics.csv`, any other table without arm and seed,
    or a folder of event files.

    paths: files, or folders of them. loss: column (or tag of an event file) of the loss; without
    it the only one that has "loss" in its name. arm, seed, step: columns of a long table; those
    that are called so without them. run: a pattern such as "{arm}-s{seed}" for the names of runs,
    instead of arm and seed: of columns in a wide table, else of files and folders. at: the step
    that is compared. duplicates: which of several losses of a run at one step counts, "first",
    "last" or "error"; without it the last where the order of the file shows that a run was resumed.
    decimal: the decimal mark, "." or ",", where cells such as "1,000" leave it open.

    Returns a DataFrame with `arm, seed, val_loss` (in the unit of the column), `status` and `step`;
    `attrs["notes"]` lists what was assumed. With a step, runs are compared at the last one at which
    each has a loss, or at `at`: a run without a loss there is "unfinished". A loss that ends as NaN
    or infinite makes the run "diverged". Both have NaN as val_loss; others are "finished". A step
    without a value is no step.

    Raises RRError, one line, for a column that is missing or there twice, several columns that
    could be meant, a name that does not fit the pattern, a word that is no number, a damaged file,
    a run with two losses at one step where no order decides, and where there is no loss.

    Example:
        >>> import pathlib, tempfile
        >>> from rr.stats import read_logs
        >>> text = "arm,seed,loss\\na,0,3.1\\na,1,3.2\\nb,0,2.9\\nb,1,3.1\\n"
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "runs.csv")
        ...     _ = path.write_text(text)
        ...     runs = read_logs([path])
        >>> runs.val_loss.tolist(), runs.status.unique().tolist()
        ([3.1, 3.2, 2.9, 3.1], ['finished'])
    """
    options = _Options(loss, arm, seed, step, run, at, duplicates, decimal)
    points: list[_Point] = []
    for path in map(Path, paths):
        points += _measured(path, options)
    if not points:
        named = ", ".join(map(str, paths))
        raise RRError(f"no {loss or 'loss'!r} in {named}: give a file with a loss")
    frame = as_frame(_runs(points, options))
    frame.attrs["notes"] = options.notes
    return frame


# ---- From files to measurements ------------------------------------------------------------------


def _measured(path: Path, options: _Options) -> Iterator[_Point]:
    """Every measurement in a file or a folder."""
    if not path.is_dir():
        yield from _of_table(path, None, options)
        return
    if any(path.rglob("events.out.tfevents.*")):
        yield from _events(path, options)
        return
    for name in (*PER_RUN, *(f"*{ending}" for ending in TABLES)):
        if files := sorted(file for file in path.rglob(name) if file.is_file()):
            for file in files:
                yield from _of_table(file, path, options)
            return
    raise RRError(f"no runs, event files or tables below {path}: give a folder of logs, or a file")


def _of_table(path: Path, below: Path | None, options: _Options) -> Iterator[_Point]:
    wanted = [options.loss, options.arm or "arm", options.seed or "seed", options.step]
    table = read_table(path, [name for name in wanted if name], options.loss)
    loss, wide = _loss_column(table, options)
    columns = wide or [loss]
    keys = _keys(table, columns, loss, below, options)
    step = options.step
    if step is None:
        step = _step_column(table, keys, columns, bool(wide), options)
    numbers = table.numbers([*columns, *([step] if step else [])], options.decimal)
    for note in table.notes:
        options.note(note)
    for column in columns:
        for row, value in enumerate(numbers[column]):
            if value is None:  # nothing was measured at this step, but there is a run
                try:
                    run = keys(row, column)
                except RRError:
                    if step is None or wide:
                        raise
                    continue  # a line that names no run and holds no loss
                yield _Point(*run, None, math.nan, "", table.line(row))
                continue
            at = numbers[step][row] if step else None
            if step and not finite(at):
                raise RRError(
                    f"{table.line(row)}: {step!r} must be a finite number beside a loss, got "
                    f"{table.column(step)[row]!r}"
                )
            yield _Point(*keys(row, column), at, value, str(path), table.line(row))


def _loss_column(table: Table, options: _Options) -> tuple[str, list[str]]:
    """The loss, and the columns of a wide table that hold it."""
    names = list(dict.fromkeys(table.columns))
    loss = options.loss
    if loss is None:
        usable = [name for name in names if not name.endswith(("__MIN", "__MAX"))]
        losses = [name for name in usable if "loss" in name.lower()]
        if table.columns == TENSORBOARD:
            losses = ["Value"]
        found = list(dict.fromkeys(name.rpartition(" - ")[2] for name in losses))
        if len(found) != 1:
            which = " or ".join(f"--loss {name!r}" for name in found) or "--loss COLUMN"
            known = "" if found else f" of {', '.join(names[:12])}"
            raise RRError(f"{table.path}: which column is the loss? give {which}{known}")
        (loss,) = found
        options.note(f"{table.path}: the loss is column {loss!r}")
    wide = [name for name in names if name.endswith(f" - {loss}")]
    if loss in names and wide:
        raise RRError(
            f"{table.path} has a column {loss!r} and columns as {wide[0]!r}: delete one kind"
        )
    if loss not in names and not wide:
        raise RRError(f"{table.path} has no column {loss!r}: {nearest(loss, names)}")
    return loss, wide


def _keys(table: Table, columns: Sequence[str], loss: str, below: Path | None, options: _Options):
    """A function of a row and a column: the arm and the seed of the run measured there."""
    if columns != [loss]:
        named = {name: options.of_run(name.removesuffix(f" - {loss}")) for name in columns}
        return lambda row, column: named[column]
    names = [options.arm, options.seed]
    if options.run is None:
        names = [
            name or (word if word in table.columns else None)
            for name, word in zip(names, ("arm", "seed"), strict=True)
        ]
    if options.run is not None or not all(names):
        known = " and ".join(f"--{word} COLUMN" for word in ("arm", "seed") if not options.run)
        if options.run is None and any(names):
            raise RRError(f"{table.path}: arm and seed are in two columns: give {known}")
        arm_and_seed = options.of_path(table.path, below)
        return lambda row, column: arm_and_seed
    arms, seeds = (table.words(str(name)) for name in names)

    def key(row: int, column: str) -> tuple[str, str]:
        for name, cell in zip(names, (arms[row], seeds[row]), strict=True):
            if cell is None or str(cell).strip() in EMPTY[:3] or str(cell).lower() == "nan":
                raise RRError(
                    f"{table.line(row)}: {name!r} is empty: every run needs its arm and its seed"
                )
        return str(arms[row]).strip(), str(seeds[row]).strip()

    return key


def _step_column(table: Table, keys, columns: Sequence[str], wide: bool, options: _Options):
    """The column of the step, where a run has several losses; None where none has."""
    names = [name for name in dict.fromkeys(table.columns) if name.lower() in STEPS]
    names = names or [name for name in dict.fromkeys(table.columns) if name.lower() == "epoch"]
    seen, several = set(), wide
    for column in columns:
        for row, cell in enumerate(table.column(column)):
            if cell is None or (isinstance(cell, str) and cell.strip() in EMPTY):
                continue
            key = keys(row, column)
            several = several or key in seen
            seen.add(key)
    if not several:
        return None
    if "Step" in names and (wide or table.columns == TENSORBOARD):
        names = ["Step"]  # as W&B and TensorBoard name it
    if len(names) > 1:
        which = " or ".join(f"--step {name!r}" for name in names)
        raise RRError(f"{table.path}: which column is the step? give {which}")
    if names:
        options.note(f"{table.path}: the step is column {names[0]!r}")
    return names[0] if names else None


def _events(folder: Path, options: _Options) -> Iterator[_Point]:
    """Measurements in TensorBoard's event files, a folder below `folder` per run."""
    try:  # needed for these files alone
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from tensorboard.util.tensor_util import make_ndarray
    except ModuleNotFoundError:
        raise RRError("event files need TensorBoard: pip install tensorboard") from None

    files = sorted(folder.rglob("events.out.tfevents.*"))
    lacking, read = {}, 0
    for place in dict.fromkeys(file.parent for file in files):
        events = EventAccumulator(
            str(place), size_guidance={"scalars": 0, "tensors": 0}, purge_orphaned_data=False
        )
        try:
            events.Reload()
        except Exception as error:  # of many kinds, for a damaged file
            raise RRError(f"{place} cannot be read: {error}") from None
        scalars, tensors = (events.Tags()[kind] for kind in ("scalars", "tensors"))
        known = sorted({*scalars, *tensors})
        tag = options.loss
        if tag is None:
            if not known:
                raise RRError(f"{place} holds no scalars: its event files are empty or damaged")
            found = [name for name in known if "loss" in name.lower()]
            if len(found) != 1:
                which = " or ".join(f"--loss {name!r}" for name in found) or "--loss TAG"
                raise RRError(f"{place}: which scalar is the loss? give {which}")
            tag = found[0]
            options.note(f"{place}: the loss is {tag!r}")
        if tag not in known:
            lacking[place] = known
            continue
        values = (
            [(e.wall_time, e.step, e.value) for e in events.Scalars(tag)] if tag in scalars else []
        )
        if tag in tensors:
            arrays = [
                (e.wall_time, e.step, make_ndarray(e.tensor_proto)) for e in events.Tensors(tag)
            ]
            if any(array.size != 1 for _, _, array in arrays):
                raise RRError(f"{place}: {tag!r} is no scalar")
            values += [(when, at, array.item()) for when, at, array in arrays]
        key = options.of_run(place.relative_to(folder).as_posix())
        read += 1
        for _, at, value in sorted(values, key=lambda value: value[0]):
            yield _Point(*key, float(at), float(value), str(place), str(place))
    for place, known in lacking.items():
        if not read:
            raise RRError(
                f"{place} has no scalar {options.loss!r}: {nearest(str(options.loss), known)}"
            )
        options.note(f"{place} has no scalar {options.loss!r} and is left out")


# ---- From measurements to runs -------------------------------------------------------------------


def _runs(points: list[_Point], options: _Options) -> list[dict]:
    seeds = _seeds(point.seed for point in points)
    by_run: dict[tuple, list[_Point]] = defaultdict(list)
    for point in points:
        by_run[point.arm, seeds[point.seed]].append(point)
    twice: list[str] = []
    curves = {key: _curve(key, mine, options, twice) for key, mine in by_run.items()}
    if twice:
        which = options.duplicates or "last"
        more = f" and {len(twice) - 1} more" if len(twice) > 1 else ""
        options.note(f"two losses at one step ({twice[0]}{more}): the {which} counts")
    stepless = any(None in curve for curve in curves.values())
    if stepless and options.at is not None:
        raise RRError("--at needs the column of the step: give --step COLUMN")
    if options.at is not None:
        curves = {
            key: {at: loss for at, loss in curve.items() if at <= options.at}
            for key, curve in curves.items()
        }
    diverged = {key for key, curve in curves.items() if _diverged(curve)}
    finites = {
        key: {at: loss for at, loss in curve.items() if math.isfinite(loss)}
        for key, curve in curves.items()
    }
    at = None if stepless else _compared_step(finites, diverged, options)
    rows = []
    for (arm, seed), curve in finites.items():
        status = "finished" if at in curve else "unfinished"
        if (arm, seed) in diverged:
            status = "diverged"
        last = max((s for s in curves[arm, seed] if s is not None), default=None)
        done = status == "finished"
        rows.append(
            {
                "arm": arm,
                "seed": seed,
                "val_loss": curve[at] if done else math.nan,
                "status": status,
                "step": at if done else last,
            }
        )
    return rows


def _seeds(words: Iterable[str]) -> dict[str, int | str]:
    """Seeds as integers where all of them are ("3" and "3.0" alike), else as they stand."""
    words = list(dict.fromkeys(words))
    try:
        numbers = {word: float(word) for word in words}
        if all(number.is_integer() for number in numbers.values()):
            return {word: int(number) for word, number in numbers.items()}
    except (ValueError, OverflowError):
        pass
    return {word: word for word in words}


def _curve(key: tuple, points: list[_Point], options: _Options, twice: list[str]) -> dict:
    """Loss by step of one run; `twice` gets the places of steps with two losses."""
    points = [point for point in points if point.source]  # the others say that there is a run
    by_step: dict[float | None, list[_Point]] = defaultdict(list)
    for point in points:
        by_step[point.step].append(point)
    curve = {}
    for at, mine in by_step.items():
        # beside a number an empty or NaN cell at the same step is another kind of line
        known = [point for point in mine if not math.isnan(point.loss)] or mine[-1:]
        if len({point.loss for point in known}) > 1 or (at is None and len(mine) > 1):
            resumed = options.duplicates is None and at is not None and _resumed(points)
            if options.duplicates == "error" or (options.duplicates is None and not resumed):
                raise RRError(_refused(key, at, known, options))
            step = "" if at is None else f", step {at:g}"
            twice.append(f"arm {key[0]!r}, seed {key[1]}{step}")
        curve[at] = known[0 if options.duplicates == "first" else -1].loss
    return dict(sorted(curve.items(), key=lambda item: item[0] or 0.0))


def _refused(key: tuple, at: float | None, points: list[_Point], options: _Options) -> str:
    run = f"{points[-1].place}: arm {key[0]!r} with seed {key[1]}"
    if at is None:
        return f"{run} has two losses: give one line per run, or --step COLUMN"
    return f"{run} has two losses at step {at:g}: give --duplicates first or --duplicates last"


def _resumed(points: list[_Point]) -> bool:
    """Whether the order of a run's lines shows that it was resumed.

    Within one file its steps rise, and wherever they fall back it is to a step that was logged.
    """
    if len({point.source for point in points}) > 1:
        return False
    seen: set = set()
    before = -math.inf
    for step in (point.step or 0.0 for point in points):
        if step <= before and step not in seen:
            return False
        seen.add(step)
        before = step
    return True


def _diverged(curve: dict) -> bool:
    """Whether a curve ends in losses that are not finite.

    NaN is also what some tables hold where nothing was measured: NaN at the end is none of the run
    where it had as many in a row before, between two losses.
    """
    losses = list(curve.values())
    tail = 0
    while tail < len(losses) and not math.isfinite(losses[-1 - tail]):
        tail += 1
    if not tail:
        return False
    if any(math.isinf(loss) for loss in losses[len(losses) - tail :]):
        return True
    gap = longest = 0
    for place, loss in enumerate(losses[: len(losses) - tail]):
        gap = 0 if math.isfinite(loss) else gap + 1
        if any(math.isfinite(one) for one in losses[:place]):
            longest = max(longest, gap)
    return tail > longest


def _compared_step(finites: dict, diverged: set, options: _Options) -> float | None:
    """The step that is compared: `at`, or the last at which every run has a loss."""
    sound = {key: curve for key, curve in finites.items() if key not in diverged and curve}
    if options.at is not None:
        if not any(options.at in curve for curve in finites.values()):
            known = sorted({at for curve in finites.values() for at in curve})
            near = ", ".join(f"{at:g}" for at in known[-3:]) or "none"
            raise RRError(f"no run has a loss at step {options.at:g}; before it: {near}")
        return options.at
    if not sound:
        return None
    common = set.intersection(*map(set, sound.values()))
    lasts = {key: max(curve) for key, curve in sound.items()}
    if not common:
        raise RRError(
            f"no step at which every run has a loss (last steps: {_named(lasts)}): leave runs out, "
            "or give --at STEP"
        )
    at = max(common)
    beyond = {key: last for key, last in lasts.items() if last > at}
    if beyond:
        options.note(
            f"compared at step {at:g}, the last at which every run has a loss; beyond it go "
            f"{_named(beyond)} (--at STEP compares another)"
        )
    return at


def _named(lasts: dict) -> str:
    """Runs and their last steps, the first six of them."""
    named = [f"{arm} seed {seed} (to {last:g})" for (arm, seed), last in lasts.items()]
    return ", ".join(named[:6]) + (f" and {len(named) - 6} more" if len(named) > 6 else "")
