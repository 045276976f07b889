"""Scheduling: which cell runs next, how it ended, and whether it is tried again."""

import contextlib
import errno
import os
import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from filelock import FileLock

from rr.errors import RRError, RunFailed
from rr.io import MIB, try_lock
from rr.training.checkpoint import Checkpoints
from rr.training.progress import Stop
from rrstudy.perf.ladder import group

from .command import Runner
from .grid import Cell
from .hours import Hours
from .process import GRACE
from .view import View, taken

RETRIES = 3  # of a cell that crashes without having saved a new checkpoint
TICK = 0.1  # seconds between two checks of our own processes
LOOK = 1.0  # seconds between two checks of what other sweeps have done
LEAVE = GRACE + 15  # seconds that a stopped sweep waits for its processes to save
WITHOUT = (
    "ended well, but not with this run's result: its rule or its text has changed since the sweep "
    "was planned; start the sweep again"
)
SETTLED = ("finished", "diverged", "failed")


class Attempt(Protocol):
    """A cell's process, here or in a cluster."""

    def poll(self) -> int | None: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...


@dataclass
class State:
    """The state of a cell.

    status: waiting, elsewhere (another sweep, or a process that still holds the run), running,
    finished, diverged or failed. crashes: in a row without progress; reached: step of the newest
    checkpoint when it last crashed.
    """

    cell: Cell
    status: str = "waiting"
    why: str = ""
    claim: FileLock | None = None  # held while this sweep works on the cell
    attempt: Attempt | None = None
    crashes: int = 0
    reached: int = 0
    logged: int = 0  # bytes in the log before this attempt
    began: float = 0.0  # when this attempt began, by the clock of the hours
    left: float = 1.0  # share of the training that was left then


