"""Tables in files that other programs wrote: CSV in any dialect, JSON and JSONL, compressed or not.

Everything is read as text first, so that no number is guessed: `Table.numbers()` turns the cells of
the columns that are compared into numbers, by one decimal mark for the whole table.
"""

import bz2
import csv
import gzip
import io
import json
import lzma
import math
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from ..config import RRError, nearest

EMPTY = ("", "null", "None", "NA", "N/A", "<NA>", "-")  # nothing was measured there
COMPRESSED: dict[str, Callable] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
DELIMITERS = (",", ";", "\t", "|")
NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
# three digits behind one mark: thousands, or three decimals; a leading zero has no thousands
UNCLEAR = re.compile(r"[+-]?[1-9][0-9]{0,2}[.,][0-9]{3}")
WORDS = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)


@dataclass
class Table:
    """The cells of a file, as text; of JSON as it has them. None: no cell."""

    path: Path
    columns: list[str]
    rows: list[list]
    lines: list[int]  # of each row
    delimiter: str = ""  # "" for JSON
    cut: bool = False  # whether the last line does not end
    notes: list[str] = field(default_factory=list)

    def column(self, name: str) -> list:
        """The cells of a column. RRError where it is missing, or there twice."""
        if name not in self.columns:
            raise RRError(f"{self.path} has no column {name!r}: {nearest(name, self.columns)}")
        if self.columns.count(name) > 1:
            times = self.columns.count(name)
            raise RRError(f"{self.path} has {times} columns {name!r}: rename all but one")
        place = self.columns.index(name)
        return [row[place] for row in self.rows]

    def line(self, row: int) -> str:
        """Words that name the place of a row."""
        return f"{self.path}, line {self.lines[row]}"

    def numbers(self, names: Iterable[str], decimal: str | None) -> dict[str, list[float | None]]:
        """Columns as numbers (NaN and infinities are some); None where nothing was measured."""
        cells = {name: self.column(name) for name in dict.fromkeys(names)}
        mark = self._decimal_mark(cells, decimal)
        columns = {
            name: [self._number(cell, name, row, mark) for row, cell in enumerate(column)]
            for name, column in cells.items()
        }
        if self.cut and self.rows and self.columns[-1] in cells:
            self._last_number(cells[self.columns[-1]])
        return columns

    def _decimal_mark(self, cells: dict[str, list], decimal: str | None) -> str:
        """The decimal mark of the table: what its cells allow, or RRError where they allow both."""
        if decimal is not None:
            return decimal
        shown: dict[str, str] = {}  # mark -> a cell that shows it
        unclear = None
        for name, column in cells.items():
            alone: dict[str, str] = {}  # mark -> a cell that has it alone
            for cell in column:
                text = cell.strip() if isinstance(cell, str) else ""
                point, comma = text.rfind("."), text.rfind(",")
                if max(point, comma) < 0:
                    continue
                last = "." if point > comma else ","
                if min(point, comma) >= 0:
                    shown.setdefault(last, text)
                    continue
                alone.setdefault(last, text)
                if text.count(last) > 1:
                    shown.setdefault("," if last == "." else ".", text)
                elif last == "." and self.delimiter in ("", ","):
                    shown.setdefault(".", text)
                elif UNCLEAR.fullmatch(text):
                    unclear = text if last == "," or unclear is None else unclear
                else:
                    shown.setdefault(last, text)
            if len(alone) == 2 and all(
                NUMBER.fullmatch(x.replace(",", ".")) for x in alone.values()
            ):
                raise RRError(
                    f"{self.path}: {name!r} holds {alone['.']!r} and {alone[',']!r}: "
                    "give --decimal . or --decimal ,"
                )
        if len(shown) == 2:
            raise RRError(
                f"{self.path} has decimal points ({shown['.']!r}) and decimal commas "
                f"({shown[',']!r}): give --decimal . or --decimal ,"
            )
        if shown:
            return next(iter(shown))
        if unclear is None or "," not in unclear:
            return "."
        whole = unclear.replace(",", "")
        raise RRError(
            f"{self.path}: {unclear!r} may be {whole} or {unclear.replace(',', '.')}: "
            "give --decimal . or --decimal ,"
        )

    def _number(self, cell: object, name: str, row: int, decimal: str) -> float | None:
        text = cell.strip() if isinstance(cell, str) else None
        if cell is None or text in EMPTY:
            return None
        try:
            if isinstance(cell, int | float) and not isinstance(cell, bool):
                return float(cell)
            if text is None:
                raise ValueError
            if WORDS.fullmatch(text):
                return float(text)
            other = "," if decimal == "." else "."
            if other in text:
                thousands = rf"[+-]?[0-9]{{1,3}}({re.escape(other)}[0-9]{{3}})+"
                if not re.fullmatch(thousands, text.partition(decimal)[0]):
                    raise ValueError
                if text.partition(decimal)[2].count(other):
                    raise ValueError
                whole = text.replace(other, "")
                if not any(" is read as " in note for note in self.notes):  # one example is enough
                    self._note(f"{self.path}: {text!r} is read as {whole}")
                text = whole
            text = text.replace(decimal, ".")
            if not NUMBER.fullmatch(text):
                raise ValueError
            return float(text)
        except (ValueError, OverflowError):
            shown = text if text is not None and len(text) < 60 else str(cell)[:57] + "…"
            raise RRError(f"{self.line(row)}: {name!r} must be a number, got {shown!r}") from None

    def words(self, name: str) -> list:
        """The cells of a column of names; a note where the last of them may be cut off."""
        if self.cut and name == self.columns[-1]:
            self._note(f"{self.path}: the last line has no line break; it is taken as whole")
        return self.column(name)

    def _last_number(self, cells: list) -> None:
        """Whether the last cell of a line that does not end may be whole."""
        digits = [len(re.split(r"[.,]", str(cell).strip())[-1]) for cell in cells]
        points = [any(mark in str(cell) for mark in ".,") for cell in cells]
        shorter = len(digits) > 2 and digits[-1] < min(digits[:-1])
        if (shorter or not points[-1]) and any(points[:-1]):
            raise RRError(
                f"{self.line(len(cells) - 1)} does not end, and its last cell {cells[-1]!r} is "
                "shorter than all others: the file was cut off; give the whole file"
            )
        self._note(f"{self.path}: the last line has no line break; it is taken as whole")

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)


