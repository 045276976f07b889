"""Run everything that `make test` stands for, and end with one table and one verdict.

Every step runs even if one before it failed. Steps that fill both cores follow each other, because
two at a time take longer: they empty each other's caches. Those that often wait, or do one thing
after another, run beside them and fill what is left idle. Kernels and tests that run side by side
get one thread each: two cores are shared better that way than by threads that wait for each other.
A step's output is printed whole, once it ends.
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
BESIDE = ("lint", "faults: random kills", "notebooks: rules")  # the others take both cores
# processes, and what each of them gets at a time
TWO = ["-n", "2", "--dist"]
THREE = ["-n", "3", "--dist"]  # a process waits for its browser, or the site
IN_TURN = "--no-loadscope-reorder"  # in the order of collection, not what has most tests first
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
    IN_TURN,
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
    """Name, command and environment of each step, those of each queue in their order."""
    threads = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS")
    one: dict[str, str] = dict.fromkeys(threads, "1")
    return [
        ("lint", [sys.executable, "book/tools/lint.py"], {}),
        ("notebooks: outputs", [*PYTEST, *NBVAL, *TWO, "loadscope", *longest_first()], one),
        (
            "unit",
            [*PYTEST, "tests/unit", "-m", "not slow", "--durations=12", IN_TURN, *TWO, "loadfile"],
            one,
        ),
        (
            "book: the page",
            [*PYTEST, "tests/book", "-m", "not slow", IN_TURN, *THREE, "loadgroup"],
            {},
        ),
        ("faults: random kills", [*PYTEST, "tests/faults", "-m", "not slow"], one),
        ("notebooks: rules", [*PYTEST, "tests/notebooks", "-m", "not slow"], {}),
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
    with ThreadPoolExecutor(1) as beside, ThreadPoolExecutor(1) as both:
        waiting = [(beside if step[0] in BESIDE else both).submit(run, step) for step in steps()]
        try:
            results = [one.result() for one in waiting]
        except KeyboardInterrupt:  # which ends the steps that run; no other begins
            for pool in (beside, both):
                pool.shutdown(wait=False, cancel_futures=True)
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