class Schedule:
    """Runs cells in their order, as the engine has room, until each has ended somewhere.

    hours: no cell is started that would not end within them, and none after it; when they are over,
    the running cells save and stop.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        out: Path,
        runner: Runner,
        engine,
        view: View,
        hours: Hours | None = None,
    ) -> None:
        self.states = [State(cell) for cell in cells]
        self.out, self.runner, self.engine, self.view = out, runner, engine, view
        self.claims = out / ".claims"
        try:
            self.claims.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = error.strerror
            raise RRError(f"cannot write to {out} ({why}): choose a writable --out") from None
        self.looked = -LOOK
        self.hours = hours
        self.late = False  # whether the next cell would not end in time
        self.failures: list[str] = []  # why cells failed since one last finished

    def run(self) -> bool:
        """True when all cells have ended; False when a signal or the hours stopped it.

        Raises RunFailed where the disk is full, and where two cells in a row failed alike: the
        others would, too.
        """
        try:
            with Stop() as stop:
                while not stop.requested:
                    self._harvest()
                    if time.monotonic() - self.looked >= LOOK:
                        self._look()
                        self.looked = time.monotonic()
                    self._stop_if_alike()
                    if all(state.status in SETTLED for state in self.states):
                        self.view.show(self.states, last=True)
                        return True
                    if self._out_of_time():
                        return False
                    self.view.show(self.states)
                    time.sleep(TICK)
                self.view.say("stopping: each run saves a checkpoint")
                return False
        finally:  # no process is left behind, even after an error of ours
            self._leave()

    def _stop_if_alike(self) -> None:
        """Raise RunFailed where two cells in a row failed for one reason, numbers apart."""
        alike = [re.sub(r"\b[0-9a-f]{12}\b|[\d.,]+", "", why) for why in self.failures]
        left = sum(state.status not in SETTLED for state in self.states)
        if left and len(alike) > len(set(alike)):
            raise RunFailed(
                f"two runs failed alike, so {left} more were not tried: {self.failures[-1]}: mend "
                "this, then start the sweep again"
            )

    def _out_of_time(self) -> bool:
        if self.hours is None:
            return False
        if self.hours.over:
            self.view.say("the hours are over: each run saves a checkpoint")
            return True
        return self.late and not any(state.attempt for state in self.states)

    # -- cells that run -----------------------------------------------------------------------

    def _harvest(self) -> None:
        """Settle the processes that have ended, or put their cells back into the queue."""
        for state in self.states:
            code = None if state.attempt is None else state.attempt.poll()
            if code is None:
                continue
            state.attempt = None
            self.looked = -LOOK  # a slot is free: fill it at once
            self._settle(state)
            if self.hours and state.status == "finished":
                self.hours.note(state.cell, self.hours.clock() - state.began, state.left)
            if state.status not in SETTLED:
                self._crashed(state, code)

    def _crashed(self, state: State, code: int) -> None:
        """The process ended and its cell has not: try again, unless that cannot help."""
        state.status = "waiting"
        if state.claim is None or self.busy(state):
            return  # another process has the run, which is why this one ended
        reached = self._reached(state)
        state.crashes = 0 if reached > state.reached else state.crashes + 1
        state.reached = max(reached, state.reached)
        why = self._last_line(state) if code else WITHOUT
        if os.strerror(errno.ENOSPC) in why or shutil.disk_usage(self.out).free < MIB:
            raise RunFailed(
                f"the disk of {self.out} is full, at {state.cell.id} ({state.cell.name}): make "
                "space, then the same command resumes the sweep"
            )
        refused = code == 2 if self.runner.kind == "direct" else why.startswith("RRError: ")
        if refused or code == 0:  # it would be the same again
            self._end(state, "failed", why)
        elif state.crashes > RETRIES:
            self._end(state, "failed", f"{why} ({state.crashes} times without progress)")
        else:
            start = f"step {reached}" if reached else "the start"
            name = f"{state.cell.id} ({state.cell.name})"
            self.view.say(f"{name} crashed: {why}; resuming from {start}")

    def _settle(self, state: State) -> None:
        """Record how a cell ended, if it has."""
        try:
            ended = self.runner.ended(state.cell)
        except RunFailed as error:
            folder, failures = self.out / state.cell.id, self.failures
            self._end(state, "failed", f"{error}: move {folder} away to train it again")
            self.failures = failures  # a file that is corrupt says nothing of the next run
            return
        if ended:
            self._end(state, ended)

    def _end(self, state: State, status: str, why: str = "") -> None:
        state.status, state.why = status, why
        self._release(state)
        self.failures = [*self.failures, why] if status == "failed" else []
        if status != "finished":
            reason = f": {why}" if why else ""
            self.view.say(f"{state.cell.id} ({state.cell.name}) {status}{reason}")

    def _claim(self, state: State) -> bool:
        """Whether this sweep works on the cell: of several sweeps on one folder, one does."""
        if state.claim is None:
            state.claim = try_lock(self.claims / state.cell.id)
        return state.claim is not None

    def _release(self, state: State) -> None:
        if state.claim is not None:
            with contextlib.suppress(OSError):
                Path(state.claim.lock_file).unlink()
            state.claim.release()
            state.claim = None

    # -- cells that wait ----------------------------------------------------------------------

    def _look(self) -> None:
        """Settle what other sweeps have done; start cells, in order, while slots are free."""
        self.engine.reap()
        free = self.engine.free_slots
        self.late = False
        for state in self.states:
            if state.status in SETTLED or state.attempt is not None:
                continue
            self._settle(state)
            if free < 1 or self.late or state.status in SETTLED:
                continue
            if self.hours and not self._in_time(self.hours, state, free):
                self.late = True
                continue
            if not self._claim(state) or self.busy(state):
                state.status = "elsewhere"
                continue
            self._settle(state)  # an owner or a writer may have ended since the check above
            if state.status in SETTLED:
                continue
            log = self._log(state)
            state.logged = log.stat().st_size if log.exists() else 0
            env = {
                "OMP_WAIT_POLICY": "PASSIVE",  # threads that spin take the others' cores
            }
            if self.hours:
                state.began = self.hours.clock()
                state.left = self._left(state)
            state.attempt = self.engine.start(self.runner.argv(state.cell), log, env)
            state.status = "running"
            free -= 1

    def _in_time(self, hours: Hours, state: State, free: int) -> bool:
        """Whether a cell ends within the hours, with all cells that it is to be compared with."""
        running = [s for s in self.states if s.attempt is not None]
        members = [
            s
            for s in self.states
            if s.attempt is None
            and s.status not in SETTLED
            and group(s.cell.run) == group(state.cell.run)
        ]
        now = hours.clock()
        return hours.admit(
            [(s.cell, self._left(s)) for s in members],
            [(s.cell, s.left, now - s.began) for s in running],
            free + len(running),
        )

    def _left(self, state: State) -> float:
        """The share of a cell's training that is left."""
        return 1 - taken(state.cell, self.out) / state.cell.run.recipe.segments[-1].end

    def busy(self, state: State) -> bool:
        """Whether a process that we did not start, or that outlived its parent, writes the run."""
        path = self.out / state.cell.id / "lock"
        if not path.exists():
            return False
        lock = try_lock(path)
        if lock is not None:
            lock.release()
        return lock is None

    def _reached(self, state: State) -> int:
        steps = Checkpoints(self.out / state.cell.id, state.cell.id).steps()
        return steps[-1] if steps else 0

    def _log(self, state: State) -> Path:
        return self.out / ".logs" / f"{state.cell.id}.log"

    def _last_line(self, state: State) -> str:
        """The line in which the process reported why it ended: that of rr, else its last."""
        with contextlib.suppress(OSError):
            with open(self._log(state), "rb") as file:
                file.seek(state.logged)
                lines = file.read().decode(errors="replace").split("\n")
            lines = [line.strip() for line in lines if line.strip()]
            ours = [line for line in lines if line.startswith("rr: ")]
            return (ours or lines or ["killed without a message"])[-1].removeprefix("rr: ")
        return "its log cannot be read"

    def _say_lost(self, state: State) -> None:
        self.view.say(f"{state.cell.id} ({state.cell.name}) did not save in time, and was ended")

    def _leave(self) -> None:
        """Stop every process, wait until it has saved, and release the claims."""
        until = time.monotonic() + LEAVE
        for state in self.states:
            if state.attempt is not None:
                state.attempt.stop()
        while any(state.attempt is not None for state in self.states):
            for state in self.states:
                if state.attempt is not None and (code := state.attempt.poll()) is not None:
                    if code == -9:  # killed, by its own process here
                        self._say_lost(state)
                    state.attempt = None
                elif state.attempt is not None and time.monotonic() > until:
                    state.attempt.kill()
                    self._say_lost(state)
                    state.attempt = None
            time.sleep(TICK)
        for state in self.states:
            self._release(state)
        self.view.progress.close()
