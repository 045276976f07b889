"""Measure what an interruption costs on this machine: the record behind chapter 17.

    python book/tools/interruptions.py --to data/measured/17_running_it/interruptions.json

Three things, each on real files and processes: how long a checkpoint takes and how large it is; how
long a run that is sent SIGTERM takes until it has saved and ended; how much work SIGKILL destroys,
at random moments, for several intervals between checkpoints. Ten minutes on two cores; called
again, it resumes with what is missing.
"""

import argparse
import json
import multiprocessing
import os
import platform
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import rr
from rr import io
from rr.errors import Interrupted
from rr.model import Model
from rr.residual.stack import decay_groups
from rr.training import checkpoint, trainer

TINY = "nano:n_layer=2,d_model=32,seq_len=64"
INTERVALS = (0.5, 1.0, 2.0)  # seconds between checkpoints


def tokenizer_of(rung: str) -> str:
    """GPT-2's for the published rungs, so that they have their published size."""
    return "gpt2" if rung[0].isdigit() else "bpe:1024"


def checkpoint_cost(rung: str, home: Path, repeats: int = 3) -> dict:
    """Seconds and bytes of a checkpoint of a model of this rung, weights and AdamW's moments."""
    run = rr.plan(rung, "review", corpus="fables", tokenizer=tokenizer_of(rung))
    model = Model(run.model)
    optimizer = torch.optim.AdamW(decay_groups(model, 0.1), lr=1e-4, fused=True)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    home.mkdir()
    store, times = checkpoint.Checkpoints(home, run.id), []
    for step in range(repeats):
        begun = time.perf_counter()
        store.save(step, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        times.append(time.perf_counter() - begun)
    size = sum(p.stat().st_size for p in store.path(repeats - 1).iterdir())
    return {
        "rung": rung,
        "params": sum(p.numel() for p in model.parameters()),
        "bytes": size,
        "seconds": times,
    }


def child(rung: str, options: dict, out: str, save_every: float) -> None:
    """One run in a process of its own, ended as `rr train` ends."""
    run = rr.plan(rung, "review", **options)
    try:
        trainer.train(run, out, rr.Request(threads=1, save_every=save_every), log=lambda line: None)
    except Interrupted:
        sys.exit(130)


def started(rung: str, options: dict, home: Path, save_every: float, ready) -> tuple:
    """A process whose run is under way, and its folder: `ready(folder)` holds."""
    folder = home / rr.plan(rung, "review", **options).id
    process = CONTEXT.Process(target=child, args=(rung, options, str(home), save_every))
    process.start()
    while not ready(folder):
        time.sleep(0.002)
        if process.exitcode is not None:
            raise SystemExit(f"{rung}: the run ended with {process.exitcode} before its moment")
    return process, folder


def lines(folder: Path, n: int) -> bool:
    """Whether the run has recorded n lines."""
    path = folder / "metrics.jsonl"
    return path.exists() and len(path.read_text().splitlines()) >= n


def terminated(rung: str, options: dict, home: Path) -> dict:
    """Seconds from SIGTERM to the end of the process, and of one step before it."""
    process, folder = started(rung, options, home, 1e6, lambda f: lines(f, 3))
    os.kill(process.pid, signal.SIGTERM)
    sent = time.perf_counter()
    process.join()
    waited = time.perf_counter() - sent
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [b["seconds"] - a["seconds"] for a, b in zip(records, records[1:], strict=False)]
    whole = checkpoint.Checkpoints(folder, folder.name).newest(print)
    assert process.exitcode == 130 and whole and whole["step"] == records[-1]["step"]
    return {
        "rung": rung,
        "batch": options.get("batch", "the rung's"),
        "seconds": waited,
        "step_seconds": statistics.median(steps),
    }


def destroyed(every: float, home: Path, rng: random.Random) -> float:
    """Seconds of work between the last whole checkpoint and a SIGKILL at a random moment."""
    options = {"steps": 1_000_000, "batch": 1}
    process, folder = started(TINY, options, home, every, lambda f: any(f.glob("checkpoint/0*")))
    time.sleep(rng.random() * 2 * every)
    os.kill(process.pid, signal.SIGKILL)
    now = time.time()
    process.join()
    return now - max(p.stat().st_mtime for p in folder.glob("checkpoint/0*/meta.json"))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--kills", type=int, default=12, help="for each interval (default: 12)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rng = random.Random(0)
    record = {
        "machine": f"{platform.machine()}, {os.cpu_count()} shared cores, one per run",
        "torch": torch.__version__,
        "sigkill": [],
        "sigterm": [],
        "checkpoints": [],
    }
    if args.to.exists():
        record = io.read_json(args.to)
    args.to.parent.mkdir(parents=True, exist_ok=True)

    def keep(part: str, row: dict) -> None:
        record[part].append(row)
        io.write_json(args.to, record)
        print(row, flush=True)

    def count(part: str, key: str, value: object) -> int:
        return sum(row[key] == value for row in record[part])

    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        for rung in ("nano", "mini", "60M", "150M"):
            if not count("checkpoints", "rung", rung):
                keep("checkpoints", checkpoint_cost(rung, home / rung))
        for rung, batch, repeats in (("nano", None, 5), ("mini", None, 5), ("60M", 2, 3)):
            options = {"steps": 100} | ({"batch": batch} if batch else {})
            for n in range(count("sigterm", "rung", rung), repeats):
                keep("sigterm", terminated(rung, options, home / f"{rung}-{n}"))
        for every in INTERVALS:
            if not count("sigkill", "every", every):
                lost = [destroyed(every, home / f"{every}-{n}", rng) for n in range(args.kills)]
                keep("sigkill", {"every": every, "lost_seconds": lost})


CONTEXT = multiprocessing.get_context("forkserver")
if __name__ == "__main__":
    CONTEXT.set_forkserver_preload(
        ["rr.training.trainer", "rr.training.run_folder", "torch._dynamo"]
    )
    main()
