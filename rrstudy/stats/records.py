"""Records: the files of finished runs, read from folders of runs or a campaign's two tables.

    runs.parquet    one row per run: the columns RUNS, and the texts of run.json and result.json
    curves.parquet  one row per line of metrics.jsonl: `id`, `line` and the columns CURVES

The texts are the record. The columns are read off them when a table is written, with the seals of
both and the SHA-256 of the curve, so that other programs can use the tables. A line of a curve that
its columns do not give back byte for byte is kept whole in `text`. Whoever reads records by this
module does not see which of the two they lie in. pyarrow is imported where there is a table.
"""

import functools
import hashlib
import io
import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rr.errors import RRError, RunFailed, install
from rr.io import LARGEST_JSON, MIB, checked_file, file_bytes, unsealed, write_atomic

RUN = {"run.json", "result.json"}  # a folder with one of them is that of a run
TABLES = ("curves.parquet", "runs.parquet")  # written in this order: a run is there when whole
LARGEST = {"run.json": LARGEST_JSON, "result.json": LARGEST_JSON, "metrics.jsonl": 64 * MIB}
LARGEST_TABLE = 1024 * MIB

# columns of runs.parquet that are read off result.json, and their types
RUNS = {
    "id": "string", "rung": "string", "rule": "string", "values": "string", "loops": "int64",
    "flavour": "string", "seed": "int64", "protocol": "string", "corpus": "string",
    "tokenizer": "string", "precision": "string", "lr": "double", "batch": "int64",
    "steps": "int64", "tokens": "int64", "status": "string", "val_loss": "double", "ece": "double",
    "eval_tokens": "int64", "story_loss": "double", "floor": "double", "params": "int64",
    "seconds": "double", "threads": "int64", "weights_sha256": "string",
}  # fmt: skip
SEALS = ("result_seal", "run_seal", "curve_sha256")
TEXTS = {"run": "run.json", "result": "result.json"}
# columns of curves.parquet that are read off a line, in the order in which a line has them
CURVES = {
    "step": int,
    "tokens": int,
    "seconds": float,
    "budget": int,
    "loss": float,
    "lr": float,
    "grad_norm": float,
    "valid": float,
}