def read_table(path: Path, wanted: Sequence[str], wide: str | None) -> Table:
    """The table in a file. wanted: names of columns, by which a delimiter is recognised.

    wide: a loss; a column named "RUN - LOSS" counts as wanted. Raises RRError, one line, for a file
    that is corrupt or no table.
    """
    text = _text(path)
    plain = Path(path.stem) if path.suffix in (*COMPRESSED, ".zip") else path
    if plain.suffix in (".json", ".jsonl", ".ndjson") or text.lstrip()[:1] == "{":
        return _json(path, text)
    return _delimited(path, text, wanted, wide)


def _text(path: Path) -> str:
    """The text of a file, decompressed and decoded."""
    try:
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                names = [name for name in archive.namelist() if not name.endswith("/")]
                if len(names) != 1:
                    raise RRError(f"{path} holds {len(names)} files: give one with a single table")
                data = archive.read(names[0])
        elif path.suffix in COMPRESSED:
            with COMPRESSED[path.suffix](path) as file:
                data = file.read()
        else:
            data = path.read_bytes()
    except FileNotFoundError:
        raise RRError(f"no file {path}: expected a table, or a folder of logs") from None
    except (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, RuntimeError,
            NotImplementedError) as error:  # fmt: skip
        raise RRError(f"{path} cannot be read: {error or 'it is corrupt'}") from None
    try:
        for mark, encoding in ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16")):
            if data.startswith(mark):
                return data.decode(encoding)
        if data[1:2] == b"\0" and data[:1] != b"\0":
            return data.decode("utf-16-le")
        if data[:1] == b"\0" and data[1:2] != b"\0":
            return data.decode("utf-16-be")
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise RRError(f"{path} is not UTF-8 or UTF-16 text: save it as CSV in UTF-8") from None
    if "\0" in text:
        raise RRError(f"{path} holds zero bytes: it is corrupt, or no text")
    return text


# ---- JSON ----------------------------------------------------------------------------------------


def _json(path: Path, text: str) -> Table:
    """JSON objects: one per line, an array of them, or the log of a Hugging Face Trainer."""
    try:
        whole = json.loads(text, object_pairs_hook=_object)
    except (ValueError, RecursionError):
        whole = None
    if isinstance(whole, _Object) and isinstance(whole.get("log_history"), list):
        objects = list(enumerate(whole["log_history"], 1))
    elif isinstance(whole, list):
        objects = list(enumerate(whole, 1))
    else:
        return _json_lines(path, text)
    if not all(isinstance(one, _Object) for _, one in objects):
        raise RRError(f"{path} holds an array of other things than objects: give one per row")
    return _from_objects(path, objects)


class _Object(dict):
    """A JSON object that knows which of its keys it had twice."""

    repeated: tuple[str, ...] = ()


def _object(pairs: list[tuple[str, object]]) -> _Object:
    result = _Object(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        result.repeated = tuple(name for name in result if names.count(name) > 1)
    return result


def _json_lines(path: Path, text: str) -> Table:
    lines = text.split("\n")  # and nowhere else: strings may hold U+2028
    objects, notes = [], []
    filled = [at for at, line in enumerate(lines, 1) if line.strip()]
    for at in filled:
        try:
            row = json.loads(lines[at - 1], object_pairs_hook=_object)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, _Object):
            objects.append((at, row))
        elif at == filled[-1] == len(lines) and objects and lines[at - 1].lstrip()[0] == "{":
            notes.append(f"{path}, line {at} is cut off and left out")
        else:
            raise RRError(f"{path}, line {at} is not a JSON object: give one per line")
    return _from_objects(path, objects, notes)


