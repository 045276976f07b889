"""A sweep of nine nano runs, three shapes of three seeds: eager, and with the path that it chooses.

    python tests/benchmarks/sweep.py --out data/measured/08_make_it_fast/sweep.json

Each run is a process on one thread, start-up, evaluation and compilation included. Inductor's cache
is empty before the sweep that may compile, so that each shape is compiled once and its graphs are
loaded twice. Seconds are the processor's, of all processes together, so that a machine that does
other work may be used; those by the clock stand beside them.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch

from rr import io
from rrstudy.perf.benchmark import made_by

SWEEPS = {"eager": ["--backend", "eager"], "chosen": []}


def swept(more: list[str], args, folder: Path) -> dict:
    """Seconds of one sweep, and the path and held-out loss of each of its runs."""
    runs, graphs = folder / "runs", folder / "graphs"
    env = os.environ | {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "RR_CACHE": str(folder.parent / "cache"),  # of both: what was tokenised is there
        "TORCHINDUCTOR_CACHE_DIR": str(graphs),
    }
    words = ["--rung", args.rung, "--rule", *args.rules, "--seed", *args.seeds]
    words += ["--steps", str(args.steps), "--runner", "direct", "--out", str(runs)]
    words += ["--jobs", str(args.jobs), "--threads", "1", "--device", "cpu", *more]
    prepare = [sys.executable, "-m", "rr.cli", "prepare"]
    subprocess.run(prepare, env=env, check=True, capture_output=True)
    began, clock = os.times(), time.perf_counter()
    subprocess.run([sys.executable, "-m", "rrstudy.cli", "sweep", *words], env=env, check=True)
    clock, ended = time.perf_counter() - clock, os.times()
    spent = sum(getattr(ended, n) - getattr(began, n) for n in ("children_user", "children_system"))
    rows = []
    for path in sorted(runs.glob("*/result.json")):
        record = json.loads((path.parent / "run.json").read_text())
        loss = json.loads(path.read_text())["val_loss"]
        run = record["run"]
        rows.append({"rule": run["rule"], "seed": run["seed"], "val_loss": loss,
                     "path": record["provenance"]["code_path"]})  # fmt: skip
    return {"cpu_seconds": spent, "seconds": clock, "runs": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rung", default="nano")
    parser.add_argument("--rules", nargs="+", default=["standard", "constant", "review"])
    parser.add_argument("--seeds", nargs="+", default=["0", "1", "2"])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    about = {"rung": args.rung, "steps": args.steps, "jobs": args.jobs}
    kept: dict = {"made_by": made_by(torch.device("cpu"), 1), **about}
    for name, more in SWEEPS.items():
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / name
            place.mkdir()
            kept[name] = swept(more, args, place)
        io.write_json(args.out, kept)
    for name in SWEEPS:
        paths = sorted({row["path"] for row in kept[name]["runs"]})
        print(f"{name}: {kept[name]['cpu_seconds']:.0f} s of the processor, {' '.join(paths)}")


if __name__ == "__main__":
    main()
