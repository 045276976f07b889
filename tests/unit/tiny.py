"""A run that takes a second, trained in silence, and its result."""

import json
from pathlib import Path

from rr.options import Request
from rr.specs import Run
from rr.training import trainer

TINY = "nano:n_layer=2,d_model=16,n_head=2,seq_len=16"


def train(run: Run, out: Path, *, stop_after: int | None = None, **machine) -> Path:
    request = Request(**{"threads": 1} | machine)
    return trainer.train(run, out, request, log=lambda line: None, stop_after=stop_after)


def result_of(folder: Path) -> dict:
    return json.loads((folder / "result.json").read_text())


def broken_off(run: Run, out: Path, cut_off) -> tuple[dict, dict]:
    """Results of the run left alone, and of the run cut off before its batch 4 and started anew."""

    def result(folder):
        return result_of(train(run, folder, save_every=1e-9))

    whole = result(out / "whole")
    with cut_off(4):
        result(out / "broken")
    return whole, result(out / "broken")