@dataclass(frozen=True)
class Record:
    """A run's files, wherever they lie: in a folder of its own, or in a campaign's Parquet tables.

    `read_records()` and `read_record()` make them.

    Example:
        >>> import rr
        >>> from rrstudy.stats import read_records
        >>> record = read_records(rr.DATA / "measured" / "mini_arms")[0]
        >>> "result.json" in record, record.curve()[0]["step"]
        (True, 1)
    """

    place: Path  # its folder; of a record in a table `…/runs.parquet/ID`, which messages name
    files: Mapping[str, Callable[[], bytes]]  # run.json, result.json, metrics.jsonl, if there

    def __contains__(self, name: str) -> bool:
        return name in self.files

    def read(self, name: str) -> bytes:
        """The content of a file. OSError, ValueError or RunFailed where it cannot be read."""
        if name not in self.files:
            raise FileNotFoundError(2, "No such file or directory", str(self.place / name))
        return self.files[name]()

    def object(self, name: str) -> dict:
        """The object in `run.json` or `result.json`, without its seal.

        Raises RunFailed where it is corrupt.
        """
        return self.parsed(name, lambda data: unsealed(_object(data)))

    def curve(self) -> list[dict]:
        """The lines of metrics.jsonl, such as `{"step": 1, "loss": 6.9}`.

        Raises RunFailed where they are not the curve of its result.
        """
        result = self.object("result.json") if "result.json" in self else {"curve_sha256": None}
        digest = result.get("curve_sha256", "")

        def lines(data: bytes) -> list[dict]:
            if digest not in (None, hashlib.sha256(data).hexdigest()):
                raise ValueError("it is not the curve of this result")
            return [_object(line) for line in data.splitlines()]

        return self.parsed("metrics.jsonl", lines)

    def parsed(self, name: str, parse: Callable = bytes):
        """A file's content, given to `parse`. Raises RunFailed where it is missing or corrupt."""
        try:
            return parse(self.read(name))
        except (OSError, ValueError, RecursionError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise RunFailed(f"{self.place / name} is corrupt: {why}") from None


def _object(data: bytes) -> dict:
    value = json.loads(data)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def read_records(folder: str | Path) -> list[Record]:
    """Every run at or below `folder`, by place: in folders of its own, finished or not, and tables.

    A single run is read when it is asked for. Raises RRError where there is no folder, or where a
    table needs pyarrow, which is not installed; RunFailed where a table is corrupt.

    Example:
        >>> import rr
        >>> from rrstudy.stats import read_records
        >>> records = read_records(rr.DATA / "measured" / "mini_arms")
        >>> {record.object("result.json")["rung"] for record in records}
        {'mini'}
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise RRError(f"no folder {folder}: expected a folder of runs or of records")
    records = []
    for place, files in places(folder):
        if files & RUN:
            records.append(read_record(place))
        records += read_table(place)
    return sorted(records, key=lambda record: record.place)


def places(folder: Path) -> Iterator[tuple[Path, set[str]]]:
    """Each folder at or below `folder` that holds a run or tables, and the names of its files.

    Links are followed, and a folder that is reached twice comes once.
    What lies inside the folder of a run is not looked at: a checkpoint may be removed meanwhile.
    """
    seen = set()
    for top, inner, names in os.walk(folder, followlinks=True):
        files, real = {*inner, *names}, os.path.realpath(top)
        if real in seen or files & RUN:
            inner.clear()
        if real not in seen and files & {*RUN, "runs.parquet"}:
            yield _as_called(top, real) if os.path.islink(top) else Path(top), files
        seen.add(real)


def _as_called(link: str, real: str) -> Path:
    """Of a linked folder's two names the one that is its run's id."""
    try:
        name = read_record(link).object("run.json")["id"]
    except (OSError, RunFailed, KeyError):
        name = None
    return Path(link if os.path.basename(link) == name else real)


def read_record(folder: str | Path) -> Record:
    """The run in a folder of its own, finished or not; files that are missing raise when read.

    Example:
        >>> import tempfile
        >>> import rr
        >>> from rrstudy.stats import read_record
        >>> tiny = "nano:d_model=16,n_layer=1,n_head=1,d_ff=32,seq_len=16"
        >>> run = rr.plan(tiny, steps=2, batch=1, eval_batches=1)
        >>> with tempfile.TemporaryDirectory() as out:
        ...     record = read_record(rr.train(run, out, log=lambda line: None))
        ...     record.object("result.json")["steps"]
        2
    """
    place = Path(folder)
    files = {
        name: functools.partial(file_bytes, place / name, limit)
        for name, limit in LARGEST.items()
        if (place / name).exists()
    }
    return Record(place, files)


# -- tables ------------------------------------------------------------------------------------


def read_table(folder: Path) -> list[Record]:
    """The records in the tables of one campaign's folder, by id; none where there are no tables."""
    path = folder / "runs.parquet"
    if not path.exists():
        return []
    rows = _columns(path)
    records = []
    for i, name in enumerate(rows["id"]):
        known = re.fullmatch("[0-9a-f]{12}", name or "")
        if not known or None in (rows[text][i] for text in TEXTS):
            raise RunFailed(f"{path} is corrupt: line {i + 1} lacks an id or a text of a run")
        files = {file: functools.partial(rows[text][i].encode) for text, file in TEXTS.items()}
        digest = rows["curve_sha256"][i]
        files["metrics.jsonl"] = functools.partial(_curve, folder / "curves.parquet", name, digest)
        records.append(Record(path / name, files))
    return records


def _columns(path: Path) -> dict[str, list]:
    try:
        checked_file(path, LARGEST_TABLE)
        with _parquet(path).ParquetFile(path, page_checksum_verification=True) as file:
            table, rows = file.read(), file.metadata.num_rows
        if table.num_rows != rows:  # a row group's count is damaged
            raise ValueError(f"its counts of rows differ: {table.num_rows} and {rows}")
        schema = _schema(path)
        return table.select(schema.names).cast(schema).to_pydict()
    except (OSError, ValueError, KeyError, NotImplementedError) as error:  # pyarrow's are such
        why = getattr(error, "strerror", None) or (str(error).splitlines() or ["unreadable"])[0]
        raise RunFailed(f"{path} is corrupt: {why}") from None


def _schema(table: Path):
    """The columns of a table and their types, as they are written."""
    import pyarrow

    if table.name == "runs.parquet":
        kinds = {**RUNS, **dict.fromkeys([*SEALS, *TEXTS], "string")}
    else:
        numbers = {name: "int64" if kind is int else "double" for name, kind in CURVES.items()}
        kinds = {"id": "string", "line": "int64", **numbers, "text": "string"}
    return pyarrow.schema([(column, kind) for column, kind in kinds.items()])


def _parquet(path: Path):
    try:
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise RRError(f"{path} needs pyarrow: {install('stats')}") from None
    return pyarrow.parquet


def _curve(path: Path, name: str, digest: str) -> bytes:
    stat = path.stat()
    data = _curves(path, stat.st_mtime_ns, stat.st_size).get(name, b"")
    if hashlib.sha256(data).hexdigest() != digest:
        raise ValueError("it is not the curve of this record")
    return data


@functools.lru_cache(maxsize=64)
def _curves(path: Path, changed: int, size: int) -> dict[str, bytes]:
    """metrics.jsonl of each run in a table, by id."""
    columns = _columns(path)
    lines = defaultdict(list)
    for name, text, *values in zip(*(columns[c] for c in ("id", "text", *CURVES)), strict=True):
        lines[name].append(_line(values) if text is None else text)
    return {name: "".join(f"{line}\n" for line in own).encode() for name, own in lines.items()}


def _line(values: Iterable) -> str:
    """A line of metrics.jsonl, as runs write it."""
    pairs = zip(CURVES, values, strict=True)
    return json.dumps({name: value for name, value in pairs if value is not None})


def write_table(folder: Path, records: Iterable[Record]) -> None:
    """The two tables of `folder`, with these records and no others; each whole, or as it was."""
    import pyarrow

    rows, curves = [], []
    for record in sorted(records, key=lambda record: record.place.name):
        name = record.place.name
        curve = record.parsed("metrics.jsonl")
        texts = {text: record.read(file).decode() for text, file in TEXTS.items()}
        run, result = (json.loads(text) for text in texts.values())
        seals = (result.get("seal"), run.get("seal"), hashlib.sha256(curve).hexdigest())
        rows.append(
            {
                **{name: result.get(name) for name in RUNS},
                **dict(zip(SEALS, seals, strict=True)),
                **texts,
            }
        )
        for i, line in enumerate(curve.decode().splitlines()):
            curves.append({"id": name, "line": i, **_cells(line)})
    for name, rows_of_table in zip(TABLES, (curves, rows), strict=True):
        table = pyarrow.Table.from_pylist(rows_of_table, _schema(folder / name))
        out = io.BytesIO()
        _parquet(folder / name).write_table(
            table, out, compression="zstd", write_page_checksum=True
        )
        write_atomic(folder / name, out.getvalue())


def _cells(line: str) -> dict:
    """A line of metrics.jsonl as columns; `text` where they alone do not give it back."""
    values = json.loads(line)
    cells = {name: values[name] for name, kind in CURVES.items() if type(values.get(name)) is kind}
    same = _line(cells.get(name) for name in CURVES) == line
    return {**cells, "text": None if same else line}