def _from_objects(path: Path, objects: list, notes: Sequence[str] = ()) -> Table:
    columns = list(dict.fromkeys(name for _, row in objects for name in row))
    repeated = [name for _, row in objects for name in row.repeated]
    rows = [[row.get(name) for name in columns] for _, row in objects]
    # a key that an object has twice is a column that is there twice
    for name in dict.fromkeys(repeated):
        columns.append(name)
        rows = [[*row, None] for row in rows]
    return Table(path, columns, rows, [at for at, _ in objects], notes=list(notes))


# ---- CSV and its relatives -----------------------------------------------------------------------


def _delimited(path: Path, text: str, wanted: Sequence[str], wide: str | None) -> Table:
    lines = re.split(r"\r\n|\n|\r", text)
    first, delimiter, notes = 0, None, []
    declared = re.fullmatch(r'\ufeff?"?sep=(.)"?', lines[0].strip(" "), re.IGNORECASE)
    if declared:
        first, delimiter = 1, declared[1]
    while first < len(lines) and (not lines[first].strip() or lines[first].startswith("#")):
        first += 1
    if first == len(lines):
        raise RRError(f"{path} is empty: give a file with a loss")
    if delimiter is None:
        delimiter = max(DELIMITERS, key=lambda one: _fits(lines[first], one, wanted, wide))
    body = "\n".join(lines[first:])
    try:
        frame = pd.read_csv(
            io.StringIO(body),
            sep=delimiter,
            header=None,
            dtype=str,
            keep_default_na=False,
            skip_blank_lines=False,
            skipinitialspace=True,
        )
    except pd.errors.ParserError as error:
        raise RRError(_why(path, str(error), first)) from None
    except (pd.errors.EmptyDataError, ValueError, csv.Error) as error:
        raise RRError(f"{path} is no table: {error}") from None
    header, *cells = frame.fillna("").to_numpy().tolist()  # a line that is short has ""
    columns = [name.strip() for name in header]
    cut = not body.endswith("\n")
    kept, at_lines = [], []
    line, last = first + 1 + sum(name.count("\n") for name in header), len(cells) - 1
    for place, row in enumerate(cells):
        line += 1
        at = line
        line += sum(cell.count("\n") for cell in row)
        if not any(cell.strip() for cell in row):
            continue
        if [cell.strip() for cell in row] == columns:
            notes.append(f"{path}, line {at} is the header again and left out")
            continue
        if row[0].startswith("#") and not any(cell.strip() for cell in row[1:]):
            continue  # a comment
        if place == last and cut and _cells_of_last(body, delimiter) < len(columns):
            notes.append(f"{path}, line {at} is cut off and left out")
            cut = False
            continue
        kept.append(row)
        at_lines.append(at)
    return Table(path, columns, kept, at_lines, delimiter, cut, notes)


def _fits(header: str, delimiter: str, wanted: Sequence[str], wide: str | None) -> tuple[int, int]:
    """How well a delimiter fits a header: wanted columns, columns."""
    try:
        cells = next(csv.reader([header], delimiter=delimiter, skipinitialspace=True))
    except (csv.Error, StopIteration):
        return (0, 0)
    names = [cell.strip() for cell in cells]
    count = sum(name in names for name in wanted)
    count += bool(wide) and any(name.endswith(f" - {wide}") for name in names)
    return count, len(names)


def _cells_of_last(body: str, delimiter: str) -> int:
    """Cells of the last line; of the last lines, where quotes hold line breaks."""
    lines = body.split("\n")
    start = len(lines) - 1
    while start and "\n".join(lines[start:]).count('"') % 2:
        start -= 1
    try:
        return len(next(csv.reader(["\n".join(lines[start:])], delimiter=delimiter)))
    except csv.Error:  # a cell that is longer than its limit
        return len(lines[-1].split(delimiter))


def _why(path: Path, error: str, before: int) -> str:
    """A message of pandas' parser as one of ours."""
    match = re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", error)
    if match:
        columns, line, cells = map(int, match.groups())
        return (
            f"{path}, line {line + before} has {cells} cells, the header {columns}: quote cells "
            "that hold the delimiter (a decimal comma needs another one, as ;)"
        )
    if "EOF inside string" in error:
        return f"{path} ends within quotes: it was cut off, or a quote is not closed"
    return f"{path} is no table: {' '.join(error.split())}"


def finite(value: float | None) -> bool:
    """Whether a cell holds a finite number."""
    return value is not None and math.isfinite(value)
