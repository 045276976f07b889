"""A compiled step with the gradient of the head's weight as it is computed, and as it was.

    python tests/benchmarks/head_gradient.py --out data/measured/08_make_it_fast/head_gradient.json

`rr.ops.cross_entropy.turned_product` against `plain_product`, in turns, in seconds of the processor
on one thread; every repeat is kept. GPT-2's vocabulary, 8 windows, one step.
"""

import argparse
import sys
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch

import rr
from rr import io
from rr.ops import cross_entropy
from rr.perf.benchmark import made_by
from rr.training import OptimizerStep, parse_backend
from rr.training.compile_choice import COMPILED
from rr.training.device import prepare


def compared(rung: str, rule: str, repeats: int) -> dict:
    """Seconds of a step, either way."""
    run, cpu = rr.plan(rung, rule, corpus="tinystories"), torch.device("cpu")
    prepare(cpu, 1)
    model = rr.model.initialise(rr.Model(run.model), 0).train()
    step = OptimizerStep(model, run.recipe, parse_backend(COMPILED), cpu, 8, precision="bf16")
    source_of_ids, shape = torch.Generator().manual_seed(0), (8, run.model.seq_len + 1)
    ids = torch.randint(run.model.vocab_size, shape, generator=source_of_ids)
    seconds: dict[str, list[float]] = {"turned": [], "plain": []}
    for repeat in range(-2, repeats):
        for way in sorted(seconds, reverse=bool(repeat % 2)):
            cross_entropy.turns = lambda hidden, way=way: way == "turned"
            began = time.process_time()
            step(ids[:, :-1], ids[:, 1:])
            if repeat >= 0:  # the first steps compile and allocate
                seconds[way].append(time.process_time() - began)
    ratios = [p / t for p, t in zip(seconds["plain"], seconds["turned"], strict=True)]
    return {"rung": rung, "rule": rule, "path": COMPILED, "tokens": 8 * run.model.seq_len,
            "seconds": seconds, "plain_over_turned": ratios}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rungs", nargs="+", default=["nano", "mini", "60M"])
    parser.add_argument("--rules", nargs="+", default=["review", "standard"])
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    kept: dict = {"made_by": made_by(torch.device("cpu"), 1), "rows": []}
    for rung in args.rungs:
        for rule in args.rules:
            kept["rows"].append(row := compared(rung, rule, args.repeats))
            io.write_json(args.out, kept)
            took = row["plain_over_turned"]
            print(f"{rung} {rule}: {median(took):.3f} ({min(took):.3f}-{max(took):.3f})")


if __name__ == "__main__":
    main()
