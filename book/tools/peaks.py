"""Count the memory of the study's own runs, for `rr plan` to read: python book/tools/peaks.py"""

import hashlib
import json
from dataclasses import replace

from rr.config import Run
from rr.perf import budget
from rr.perf.gpus import gpu
from rr.perf.rates import precision
from rr.sweep import cells
from rr.training.backend import parse_backend
from rr.training.memory import stacked


def study() -> dict[str, Run]:
    """`rung rule` -> a run of each arm; seeds need the same memory."""
    plan = cells({"protocol": ["paper"], "seed": [0]}, say=print)
    return {f"{cell.run.rung} {cell.run.rule}": cell.run for cell in plan}


def counted(run: Run) -> tuple[str, int]:
    """The key of a run in the file, and the bytes of its peak."""
    path = replace(parse_backend(budget.PATH), precision=precision(run, gpu("H100")))
    key = budget.peak_key(run, path, run.recipe.batch)
    bytes_ = stacked(run, path, run.recipe.batch, "cuda")
    return hashlib.sha256(key.encode()).hexdigest(), bytes_


if __name__ == "__main__":
    found = dict(map(counted, study().values()))
    budget.PEAKS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
