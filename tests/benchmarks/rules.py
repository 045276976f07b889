"""What a step costs under each rule, over a step of the standard network: time and memory.

    python tests/benchmarks/rules.py --out data/measured/04_field_guide/steps.json

`mini`, not widened, eager in float32, 2 windows at once on one CPU thread. All networks are
in memory, and each step of a rule follows one of the standard network, so that what slows the
machine slows both. Time is measured: the median over the rounds of the ratio of such two steps,
with the least and the most. Memory is predicted (`rr.training.predict`): the peak of a step.
"""

import argparse
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path

import torch

import rr
from rr.residual.table import describe
from rr.training import OptimizerStep, parse_backend, predict
from rrstudy.perf.benchmark import made_by

ROUNDS, BATCH, WARM = 9, 2, 1
BACKEND = parse_backend("eager:precision=fp32")
CPU = torch.device("cpu")


def shape_of(kind: str, name: str) -> rr.ModelConfig:
    arm = {"rule": name} if kind == "residual" else {"rule": "standard", "values": name}
    return replace(rr.plan("mini", **arm).model, d_ff=768, vocab_size=4096)


def stepper(shape: rr.ModelConfig) -> OptimizerStep:
    model = rr.model.initialise(rr.Model(shape, BACKEND.kernels), seed=0)
    recipe = rr.plan("mini", batch=BATCH, precision="fp32").recipe
    return OptimizerStep(model, recipe, BACKEND, CPU)


def seconds(step: OptimizerStep, ids: torch.Tensor) -> float:
    began = time.perf_counter()
    step(ids[:, :-1], ids[:, 1:])
    return time.perf_counter() - began


def pair(plain: OptimizerStep, step: OptimizerStep, ids: torch.Tensor) -> float:
    before = seconds(plain, ids)
    return seconds(step, ids) / before


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    torch.set_num_threads(1)
    BACKEND.set_up(CPU)
    rules = [(row["kind"], row["name"]) for row in describe()]
    shapes = {rule: shape_of(*rule) for rule in rules}
    steps = {rule: stepper(shape) for rule, shape in shapes.items()}
    length = shapes["residual", "standard"].seq_len
    ids = torch.randint(4096, (BATCH, length + 1), generator=torch.Generator().manual_seed(0))
    rounds = []
    for number in range(WARM + ROUNDS):
        plain = steps["residual", "standard"]
        rounds.append({rule: pair(plain, step, ids) for rule, step in steps.items()})
        print(f"round {number + 1} of {WARM + ROUNDS}", flush=True)
    recipe = rr.plan("mini", batch=BATCH).recipe
    memory = {
        rule: predict(shape, BACKEND, BATCH, "cpu", recipe)["step"]
        for rule, shape in shapes.items()
    }
    base = ("residual", "standard")
    rows = []
    for rule in rules:
        ratios = [one[rule] for one in rounds[WARM:]]
        rows.append(
            {
                "kind": rule[0],
                "name": rule[1],
                "time": round(statistics.median(ratios), 3),
                "least": round(min(ratios), 3),
                "most": round(max(ratios), 3),
                "memory": round(memory[rule] / memory[base], 3),
            }
        )
    record = {"made_by": made_by(CPU, 1), "rounds": ROUNDS, "windows": BATCH, "rows": rows}
    out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
