"""Run unit tests and notebooks' outputs as other machines would; end with one table.

    python book/tools/portable.py                                   (or: make portable)
    python book/tools/portable.py --only plain                      # one column of the matrix
    python book/tools/portable.py --only plain --only mkl 06 13     # two, these notebooks alone
    python book/tools/portable.py tests/unit/test_ops.py            # these tests alone

Each column is a Python, a number of threads and the kernels that an older CPU would choose. Every
notebook and every module of unit tests runs twice: in `plain`, the newest Python with the oldest
kernels, and in one of the other columns, which take turns. What is named runs in every column.

Results are kept in _build/portable/results.json as they come: what passed with the code as it is
does not run again, so that the table can be filled in pieces. Naming something runs it again.

The Python that runs this is used as it is; every other gets a virtual environment of its own under
_build/portable/. PYTHONS="/a/python3.12 ..." names the interpreters; without it python3.11, 3.12
and 3.13 are looked for on PATH. One that is missing stands in the table as not here. PIP_TORCH
chooses another build of torch, as in `make`.
"""

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from nbkit import BUILD, ROOT, environment, sources
from suite import NBVAL

PLACE = BUILD / "portable"
RESULTS = PLACE / "results.json"
UNIT, NOTEBOOKS = PARTS = "unit", "notebooks: outputs"
TOGETHER = 8  # modules of unit tests in a process: each process imports torch once


@dataclass(frozen=True)
class Column:
    python: str
    threads: int
    kernels: dict[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(self.threads))
        # threads that wait must not take the cores of the others
        return {**environment(), **threads, **self.kernels, "OMP_WAIT_POLICY": "PASSIVE"}


PLAIN = "plain"
# between them every setting once
MATRIX = {
    "avx512": Column("3.11", 1, {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}),
    "aten": Column("3.11", 3, {"ATEN_CPU_CAPABILITY": "default"}),
    "avx2": Column("3.12", 1, {"ONEDNN_MAX_CPU_ISA": "AVX2"}),
    "mkl": Column("3.12", 3, {"MKL_CBWR": "COMPATIBLE"}),
    PLAIN: Column(
        "3.13",
        1,
        {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "COMPATIBLE"},
    ),
}


