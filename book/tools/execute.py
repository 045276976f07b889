"""Execute the notebooks whose code, package or data changed, as copies under _build/notebooks/.

    python book/tools/execute.py [NAME ...] [--again]

A notebook's outputs are current while its code cells, all of `rr`, `rrbook` and `data/`, the tested
versions and Python are what they were. (Jupyter Book's own cache looks at the cells alone.)

Papermill runs them, one after another on all cores: that keeps the number of threads, and so the
bits of anything trained, the same for every notebook. A notebook that fails is named with its cell
and its error, its copy is kept under _build/failed/, the others still run, and the exit code is 1.
"""

import argparse
import functools
import hashlib
import json
import os
import re
import sys
import time
from pathlib import Path

import nbformat
import papermill
import psutil
from nbkit import BUILD, EXECUTED, ROOT, code_cells, environment, read, sources, tags
from papermill.engines import NBClientEngine, papermill_engines
from papermill.exceptions import PapermillExecutionError

from rrbook.labs.lab import RECORD

CELL_SECONDS = 900  # a cell that takes longer hangs, or does not belong in the smoke tier
ANSI = re.compile(r"\x1b\[[0-9;]*m")


class ProgressEngine(NBClientEngine):
    """Papermill's engine, which also says after each code cell how far it is."""

    label = ""
    started = 0.0
    peak = 0.0  # MiB, the most that a process of the kernel has held

    @classmethod
    def execute_managed_notebook(cls, nb_man, kernel_name, **kwargs):
        total, done = len(code_cells(nb_man.nb)), 0
        shown, finish = time.monotonic(), nb_man.cell_complete

        def cell_complete(cell, *args, **more):
            nonlocal done, shown
            finish(cell, *args, **more)
            if cell.cell_type != "code":
                return
            cls.peak = max(cls.peak, held())
            done += 1
            now = time.monotonic()
            line = f"{cls.label}  cell {done}/{total}  {now - cls.started:.0f} s"
            if sys.stdout.isatty():
                print(f"\r{line}", end="", flush=True)
            elif now - shown > 10:
                print(line, flush=True)
                shown = now

        nb_man.cell_complete = cell_complete
        return super().execute_managed_notebook(nb_man, kernel_name, **kwargs)


def held() -> float:
    """The most memory that a process below this one has held, in MiB; 0 where /proc is absent."""
    peaks = [0]
    for child in psutil.Process().children(recursive=True):
        try:
            status = Path(f"/proc/{child.pid}/status").read_text()
        except OSError:
            continue
        peaks += map(int, re.findall(r"VmHWM:\s*(\d+) kB", status))
    return max(peaks) / 1024


papermill_engines.register("progress", ProgressEngine)


def say(line: str) -> None:
    """A finished line, over whatever progress a terminal shows."""
    print(f"\r\x1b[K{line}" if sys.stdout.isatty() else line, flush=True)


def explain(name: str, error: Exception, copy: Path) -> str:
    """Which notebook, which cell, which error, and where to look."""
    if not isinstance(error, PapermillExecutionError):
        return f"  {name} stopped: {type(error).__name__}: {error}\n  the copy: {copy}"
    cell = read(copy).cells
    failed = [c for c in cell if any(o.output_type == "error" for o in c.get("outputs", []))]
    place = f"cell {failed[0].id!r} " if failed else ""
    source = "\n".join(f"    | {line}" for line in error.source.splitlines()[:15])
    return (
        f"  {name}, {place}(the {error.exec_count}. that ran): {error.ename}: "
        f"{ANSI.sub('', str(error.evalue))}\n{source}\n  the executed copy: {copy}"
    )


@functools.cache  # as it was at the start: a file that changes meanwhile makes the outputs stale
def shared(root: Path) -> bytes:
    """Hash of what every notebook's outputs depend on: package, book, data and versions."""
    digest = hashlib.sha256(".".join(map(str, sys.version_info[:3])).encode())
    files = [root / "constraints.txt"]
    for folder in ("rr", "rrstudy", "book/rrbook", "data"):
        files += [path for path in (root / folder).rglob("*") if path.is_file()]
    for path in sorted(path for path in files if path.suffix != ".pyc"):
        digest.update(f"\0{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes())
    return digest.digest()


def key(notebook: nbformat.NotebookNode, root: Path = ROOT) -> str:
    """Hash of all that the notebook's outputs depend on."""
    digest = hashlib.sha256(shared(root))
    for cell in code_cells(notebook):
        if "bootstrap" not in tags(cell):  # it outputs nothing here
            digest.update(b"\0cell\0" + cell.source.encode())
    return digest.hexdigest()


def current(path: Path) -> bool:
    record = EXECUTED / f"{path.stem}.json"
    copy = EXECUTED / path.name
    if not (record.exists() and copy.exists()):
        return False
    return json.loads(record.read_text())["key"] == key(read(path))


def run(path: Path, label: str) -> float | None:
    """Execute one notebook; its seconds, or None where it failed."""
    work = BUILD / "running" / path.name
    work.parent.mkdir(parents=True, exist_ok=True)
    wanted = key(read(path))  # before it runs: an edit meanwhile must not pass for executed
    ProgressEngine.label, ProgressEngine.started = label, time.monotonic()
    ProgressEngine.peak = 0.0
    try:
        papermill.execute_notebook(
            str(path),
            str(work),
            engine_name="progress",
            kernel_name="python3",
            cwd=str(work.parent),
            progress_bar=False,
            execution_timeout=CELL_SECONDS,
            extra_arguments=["--IPKernelApp.log_level=40"],  # not a warning at every kernel's start
        )
    except Exception as error:  # anything from a bad cell to a dead kernel; all are reported alike
        kept = BUILD / "failed" / path.name
        kept.parent.mkdir(parents=True, exist_ok=True)
        if work.exists():
            work.replace(kept)
        say(f"{label}  FAILED")
        print(explain(path.stem, error, kept), flush=True)
        return None
    seconds = time.monotonic() - ProgressEngine.started
    EXECUTED.mkdir(parents=True, exist_ok=True)
    record = {"key": wanted, "seconds": round(seconds, 1),
              "peak_mib": round(ProgressEngine.peak)}  # fmt: skip
    work.replace(EXECUTED / path.name)
    (EXECUTED / f"{path.stem}.json").write_text(json.dumps(record) + "\n")
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="a number or part of a name; all without it")
    parser.add_argument("--again", action="store_true", help="execute even what is current")
    args = parser.parse_args()

    os.environ.update(environment() | {RECORD: "1"})  # kernels inherit it
    paths = sources(*args.names)
    failed, began = [], time.monotonic()
    for i, path in enumerate(paths, 1):
        label = f"[{i}/{len(paths)}] {path.stem}"
        cells = len(code_cells(read(path)))
        if not args.again and current(path):
            say(f"{label}  {cells} cells  current, nothing to execute")
            continue
        print(f"{label}  executing {cells} cells ...", flush=True)
        seconds = run(path, label)
        if seconds is None:
            failed.append(path.stem)
        else:
            say(f"{label}  {cells} cells  {seconds:.0f} s")
    if failed:
        print(f"execute: {len(failed)} of {len(paths)} notebooks failed: {', '.join(failed)}")
        return 1
    print(f"execute: {len(paths)} notebooks are current ({time.monotonic() - began:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
