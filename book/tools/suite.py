"""Run everything that `make test` stands for, and end with one table and one verdict.

Every step runs even if one before it failed. Two steps run at a time, so that the last test of one
leaves no core idle; the faults, which often wait, run beside them. Kernels and tests that run side
by side get one thread each: two cores are shared better that way than by threads that wait for each
other. A step's output is printed whole, once it ends.
"""

import json
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from nbkit import BUILD, EXECUTED, ROOT, environment, sources

CACHE = BUILD / "test-cache"  # of corpora and counts, for all steps; each run begins without one
PYTEST = [sys.executable, "-m", "pytest", "-q"]
# processes, and what each of them gets at a time
TWO = ["-n", "2", "--dist"]
THREE = ["-n", "3", "--dist"]  # a process waits for its browser, or the site
NBVAL = [
    "--nbval",
    "--nbval-current-env",
    "--nbval-cell-timeout=900",
    "--nbval-sanitize-with",
    "tests/notebooks/sanitize.cfg",
    "-p",
    "tests.notebooks.glued",
    "-p",
    "no:cacheprovider",
    "--no-loadscope-reorder",
]


def longest_first() -> list[str]:
    """The notebooks, so that two processes end together.

    By the seconds that each took here, or, where it was never executed, by those that its
    parameters name.
    """

    def seconds(path: Path) -> float:
        record = EXECUTED / f"{path.stem}.json"
        if record.exists():
            return json.loads(record.read_text())["seconds"]
        named = re.search(r"smoke \(CPU, (\d+) s\)", path.read_text(encoding="utf-8"))
        return float(named[1]) if named else 0.0

    return [str(path) for path in sorted(sources(), key=seconds, reverse=True)]


def steps() -> list[tuple[str, list[str], dict[str, str]]]:
    """Name, command and environment of each step, in the order in which they begin.

    The page comes late: its tests are short, and fill both cores to the end.
    """
    threads = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS")
    one: dict[str, str] = dict.fromkeys(threads, "1")
    return [
        ("lint", [sys.executable, "book/tools/lint.py"], {}),
        (
            "unit",
            [*PYTEST, "tests/unit", "-m", "not slow", "--durations=12", *TWO, "loadfile"],
            one,
        ),
        ("notebooks: outputs", [*PYTEST, *NBVAL, *TWO, "loadscope", *longest_first()], one),
        ("book: the page", [*PYTEST, "tests/book", "-m", "not slow", *THREE, "loadgroup"], {}),
        ("notebooks: rules", [*PYTEST, "tests/notebooks", "-m", "not slow"], {}),
        ("faults: random kills", [*PYTEST, "tests/faults", "-m", "not slow"], one),
    ]


def run(step: tuple[str, list[str], dict[str, str]]) -> tuple[str, int, float]:
    """Name, exit code and seconds of a step."""
    name, command, extra = step
    print(f"{name}: begins", flush=True)
    began = time.monotonic()
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={"RR_CACHE": str(CACHE), **environment(), **extra},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    seconds = time.monotonic() - began
    print(f"\n=== {name} ({seconds:.0f} s) ===\n{done.stdout}", flush=True)
    return name, done.returncode, seconds


def main() -> int:
    began = time.monotonic()
    shutil.rmtree(CACHE, ignore_errors=True)
    *others, faults = steps()
    with ThreadPoolExecutor(1) as beside, ThreadPoolExecutor(2) as two:
        last = beside.submit(run, faults)
        waiting = [two.submit(run, step) for step in others]
        try:
            results = [*(one.result() for one in waiting), last.result()]
        except KeyboardInterrupt:  # which ends the steps that run; no other begins
            two.shutdown(cancel_futures=True)
            raise
    failed = [name for name, code, _ in results if code]
    print("\n=== summary ===")
    for name, code, seconds in results:
        print(f"  {'FAILED' if code else 'passed'}  {name:24s} {seconds:5.0f} s")
    total = time.monotonic() - began
    verdict = f"FAILED: {', '.join(failed)}" if failed else "everything passed"
    print(f"make test: {verdict} ({total / 60:.1f} minutes)")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
