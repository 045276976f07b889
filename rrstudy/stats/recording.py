"""Import finished runs into a campaign's tables, and export them: `rr records`.

A record is a run without its checkpoints and without the place where its text lay:

    run.json        specification and provenance; the corpus by name and fingerprint, no path
    result.json     as the run wrote it
    metrics.jsonl   at most 200 of the run's own lines, chosen and never averaged

What is changed in a sealed file is sealed again.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from rr.errors import RRError, RunFailed
from rr.io import locked, sealed, unsealed, write_atomic
from rr.specs import Run

from .records import LARGEST, Record, read_records, read_table, write_table
from .results import problem

LIMIT = 200  # lines of metrics.jsonl in a record
# an absolute path, a home, a way up, a drive; not the "/" of "w/o" or of "org/name"
_PATH = re.compile(r"(^|[\s:=\"'(])(/\w|~/|\.\.?/|[A-Za-z]:\\)")
CARD = """---
configs:
- config_name: runs
  data_files: runs.parquet
- config_name: curves
  data_files: curves.parquet
---
"""
EXPORT = """Records of `rr`: `runs` and `curves`. Each as the files of its run, byte for byte:

```bash
rr records export {} --out FOLDER
```
"""


def record(run: Record) -> Record:
    """The record of one finished run. RRError (RunFailed if corrupt) names the run."""
    name = run.place.name
    if "result.json" not in run:
        raise RRError(f"{run.place} has no result.json: expected a finished run")
    result, begun = run.object("result.json"), run.object("run.json")
    if wrong := problem(result):
        raise RunFailed(f"{run.place / 'result.json'} is corrupt: {wrong}")
    try:
        same = begun["id"] == result["id"] == name == Run.from_spec(begun["run"]).id
    except (RRError, KeyError, TypeError, ValueError) as error:
        raise RunFailed(f"{run.place / 'run.json'} is corrupt: {error}") from None
    if not same:
        raise RRError(
            f"{run.place} is not run {name}: its run.json and result.json must have that id"
        )
    run.curve()
    lines = thin(run.read("metrics.jsonl").decode().splitlines())
    kept = "".join(f"{line}\n" for line in lines).encode()
    # Where the text was on that machine is nobody else's business: names, and in the
    # specification and provenance the fingerprints, say which text it was.
    source = {"source": {name: result[name] for name in ("corpus", "tokenizer")}}
    curve = {"curve_sha256": hashlib.sha256(kept).hexdigest()}
    for value in (*_strings(begun | source), *_strings(result)):
        if _PATH.search(value):
            raise RRError(f"{name} would record the path {value!r}: give a name without a folder")
    data = {
        "run.json": _changed(run.read("run.json"), source),
        "result.json": _changed(run.read("result.json"), curve),
        "metrics.jsonl": kept,
    }
    return Record(run.place, {file: partial(data.__getitem__, file) for file in LARGEST})


def _changed(data: bytes, new: dict) -> bytes:
    """The object with these values, sealed again; its own bytes where it has them."""
    content = json.loads(data)
    if new.items() <= content.items():
        return data
    return (json.dumps(sealed(unsealed(content) | new), indent=1) + "\n").encode()


def thin(lines: list[str]) -> list[str]:
    """At most `LIMIT` of the lines, in order, unchanged.

    Held-out losses and the last line always stay; of the others every k-th does, k the smallest
    integer that is enough. A kept training loss is still the mean since the line that stood
    before it in the run, not since the one that stands before it in the record.
    """
    keep = {i for i, line in enumerate(lines) if "loss" not in json.loads(line)}
    if lines:
        keep.add(len(lines) - 1)
    others = [i for i in range(len(lines)) if i not in keep]
    room = LIMIT - len(keep)
    if room < 0:
        raise RRError(
            f"a record holds at most {LIMIT} lines of metrics, got {len(keep)} that must stay"
        )
    if room and others:
        keep.update(others[:: math.ceil(len(others) / room)])
    return [lines[i] for i in sorted(keep)]


def import_runs(places: Iterable[Path], to: Path) -> tuple[list[Record], list[str]]:
    """Add the runs at or below `places` to the tables in `to`, and make it a data set.

    Returns the records that are new and a line for each run that is refused: not finished, corrupt,
    or recorded with other content. A run that is there as it is stays. RRError where no run is.
    """
    runs = [run for place in places for run in read_records(Path(place).absolute())]
    if not runs:
        raise RRError("no run.json below the given folders: expected folders of `rr train`")
    with locked(to):  # or a second import would write over what this one adds
        added = _import(runs, to)
        if any(path.name != "lock" for path in to.iterdir()):
            (to / "lock").unlink()
    return added


def _import(runs: Sequence[Record], to: Path) -> tuple[list[Record], list[str]]:
    """`import_runs`, of runs that are read, under the lock of `to`."""
    known = {one.place.name: one for one in read_table(to)}
    new, refused = [], []
    for run in runs:
        try:
            one = record(run)
            before = known.setdefault(run.place.name, one)
            if differ := [name for name in LARGEST if one.read(name) != before.parsed(name)]:
                raise RRError(
                    f"{run.place} is recorded with other content ({', '.join(differ)}): "
                    "one record per run, so keep the first or choose another --to"
                )
            if before is one:
                new.append(one)
        except RRError as error:
            refused.append(str(error))
    if new:
        write_table(to, known.values())
        card = to / "README.md"
        text = card.read_text() if card.exists() else f"# {to.name}\n\n{EXPORT.format(to.name)}"
        if not text.startswith("---\n"):
            write_atomic(card, f"{CARD}\n{text}".encode())
    return new, refused


def export(folder: Path, to: Path, ids: Sequence[str] = ()) -> list[Path]:
    """Write records of a campaign's tables as folders `to`/ID, byte for byte; returns these.

    ids: of the runs; none: all. RRError for an id that is not there, or a file that is there with
    other content.
    """
    known = {one.place.name: one for one in read_table(folder)}
    if not known:
        raise RRError(f"no runs.parquet with records in {folder}: expected a campaign's folder")
    for name in ids:
        if name not in known:
            raise RRError(f"no record {name} in {folder}: expected one of its {len(known)} ids")
    homes = []
    for name in ids or known:
        home = to / name
        home.mkdir(parents=True, exist_ok=True)
        for file in LARGEST:
            data = known[name].parsed(file)
            if not (home / file).exists():
                write_atomic(home / file, data)
            elif (home / file).read_bytes() != data:
                raise RRError(f"{home / file} has other content: choose another --out")
        homes.append(home)
    return homes


def _strings(value: object) -> Iterable[str]:
    if isinstance(value, dict):
        value = value.values()
    if isinstance(value, str):
        yield value
    elif isinstance(value, Iterable):
        for item in value:
            yield from _strings(item)
