"""Two real steps of the 1B rung on a CPU, and how much memory they take at most.

    python tests/benchmarks/one_billion.py --corpus file:STORIES --tokenizer gpt2 \\
        --out data/measured/08_make_it_fast/one_billion.json

984 million parameters, rule review, the full recipe's batch of 64 windows of 256 tokens, AdamW's
whole state, one checkpoint, evaluations of one batch after each step and at the end: `rr.train`,
nothing else. The most memory is the kernel's own high-water mark (VmHWM) of this process, torch
included, from its start to its end. The checkpoint, 12 GB, is written to --scratch and removed.

A rehearsal on a smaller rung: --rung 60M.
"""

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch

import rr
from rr import io
from rr.errors import RRError
from rr.model import costs
from rr.training import memory
from rr.training.backend import parse_backend
from rrstudy.perf.benchmark import made_by

LIMIT = 22 * 2**30  # bytes
STATUS = Path("/proc/self/status")


def status() -> dict[str, int]:
    """Bytes of this process: VmRSS, its parts RssAnon and RssFile, and the high-water mark."""
    lines = (line.split() for line in STATUS.read_text().splitlines())
    kept = ("VmHWM:", "VmRSS:", "RssAnon:", "RssFile:")
    return {line[0][:-1]: int(line[1]) * 1024 for line in lines if line[0] in kept}


class Watch(threading.Thread):
    """The most of each figure of `status`, and what of the machine was free at least."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most: dict[str, int] = {}
        self.least_available, self.over = 2**62, threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.2):
            for name, value in status().items():
                self.most[name] = max(value, self.most.get(name, 0))
            lines = Path("/proc/meminfo").read_text().splitlines()
            free = next(line for line in lines if line.startswith("MemAvailable:")).split()[1]
            self.least_available = min(self.least_available, int(free) * 1024)


def cgroup_peak() -> int | None:
    """The group's high-water mark, page cache and other processes included; None if not kept."""
    names = {
        "": ("unified/{}/memory.peak", "{}/memory.peak"),
        "memory": ("memory/{}/memory.max_usage_in_bytes",),
    }  # version 2, version 1
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, kind, group = line.split(":", 2)
        for name in names.get(kind, ()):
            with suppress(OSError, ValueError):
                return int((Path("/sys/fs/cgroup") / name.format(group[1:])).read_text())
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--corpus", required=True, help="as rr train's: file:PATH, a small text")
    parser.add_argument("--tokenizer", default="gpt2", help="as rr train's (default: gpt2)")
    parser.add_argument("--out", type=Path, required=True, help="JSON file")
    parser.add_argument("--rung", default="1B")
    parser.add_argument("--rule", default="review")
    parser.add_argument("--backend", default="eager:recompute=layer")
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--scratch", type=Path, help="folder for the run (default: a new one)")
    args = parser.parse_args()
    if not STATUS.exists():
        print("one_billion.py: no /proc/self/status: Linux is needed", file=sys.stderr)
        return 2
    home = Path(tempfile.mkdtemp(prefix="one_billion-", dir=args.scratch))
    watch, began = Watch(), time.monotonic()
    try:
        run = rr.plan(
            args.rung,
            args.rule,
            corpus=args.corpus,
            tokenizer=args.tokenizer,
            steps=2,
            eval_batches=1,
        )
        baseline = status()["VmRSS"]
        watch.start()
        folder = rr.train(
            run,
            home,
            rr.Request(
                threads=args.threads,
                device="cpu",
                save_every=1e9,
                micro_batch=args.micro_batch,
                backend=args.backend,
            ),
        )
        seconds = time.monotonic() - began
        end = status()
        result = io.read_sealed(folder / "result.json")
        record = io.read_sealed(folder / "run.json")
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        saved = [
            (path.parent.name, path.stat().st_size)
            for path in sorted((folder / "checkpoint").glob("*/state.pt"))
        ]
    except RRError as error:
        print(f"one_billion.py: {error}", file=sys.stderr)
        return 2
    finally:
        watch.over.set()
        shutil.rmtree(home, ignore_errors=True)
    config, recipe = run.model, run.recipe
    parts = memory.predict(run, parse_backend(args.backend), args.micro_batch, "cpu")
    found = {
        "made_by": {
            **made_by(torch.device("cpu"), result["threads"]),
            "libc": " ".join(platform.libc_ver()),
            "cores": os.cpu_count(),
        },
        "what": "peak resident memory of rr.train, two steps of the full recipe's batch",
        "rung": args.rung,
        "rule": args.rule,
        "path": args.backend,
        "precision": result["precision"],
        "batch": recipe.batch,
        "micro_batch": record["provenance"]["micro_batch"],
        "seq_len": config.seq_len,
        "params": costs.count(config),
        "vocab_size": config.vocab_size,
        "steps": 2,
        "tokens": result["tokens"],
        "corpus": result["corpus"],
        "corpus_id": run.corpus,
        "tokenizer_id": run.tokenizer,
        "status": result["status"],
        "val_loss": result["val_loss"],
        "eval_tokens": result["eval_tokens"],
        "weights_sha256": result["weights_sha256"],
        "metrics": lines,
        "checkpoints": saved,
        "seconds": seconds,
        "limit_bytes": LIMIT,
        "peak_bytes": end["VmHWM"],
        "peak_gib": end["VmHWM"] / 2**30,
        "within": end["VmHWM"] < LIMIT,
        "baseline_bytes": baseline,
        "most": watch.most,
        "least_available_bytes": watch.least_available,
        "cgroup_peak_bytes": cgroup_peak(),
        "predicted": parts,
        "predicted_over_measured": parts["total"] / (end["VmHWM"] - baseline),
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    io.write_json(args.out, found)
    print(
        f"{found['params']:,} parameters, {result['status']}, held-out loss "
        f"{result['val_loss']:.4f}; peak {found['peak_gib']:.2f} GiB, limit 22; predicted "
        f"{parts['total'] / 2**30:.2f} above a baseline of {baseline / 2**30:.2f}; "
        f"{seconds:.0f} s"
    )
    return 0 if found["within"] else 3


if __name__ == "__main__":
    sys.exit(main())
