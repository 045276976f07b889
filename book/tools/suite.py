"""Run everything that `make test` stands for, and end with one table and one verdict.

Every step runs even if one before it failed. Kernels and tests that run side by side get one thread
each: two cores are shared better that way than by threads that wait for each other. The faults,
which often wait, run beside all other steps.
"""

import json
import math
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from nbkit import EXECUTED, ROOT, environment, sources

PYTEST = [sys.executable, "-m", "pytest", "-q"]
# processes, and what each of them gets at a time
TWO = ["-n", "2", "--dist"]
THREE = ["-n", "3", "--dist"]  # a process waits for its kernel, its browser, or the site
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
    """The notebooks, so that two processes end together; those never executed here come first."""

    def seconds(path: Path) -> float:
        record = EXECUTED / f"{path.stem}.json"
        return json.loads(record.read_text())["seconds"] if record.exists() else math.inf

    return [str(path) for path in sorted(sources(), key=seconds, reverse=True)]


def steps() -> list[tuple[str, list[str], dict[str, str]]]:
    """Name, command and environment of each step."""
    threads = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS")
    one: dict[str, str] = dict.fromkeys(threads, "1")
    return [
        ("lint", [sys.executable, "book/tools/lint.py"], {}),
        (
            "unit",
            [*PYTEST, "tests/unit", "-m", "not slow", "--durations=12", *TWO, "loadfile"],
            one,
        ),
        ("notebooks: rules", [*PYTEST, "tests/notebooks", "-m", "not slow"], {}),
        ("notebooks: outputs", [*PYTEST, *NBVAL, *THREE, "loadscope", *longest_first()], one),
        ("book: the page", [*PYTEST, "tests/book", "-m", "not slow", *THREE, "loadgroup"], {}),
        ("faults: random kills", [*PYTEST, "tests/faults", "-m", "not slow"], one),
    ]


def run(step: tuple[str, list[str], dict[str, str]], aside: bool = False) -> tuple[str, int, float]:
    """Name, exit code and seconds of a step. aside: its output is printed whole, once it ends."""
    name, command, extra = step
    began, title = time.monotonic(), f"\n=== {name} ==="
    if not aside:
        print(title, flush=True)
    caught = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True} if aside else {}
    done = subprocess.run(command, cwd=ROOT, env={**environment(), **extra}, **caught)
    if aside:
        print(f"{title}\n{done.stdout}", flush=True)
    return name, done.returncode, time.monotonic() - began


def main() -> int:
    began = time.monotonic()
    *others, faults = steps()
    with ThreadPoolExecutor() as pool:
        beside = pool.submit(run, faults, aside=True)
        results = [*map(run, others), beside.result()]
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
