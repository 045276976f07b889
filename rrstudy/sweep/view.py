"""Progress of a sweep: what runs, what is done, what failed, time left."""

import json
import time
from collections.abc import Callable
from pathlib import Path

from rr.specs import Run
from rr.training.progress import Progress

from .grid import Cell

PLAIN = 30.0  # seconds between two lines where stderr is no terminal


class View:
    """Shows the states of a sweep. Time left: FLOPs left over FLOPs per second so far."""

    def __init__(self, out: Path, log: Callable[[str], None] | None) -> None:
        self.out, self.progress = out, Progress(log, plain=PLAIN)
        self.say = self.progress.say
        self.begun: tuple[float, float] | None = None  # when, and FLOPs done by then

    def show(self, states: list, last: bool = False) -> None:
        """Print a line, unless the last was printed a moment ago."""
        if not (self.progress.due() or last):
            return
        done = sum(state.cell.flops * self._share(state) for state in states)
        open_ = sum(state.cell.flops for state in states if state.status != "failed")
        now = time.monotonic()
        self.begun = self.begun or (now, done)
        start, done_at_start = self.begun
        spent, gained = now - start, done - done_at_start
        count = {
            word: sum(state.status == word for state in states)
            for word in ("running", "finished", "diverged", "failed")
        }
        words = [f"{count['finished'] + count['diverged']} of {len(states)} done"]
        words += [f"{count[word]} {word}" for word in ("diverged", "failed") if count[word]]
        running = [
            f"{state.cell.name} {100 * self._share(state):.0f} %"
            for state in states
            if state.status == "running"
        ]
        names = f" ({'; '.join(running)})" if running else ""
        words.append(f"{len(running)} running{names}")
        elsewhere = sum(state.status == "elsewhere" for state in states)
        if elsewhere:
            words.append(f"{elsewhere} run by another process")
        if gained > 0 and open_ > done:
            words.append(f"{_duration(spent * (open_ - done) / gained)} left")
        self.progress.move("sweep: " + ", ".join(words), last)

    def _share(self, state) -> float:
        """The part of a cell's training that is done."""
        if state.status in ("finished", "diverged", "failed"):
            return float(state.status != "failed")
        return taken(state.cell, self.out) / state.cell.run.recipe.segments[-1].end


def taken(cell: Cell, out: Path) -> int:
    """Steps that a run has logged, those of decay branches included."""
    try:
        with open(out / cell.id / "metrics.jsonl", "rb") as file:
            file.seek(max(0, file.seek(0, 2) - 4096))
            line = json.loads(file.read().splitlines()[-1])
        return _position(cell.run, line["step"], line.get("budget"))
    except (OSError, ValueError, LookupError, TypeError):
        return 0  # not started, or a line that is being written


def _position(run: Run, step: int, branch: int | None) -> int:
    segments = run.recipe.segments
    for segment in segments:
        own = segment.budget if segment is not segments[-1] else None
        if own == branch and segment.start < step <= segment.stop:
            return segment.taken_before + step - segment.start
    return 0


def _duration(seconds: float) -> str:
    minutes = int(seconds // 60)
    hours = f"{minutes // 60} h " if minutes >= 60 else ""
    return f"{hours}{minutes % 60} min" if minutes else f"{seconds:.0f} s"
