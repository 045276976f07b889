"""The runs behind chapter 16, in the order of the plan in README.md beside this file.

    python data/measured/16_numerics/campaign.py RUNS          # resumable; start it again
    python data/measured/16_numerics/campaign.py RUNS 1/2      # every second run, from the second

Each run leaves one JSON file in RUNS; the call that finds them all there writes runs.json beside
this file, and the plain run of each arm as `rr train` makes it:

    rr records import RUNS/plain --to data/measured/16_numerics
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

import numpy as np
import torch

import rr
from rr import io
from rr.data.batches import gather
from rr.model.transformer import Model
from rr.ops.cross_entropy import token_losses
from rr.specs import Run
from rr.training import checkpoint, evaluate
from rr.training import provenance as provenance_of_training
from rr.training.backend import parse_backend
from rrbook.numerics import Change, trained

RUNG = "nano:d_model=64,seq_len=64"
ARMS = ("review", "standard")
HELD = 512  # windows of the held-out stream, in order: 32,768 tokens
SEEDS = range(1, 6)  # beside the plain run, which has seed 0
LR, HIGH = 3e-3, 9e-3  # the rung's own peak learning rate, and three times as much
FP32 = "eager:precision=fp32"
CPU = torch.device("cpu")


def plan() -> Iterator[tuple[str, str, Change, float]]:
    """(source, level, what is changed, learning rate), for both arms each."""
    yield "plain", "seed 0", Change(), LR
    for seed in SEEDS:
        yield "seed", f"seed {seed}", Change(init=seed, batches=seed), LR
        yield "nudge", f"weight {seed}", Change(nudge=seed), LR
        yield "shuffle", f"order {seed}", Change(shuffle=seed), LR
    yield "plain", "seed 0", Change(), HIGH
    for seed in SEEDS:
        yield "nudge", f"weight {seed}", Change(nudge=seed), HIGH
        yield "seed", f"seed {seed}", Change(init=seed, batches=seed), HIGH
    for seed in (1, 2):
        yield "initialisation", f"seed {seed}", Change(init=seed), HIGH
    for micro in (4, 2, 1):
        yield "micro-batch", f"{micro} windows", Change(micro=micro), LR
    yield "attention", "math", Change(attention="math"), LR
    for choice in ("loss=whole", "optimizer=plain"):
        yield "code path", choice, Change(path=f"{FP32},{choice}"), LR
    yield "code path", "reference", Change(path="reference:precision=fp32"), LR
    for threads in (2, 3):
        yield "threads", str(threads), Change(threads=threads), LR
    for order in (None, 1, 2, 3, 4):
        level = "as planned" if order is None else f"order {order}"
        yield "bf16", level, Change(path="eager", shuffle=order), LR
        yield "TF32, emulated", level, Change(tf32=True, shuffle=order), LR
    for seed in (1, 2, 3, 4):
        yield "initialisation", f"seed {seed}", Change(init=seed), LR
    for seed in (1, 2, 3):
        yield "batches", f"seed {seed}", Change(batches=seed), LR
    yield "again", "another process", Change(), LR


def run_of(rule: str, lr: float = LR) -> Run:
    """One arm of the plain run: fp32, seed 0, everything else as the rung has it."""
    return rr.plan(RUNG, rule, precision="fp32", lr=lr)


def window_losses(model: Model, stream: np.ndarray, path: str, batch: int) -> np.ndarray:
    """Mean loss (nats per token) of each of the first HELD windows in order, by a path."""
    t, backend, kernels, losses = model.config.seq_len, parse_backend(path), model.kernels, []
    model.use(backend.kernels)
    try:
        with evaluate.evaluating(model), backend.forward(CPU):
            for first in range(0, HELD, batch):
                starts = np.arange(first, min(HELD, first + batch)) * t
                x, y = gather(stream, starts, t)
                hidden = model.hidden(x).flatten(0, 1)
                loss = token_losses(hidden, model.head_weight, y.flatten(), model.config.vocab_size)
                losses.append(loss[0].double().view(len(starts), t).mean(1))
    finally:
        model.use(kernels)
    return torch.cat(losses).numpy()


def one(rule: str, change: Change, lr: float, tokens: rr.data.Tokens) -> dict:
    """Train and measure one run."""
    model, losses = trained(run_of(rule, lr), tokens.train, change)
    before = checkpoint.weights_sha256(model)
    held = window_losses(model, tokens.valid, change.path, 8)
    found = {
        "val_loss": float(held.mean()),
        "weights_sha256": before,
        "losses": [float(f"{loss:.9g}") for loss in losses],  # nine digits tell all float32 apart
    }
    if change == Change():  # the same weights, measured otherwise
        ways = {
            "bf16": ("eager", 8),
            "1 window at once": (Change().path, 1),
            "64 windows at once": (Change().path, 64),
        }
        found["windows"] = [float(f"{loss:.9g}") for loss in held]
        found["measured"] = {
            way: float(window_losses(model, tokens.valid, *how).mean())
            for way, how in ways.items()
        }
    return found


def main(out: Path, part: str = "0/1") -> None:
    """Train what is missing of this part; gather where nothing is missing at all."""
    first, of = map(int, part.split("/"))
    out.mkdir(parents=True, exist_ok=True)
    tokens = rr.open_corpus("fables", log=lambda line: None)
    cells = {out / f"{lr} {source} {level} {rule}.json": (source, level, change, lr, rule)
             for source, level, change, lr in plan() for rule in ARMS}  # fmt: skip
    for i, (file, (source, level, change, lr, rule)) in enumerate(cells.items()):
        if i % of != first or file.exists():
            continue
        told = {
            key: value for key, value in asdict(change).items() if value != getattr(Change(), key)
        }
        row = {
            "source": source,
            "level": level,
            "lr": lr,
            "rule": rule,
            "change": told,
            **one(rule, change, lr, tokens),
        }
        io.write_json(file, row)
        print(file.stem, row["val_loss"], row["weights_sha256"][:12], flush=True)
    if not all(file.exists() for file in cells):
        return
    for rule in ARMS:
        rr.train(
            run_of(rule), out / "plain", rr.Request(threads=1, device="cpu"), log=lambda line: None
        )
    rows = ",\n".join(json.dumps(io.read_json(file)) for file in cells)
    told = {rule: run_of(rule).spec() for rule in ARMS}
    provenance = provenance_of_training.provenance(run_of("review"), CPU, 1)
    text = (
        f'{{"held_out_windows": {HELD},\n"specifications": {json.dumps(told)},\n'
        f'"provenance": {json.dumps(provenance)},\n"runs": [\n{rows}\n]}}\n'
    )
    io.write_atomic(Path(__file__).with_name("runs.json"), text.encode())
    print("all runs are there", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
