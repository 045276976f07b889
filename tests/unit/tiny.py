"""A run that takes a second, trained in silence, and its result."""

import json
from pathlib import Path

from rr.config import Run
from rr.training import trainer

TINY = "nano:n_layer=2,d_model=16,n_head=2,seq_len=16"


def train(run: Run, out: Path, **options) -> Path:
    return trainer.train(run, out, threads=1, log=lambda line: None, **options)


def result_of(folder: Path) -> dict:
    return json.loads((folder / "result.json").read_text())