def interpreters() -> dict[str, str]:
    """version -> a Python of that version that runs."""
    wanted = sorted({column.python for column in MATRIX.values()})
    named = os.environ.get("PYTHONS", "").split() or [f"python{version}" for version in wanted]
    found = {}
    for path in filter(None, map(shutil.which, [sys.executable, *named])):
        ask = [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        done = subprocess.run(ask, capture_output=True, text=True)
        if done.returncode == 0:  # a pyenv shim is there even where its Python is not
            found.setdefault(done.stdout.strip(), path)
    return found


def prepare(version: str, python: str) -> str:
    """The interpreter of that version's virtual environment, made anew where it is out of date.

    The one that runs this has what is needed.
    """
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    home = PLACE / f"py{version}"
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    made_of = [needs["dependencies"], needs["optional-dependencies"]]
    made_of.append((ROOT / "constraints.txt").read_text())
    mark, wanted = home / ".ready", hashlib.sha256(json.dumps(made_of).encode()).hexdigest()
    inside = str(home / "bin" / "python")
    if mark.exists() and mark.read_text() == wanted:
        return inside
    print(f"portable: a virtual environment for Python {version} in {home}", flush=True)
    shutil.rmtree(home, ignore_errors=True)
    pip = [inside, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    torch = shlex.split(os.environ.get("PIP_TORCH", ""))
    for command in (
        [python, "-m", "venv", str(home)],
        [*pip, *torch, "-c", "constraints.txt", "torch", "setuptools"],
        [*pip, "-c", "constraints.txt", "--no-build-isolation", "-e", ".[book,test,hub]"],
    ):
        subprocess.run(command, cwd=ROOT, check=True)
    mark.write_text(wanted)
    return inside


def unit_modules() -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests/unit").glob("test_*.py"))


def notebooks(*picks: str) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in sources(*picks)]


def part_of(item: str) -> str:
    return NOTEBOOKS if item.endswith(".ipynb") else UNIT


def share(picked: Iterable[str]) -> dict[str, list[str]]:
    """Column -> what it runs: all in `plain`; of the other columns each item has one, in turn."""
    shares: dict[str, list[str]] = {name: [] for name in MATRIX}
    others = [name for name in MATRIX if name != PLAIN]
    for items in (unit_modules(), notebooks()):
        shares[PLAIN] += items
        for i, item in enumerate(items):
            shares[others[i % len(others)]].append(item)
    return {name: shares[name] for name in picked}


def chunks(items: list[str]) -> list[list[str]]:
    """What runs in one process: a notebook, or a few modules of unit tests."""
    unit = [item for item in items if part_of(item) == UNIT]
    return [unit[i : i + TOGETHER] for i in range(0, len(unit), TOGETHER)] + [
        [item] for item in items if part_of(item) == NOTEBOOKS
    ]


def command(python: str, items: list[str]) -> list[str]:
    """The items of one part, in one process."""
    options = ["-m", "not slow", "-p", "no:cacheprovider"] if part_of(items[0]) == UNIT else NBVAL
    return [python, "-m", "pytest", "-q", "-rfE", *options, *items]


@lru_cache
def code() -> bytes:
    """What decides every result beside the item itself."""
    places = [ROOT / "rr", ROOT / "book" / "rrbook", ROOT / "tests"]
    files = [path for place in places for path in place.rglob("*") if path.suffix != ".pyc"]
    found = hashlib.sha256((ROOT / "constraints.txt").read_bytes())
    for file in sorted(path for path in files if path.is_file()):
        found.update(file.read_bytes())
    return found.digest()


def key(item: str) -> str:
    return hashlib.sha256(code() + (ROOT / item).read_bytes()).hexdigest()[:16]


def kept() -> dict[str, dict]:
    """`column item` -> its result; those of other code are left out."""
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return {
        cell: outcome
        for cell, outcome in found.items()
        if (ROOT / cell.split()[1]).exists() and outcome["key"] == key(cell.split()[1])
    }


def judge(code: int, text: str, items: list[str]) -> dict[str, list[str]]:
    """Item -> why it failed, lines of pytest's exit code and output; none where it passed."""
    said = re.findall(r"^(?:FAILED|ERROR) .*", text, re.M)
    found = {item: [line for line in said if item in line] for item in items}
    if code and (code != 1 or not any(found.values())):  # it ended before it could tell of each
        return {item: lines or text.splitlines()[-15:] for item, lines in found.items()}
    return found


def run(name: str, python: str, items: list[str]) -> dict[str, dict]:
    """The results of a chunk of a column; its whole output is kept in a file."""
    log = PLACE / "logs" / f"{name}-{Path(items[0]).stem}.log"
    log.parent.mkdir(exist_ok=True)
    began = time.monotonic()
    with open(log, "w") as file:
        done = subprocess.run(
            command(python, items),
            cwd=ROOT,
            env=MATRIX[name].environment(),
            stdout=file,
            stderr=file,
        )
    seconds, why = time.monotonic() - began, judge(done.returncode, log.read_text(), items)
    verdict = "FAILED" if any(why.values()) else "passed"
    print(f"portable: {verdict} {name} {' '.join(items)} ({seconds:.0f} s; {log})", flush=True)
    for line in (line for lines in why.values() for line in lines):
        print(f"  {line}", flush=True)
    return {f"{name} {item}": {"key": key(item), "why": why[item]} for item in items}


def table(rows: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="a notebook's number or part of its name, or tests/...; all without",
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=MATRIX,
        metavar="COLUMN",
        help=f"one of {', '.join(MATRIX)}; may be given again",
    )
    args = parser.parse_args()
    picked = args.only or list(MATRIX)
    tests = [name for name in args.names if name.startswith("tests/")]
    named = [name for name in args.names if name not in tests]
    items = tests + (notebooks(*named) if named else [])

    PLACE.mkdir(parents=True, exist_ok=True)
    shares = dict.fromkeys(picked, items) if items else share(picked)
    here, results = interpreters(), kept()
    work = []
    for name in picked:
        if MATRIX[name].python in here:
            python = prepare(MATRIX[name].python, here[MATRIX[name].python])
            passed = {cell for cell, outcome in results.items() if not outcome["why"]}
            left = [item for item in shares[name] if items or f"{name} {item}" not in passed]
            work += [(name, python, chunk) for chunk in chunks(left)]
    with ThreadPoolExecutor(2) as pool:
        for future in as_completed([pool.submit(run, *one) for one in work]):
            results |= future.result()
            aside = RESULTS.with_suffix(".aside")
            aside.write_text(json.dumps(results, indent=1, sort_keys=True))
            aside.replace(RESULTS)

    rows, verdict = [("column", "Python", "threads", "kernels", *PARTS)], "passed"
    for name in picked:
        column, cells = MATRIX[name], []
        for part in PARTS:
            wanted = [item for item in shares[name] if part_of(item) == part]
            outcomes = [results.get(f"{name} {item}") for item in wanted]
            failed = sum(bool(one["why"]) for one in outcomes if one)
            if not wanted:
                cells.append("not asked")
            elif None in outcomes:
                cells.append("not here")
                verdict = "FAILED"
            else:
                words = f"{len(outcomes) - failed} passed"
                cells.append(f"{words}, {failed} FAILED" if failed else words)
                verdict = "FAILED" if failed else verdict
        kernels = " ".join(f"{key}={value}" for key, value in column.kernels.items())
        rows.append((name, column.python, str(column.threads), kernels, *cells))
    print(f"\n{table(rows)}")
    for version in sorted({MATRIX[name].python for name in picked} - here.keys()):
        print(f"Python {version} is not here: put python{version} on PATH, or name it in PYTHONS")
    print(f"make portable: {verdict}")
    return 0 if verdict == "passed" else 1


if __name__ == "__main__":
    sys.exit(main())
