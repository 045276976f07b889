"""The plain gated write beside one whose backward pass was written by hand, which left `rr`.

    git worktree add /tmp/by_hand 0f1de2da
    python tests/benchmarks/gated_write.py --by-hand /tmp/by_hand \
        --out data/measured/08_make_it_fast/gated_write.json

The old checkout has both forms; the plain one here is this checkout's. Each side has a process of
its own; they take turns, and the first changes with the repeat. A step is counted in CPU seconds of
its process, which other work on the machine disturbs less than the clock. Peak memory is resident,
of the process, after two steps that compile.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
if "--side" not in sys.argv:  # a side runs its own checkout
    sys.path.insert(0, str(ROOT))
SIDES = {  # name -> (of the old checkout, backend there)
    "compiled": {"by hand": (True, "compiled:attention=blocks"),
                 "plain": (False, "compiled:attention=blocks")},
    "eager": {"by hand": (True, "fast"), "plain": (False, "eager:allocator=kept")},
}  # fmt: skip
CASES = {"mini": 8, "60M": 16}  # rung -> windows of a step, all at once


class Side:
    """A process that takes steps when it is asked to."""

    def __init__(self, checkout: Path, rung: str, path: str, windows: int, threads: int) -> None:
        command = [sys.executable, __file__, "--side", rung, path, str(windows), str(threads)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=checkout,
            env=os.environ | {"PYTHONPATH": str(checkout)},
        )
        self.warm = self.ask()
        self.steps: list[dict] = []

    def ask(self) -> dict:
        """What the next step took; before the first, what compiling and two steps took."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self) -> None:
        """End the process and free its memory."""
        self.process.communicate()


def steps(rung: str, path: str, windows: int, threads: int) -> None:
    """One side, in this process: a line of JSON for each line that comes in."""
    import torch

    try:
        from rrstudy.perf.benchmark_case import Bench, Case
    except ModuleNotFoundError:  # where the old checkout has it
        from rrstudy.perf.benchmark_case import Bench, Case  # pyright: ignore[reportMissingImports]

    bench = Bench(Case(rung, "review", path, windows, windows), "cpu", threads)
    print_to = sys.stdout
    sys.stdout = sys.stderr
    for at, _ in enumerate(sys.stdin):
        began = time.process_time()
        if at == 0:
            bench.warm()
        else:
            bench._steps(1)
        row = {"cpu_seconds": time.process_time() - began, "peak_bytes": bench.peak()["bytes"]}
        print(json.dumps(row | {"torch": torch.__version__}), file=print_to, flush=True)


def measured(args: argparse.Namespace, rung: str, kind: str) -> dict:
    """Steps of both sides in turn, and the plain one's over the other's, repeat by repeat."""
    sides = {
        name: Side(args.by_hand if old else ROOT, rung, path, CASES[rung], args.threads)
        for name, (old, path) in SIDES[kind].items()
    }
    try:
        for repeat in range(args.repeats):
            for name in sorted(sides, reverse=repeat % 2 == 1):
                sides[name].steps.append(sides[name].ask())
    finally:
        for side in sides.values():
            side.end()
    taken = {name: [row["cpu_seconds"] for row in side.steps] for name, side in sides.items()}
    peak = {name: max(row["peak_bytes"] for row in side.steps) for name, side in sides.items()}
    pairs = zip(taken["plain"], taken["by hand"], strict=True)
    over = sorted(plain / by_hand for plain, by_hand in pairs)
    row = {
        "rung": rung,
        "rule": "review",
        "kind": kind,
        "paths": {name: path for name, (_, path) in SIDES[kind].items()},
        "windows": CASES[rung],
        "cpu_seconds_per_step": taken,
        "warm_cpu_seconds": {name: side.warm["cpu_seconds"] for name, side in sides.items()},
        "peak_bytes": peak,
        "time": median(over),
        "least": over[0],
        "most": over[-1],
        "memory": peak["plain"] / peak["by hand"],
    }
    words = f"{row['time']:.3f} ({over[0]:.3f} to {over[-1]:.3f}), memory {row['memory']:.3f}"
    print(f"{rung} {kind}: the plain write takes {words} of the other's", flush=True)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--by-hand", type=Path, help="a checkout that has the other form")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--side", nargs=4, help="one side, in this process")
    args = parser.parse_args()
    if args.side:
        rung, path, windows, threads = args.side
        steps(rung, path, int(windows), int(threads))
        return 0
    if not (args.by_hand and args.out):
        parser.error("--by-hand and --out are needed")
    import torch

    from rr import io
    from rr.training.provenance import processor
    from rrstudy.perf.benchmark import made_by

    revision = ["git", "-C", args.by_hand, "rev-parse", "HEAD"]
    record = {
        "made_by": made_by(torch.device("cpu"), args.threads) | {"processor": processor()},
        "by_hand": subprocess.check_output(revision, text=True).strip(),
        "what": "CPU seconds of a step and peak memory, the plain gated write beside the other",
        "repeats": args.repeats,
        "rows": [],
    }
    for rung in CASES:
        for kind in SIDES:
            record["rows"].append(measured(args, rung, kind))
            io.write_json(args.out, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
