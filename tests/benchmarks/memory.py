"""Predicted against measured peak memory of a training step, on this machine's CPU.

    python tests/benchmarks/memory.py --out data/measured/08_make_it_fast/memory.json

Each case runs in a process of its own, on one thread. Its baseline is what the process holds after
two steps of a model of no size along the same path: torch, its kernels and their code in memory.
Measured is the high-water mark of resident memory over one steady step (the second), less that
baseline; predicted is `rr.training.memory.predict`. The file is written after every case, and cases
that it holds are kept.

Beside the cases stands what is predicted for a GPU at every published rung: "ladder".

malloc: "default", the C library as it comes, which keeps small blocks that were freed; "mapped", a
block of 1 MiB or more is a mapping of its own and goes back at once (MALLOC_MMAP_THRESHOLD_): the
difference is the allocator's and no tensor's.
"""

import argparse
import ctypes
import gc
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch

from rr import io
from rr.model import sizes
from rr.training import memory, planning
from rr.training.backend import parse_backend
from rrstudy.perf.benchmark import made_by
from rrstudy.perf.benchmark_case import Bench, Case

NO_SIZE = "nano:n_layer=1,d_model=16,n_head=2,seq_len=8"
CHOSEN = "compiled:attention=blocks,allocator=system"  # what a long run takes, as malloc comes
PATHS = ["reference", "eager", "eager:recompute=layer", CHOSEN]
GRID = [
    (rung, rule, path, micro, malloc)
    for rung, rules, micro in (
        ("mini", ("review",), 8),
        ("60M", ("review", "standard"), 8),
        ("60M", ("review",), 32),
        ("mini", ("standard",), 8),
    )
    for rule in rules
    for path in PATHS
    for malloc in ("default", "mapped")
]
MALLOC = {"default": {}, "mapped": {"MALLOC_MMAP_THRESHOLD_": str(2**20)}}


def status(key: str) -> int:
    """Bytes of one line of /proc/self/status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {key} in /proc/self/status: Linux is needed")


def measured(rung: str, rule: str, path: str, micro: int, malloc: str) -> dict:
    """One case, in this process: bytes above the baseline, and what the prediction says."""
    tiny = Bench(Case(NO_SIZE, rule, path, 4, 2), "cpu", 1)
    tiny.warm()
    del tiny
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    baseline = status("VmRSS:")
    bench = Bench(Case(rung, rule, path, 2 * micro, micro), "cpu", 1)
    bench._steps(1)
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark back to what is held
    held = status("VmRSS:") - baseline
    bench._steps(1)
    peak = bench.peak()["bytes"] - baseline
    case = bench.case
    parts = memory.predict(
        case.config, parse_backend(path), micro, "cpu", planning.recipe(rung, batch=case.batch)
    )
    # the benchmark holds four batches, not one
    predicted = parts["step"] + 4 * bench.tokens[0].nbytes - parts["tokens"]
    return {
        "rung": rung,
        "rule": rule,
        "path": path,
        "batch": case.batch,
        "micro_batch": micro,
        "malloc": malloc,
        "baseline_bytes": baseline,
        "between_steps_bytes": held,
        "measured_bytes": peak,
        "predicted_bytes": predicted,
        "predicted_over_measured": predicted / peak,
        "parts": parts,
    }


def ladder_on_a_gpu() -> list[dict]:
    """Predictions for the Review arm of every published rung along three paths."""
    made = []
    for rung in (name for name, at in sizes.RUNGS.items() if at.published):
        config, recipe = sizes.arm(rung, "review"), planning.recipe(rung)
        for path in ("reference", "eager", "eager:recompute=layer"):
            for micro in (4, 16):
                parts = memory.predict(config, parse_backend(path), micro, "cuda", recipe)
                made.append({"rung": rung, "path": path, "micro_batch": micro, "parts": parts})
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--case",
        nargs=5,
        metavar=("RUNG", "RULE", "PATH", "MICRO", "MALLOC"),
        help="this one alone, in this process",
    )
    args = parser.parse_args()
    if args.case:
        *names, micro, malloc = args.case
        print(json.dumps(measured(*names, int(micro), malloc)))
        return 0
    before = json.loads(args.out.read_text()) if args.out.exists() else {}
    rows, told = before.get("rows", []), before.get("ladder") or ladder_on_a_gpu()
    keys = ("rung", "rule", "path", "micro_batch", "malloc")
    have = {tuple(row[key] for key in keys) for row in rows}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    for case in GRID:
        if case in have:
            continue
        ask = [sys.executable, __file__, "--out", str(args.out), "--case", *map(str, case)]
        place = os.environ | MALLOC[case[-1]]
        found = subprocess.run(ask, capture_output=True, text=True, env=place)
        if found.returncode:
            print(f"{case}: failed: {found.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
            continue
        row = json.loads(found.stdout.splitlines()[-1])
        rows.append(row)
        print(
            f"{' '.join(map(str, case))}: measured {row['measured_bytes'] / 2**20:.0f} MiB, "
            f"predicted {row['predicted_bytes'] / 2**20:.0f} MiB, "
            f"{row['predicted_over_measured']:.3f}",
            flush=True,
        )
        io.write_json(
            args.out,
            {
                "made_by": made_by(torch.device("cpu"), 1),
                "libc": " ".join(platform.libc_ver()),
                "what": "peak resident memory of a steady step above the baseline, "
                "and the predicted",
                "parts": memory.PARTS,
                "rows": rows,
                "ladder": told,
            },
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
