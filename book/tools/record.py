"""Copy finished runs into records: the small evidence that a figure in the book is drawn from.

    python book/tools/record.py RUNS ... --to data/measured/02_gate_equation

RUNS are run folders, or folders that hold run folders. A record is DIR/<id>/ with

    run.json        specification and provenance; the corpus by name and fingerprint, no path
    result.json     as the run wrote it, sealed again over the lines that stay
    metrics.jsonl   at most 200 of the run's own lines, chosen and never averaged

A run that has no result yet, or that is damaged, is refused and nothing is written for it.
"""

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rr.config import RRError, Run
from rr.io import read_json, write_atomic, write_record
from rr.training.run_folder import finished

LIMIT = 200  # lines of metrics.jsonl in a record
# an absolute path, a home, a way up, a drive; not the "/" of "w/o" or of "org/name"
_PATH = re.compile(r"(^|[\s:=\"'(])(/\w|~/|\.\.?/|[A-Za-z]:\\)")


def record(folder: Path, to: Path) -> Path:
    """Write the record of one finished run below `to`; returns its folder.

    Raises RRError (RunFailed where the run is damaged) with one line that names the run.
    """
    result = finished(folder)
    if result is None:
        raise RRError(f"{folder} has no result.json: a finished run is accepted")
    told = read_json(folder / "run.json")
    if Run.from_spec(told["run"]).id != folder.name or told["id"] != folder.name:
        raise RRError(f"{folder / 'run.json'} is not run {folder.name}'s: it is not recorded")
    # Where the text was on that machine is nobody else's business: names, and in the
    # specification and provenance the fingerprints, say which text it was.
    told["source"] = {name: result[name] for name in ("corpus", "tokenizer")}
    for value in (*_strings(told), *_strings(result)):
        if _PATH.search(value):
            raise RRError(f"{folder.name} would record the path {value!r}: only names are accepted")
    curve = (folder / "metrics.jsonl").read_bytes()
    if result.get("curve_sha256") not in (None, hashlib.sha256(curve).hexdigest()):
        raise RRError(f"{folder / 'metrics.jsonl'} is damaged: it is not the curve of its result")
    kept = "".join(f"{line}\n" for line in thin(curve.decode().splitlines())).encode()
    if "curve_sha256" in result:
        result["curve_sha256"] = hashlib.sha256(kept).hexdigest()
    home = to / folder.name
    home.mkdir(parents=True, exist_ok=True)
    write_record(home / "run.json", told)
    write_record(home / "result.json", result)
    write_atomic(home / "metrics.jsonl", kept)
    return home


def thin(lines: list[str], limit: int = LIMIT) -> list[str]:
    """At most `limit` of the lines, in order, unchanged.

    Held-out losses and the last line always stay; of the others every k-th does, k the smallest
    whole number that is enough. A kept training loss is still the mean since the line that stood
    before it in the run, not since the one that stands before it in the record.
    """
    keep = {i for i, line in enumerate(lines) if "loss" not in json.loads(line)}
    keep |= {len(lines) - 1} if lines else set()
    others = [i for i in range(len(lines)) if i not in keep]
    room = limit - len(keep)
    if room < 0:
        raise RRError(f"{len(keep)} lines of metrics must stay: at most {limit} are accepted")
    spread = others[:: max(1, -(-len(others) // room))] if room else []
    return [lines[i] for i in sorted(keep.union(spread))]


def runs_below(places: Iterable[Path]) -> list[Path]:
    """The run folders at or below these places, by name of their parent and id."""
    found = {run.parent for place in places for run in place.rglob("run.json")}
    if not found:
        raise RRError("no run.json below what was given: folders of `rr train` are accepted")
    return sorted(found)


def _strings(value: object) -> Iterable[str]:
    if isinstance(value, dict):
        value = value.values()
    if isinstance(value, str):
        yield value
    elif isinstance(value, Iterable):
        for item in value:
            yield from _strings(item)


def main(arguments: list[str] | None = None) -> int:
    """The command line; 2 where a run was refused."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, help="run folders, or folders of them")
    parser.add_argument("--to", required=True, type=Path, help="data/measured/NN_slug")
    given = parser.parse_args(arguments)
    refused = 0
    try:
        folders = runs_below(given.runs)
    except RRError as error:
        folders, refused = [], 1
        print(f"record: {error}", file=sys.stderr)
    for folder in folders:
        try:
            home = record(folder, given.to)
            result = read_json(home / "result.json")
            print(f"record: {home}  {result['rung']} {result['rule']} seed {result['seed']}")
        except RRError as error:
            refused += 1
            print(f"record: {error}", file=sys.stderr)
    return 2 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
