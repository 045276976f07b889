"""Chapter 17's lab: a real `rr train`, a real signal, and what the run has lost by it."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import ipywidgets as widgets

from rr.errors import RRError
from rr.io import read_sealed
from rr.training.checkpoint import Checkpoints

from .. import figures
from .lab import Drawn, Lab

SIGNALS = {"SIGTERM": signal.SIGTERM, "SIGKILL": signal.SIGKILL}


@dataclass(frozen=True)
class Cut:
    """One process of a run: its exit code, steps behind it when it ended, steps in its newest
    checkpoint."""

    code: int
    reached: int
    saved: int

    @property
    def lost(self) -> int:
        """Steps that have to be done again."""
        return self.reached - self.saved


def process(argv: list[str], out: str | Path) -> subprocess.Popen:
    """`rr train argv --out out`, in a process of its own, on one thread unless argv says more."""
    command = [sys.executable, "-m", "rr.cli", "train", "--threads", "1", *argv, "--out", str(out)]
    return subprocess.Popen(
        command,
        env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def cut_off(argv: list[str], out: str | Path, step: int, number: int) -> Cut:
    """Start or resume the one run in `out`; send it signal `number` once `step` steps are recorded.

    At least one of them by this process. The run must record every step (up to 399 steps). Raises
    RRError if it ends before.
    """
    step = max(step, _recorded(Path(out)) + 1)  # a GPU records several steps at once
    child = process(argv, out)
    while _recorded(Path(out)) < step:
        if child.poll() is not None:
            raise RRError(f"the run ended before step {step}: choose an earlier step")
        time.sleep(0.005)
    child.send_signal(number)
    child.wait()
    (folder,) = (path.parent for path in Path(out).glob("*/run.json"))
    steps = Checkpoints(folder, folder.name).steps()
    return Cut(child.returncode, _recorded(Path(out)), steps[-1] if steps else 0)


def _recorded(out: Path) -> int:
    """Steps that the run in `out` has written down; a line that is being written does not count."""
    return sum(path.read_text().count('"loss"') for path in out.glob("*/metrics.jsonl"))


def final_weights(argv: list[str], out: str | Path) -> str:
    """The fingerprint of the run's weights once it has been taken to its end."""
    if process(argv, out).wait():
        raise RRError("the run did not end well: rr train with the same words says why")
    (result,) = (read_sealed(path) for path in Path(out).glob("*/result.json"))
    return result["weights_sha256"]


def lab_cut(argv: list[str], steps: int, undisturbed: str) -> Lab:
    """Lab: a run of `steps` steps (`rr train argv`) is cut off and taken up again.

    undisturbed: the fingerprint of its weights when nothing happens. Two processes a move, about
    ten seconds on one core.
    """

    def draw(signal: str, step: int, every: float) -> Drawn:
        words = [*argv, "--save-every", str(every)]
        with tempfile.TemporaryDirectory() as out:
            cut = cut_off(words, out, step, SIGNALS[signal])
            same = final_weights(words, out) == undisturbed
        figure, ax = figures.canvas(height=2.2)
        figures.attempts(ax, cut.reached, cut.saved, steps)
        verdict = "are" if same else "are NOT"
        return figure, (
            f"{signal} at step {cut.reached}: exit code {cut.code}. The newest checkpoint was of "
            f"step {cut.saved}, so {cut.lost} steps were done twice. The weights after {steps} "
            f"steps {verdict} those of the run that nobody disturbed."
        )

    controls = {
        "signal": widgets.Dropdown(options=list(SIGNALS), value="SIGKILL", description="signal"),
        "step": widgets.IntSlider(steps // 2, 5, steps - 20, 5, description="sent at step"),
        "every": widgets.FloatSlider(
            value=0.5, min=0.1, max=5, step=0.1, description="seconds between checkpoints"
        ),
    }
    lead = (
        "Each move starts a real run in a process of its own, sends it the signal, and takes it up "
        "again. Find a kill that destroys nothing, and one that destroys all."
    )
    return Lab("cut", controls, draw, lead, grid={"signal": list(SIGNALS)})
