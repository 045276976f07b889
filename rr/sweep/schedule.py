"""The sweep itself: which cell next, what became of it, and whether it is tried again."""

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..config import RunFailed
from ..model.ladder import group
from ..training.checkpoint import Checkpoints
from ..training.signals import Stop
from .claims import Claim, Claims
from .command import Runner
from .grid import Cell
from .hours import Hours
from .view import View, taken

RETRIES = 3  # of a cell that crashes again without a new checkpoint
TICK = 0.1  # seconds between two looks at our own processes
LOOK = 1.0  # seconds between two looks at what others have done
LEAVE = 75.0  # seconds after which a stopped sweep waits no longer for its processes
SETTLED = ("finished", "diverged", "failed")


class Attempt(Protocol):
    """A cell's process, here or in a cluster."""

    def poll(self) -> int | None: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...


@dataclass
class State:
    """What the sweep knows of a cell.

    status: waiting, elsewhere (another sweep, or a process that still holds the run), running,
    finished, diverged or failed. crashes: in a row without progress; reached: step of the newest
    checkpoint when it last crashed.
    """

    cell: Cell
    status: str = "waiting"
    why: str = ""
    claim: Claim | None = None
    attempt: Attempt | None = None
    crashes: int = 0
    reached: int = 0
    said: int = 0  # bytes in the log before this attempt
    beaten: float = 0.0
    began: float = 0.0  # by the clock of the hours, with so much of the training to do:
    to_do: float = 1.0


class Schedule:
    """Runs cells, in their order, as the engine has room, until each has ended somewhere.

    hours: none is started that would not end within them, and none after it; when they are over,
    those that run are told to save and to stop.
    """

    def __init__(
        self, cells: Sequence[Cell], out: Path, runner: Runner, engine, view: View,
        hours: Hours | None = None, **claims: float,
    ) -> None:  # fmt: skip
        self.states = [State(cell) for cell in cells]
        self.out, self.runner, self.engine, self.view = out, runner, engine, view
        who = f"{socket.gethostname()} pid {os.getpid()}"
        self.claims = Claims(out, who, view.say, **claims)
        self.looked = -LOOK
        self.hours, self.late = hours, False  # late: the next cell would not end in time

    def go(self) -> bool:
        """True when all is settled; False when SIGTERM, Ctrl-C or the hours stop it, all saved."""
        try:
            with Stop() as stop:
                while not stop.requested:
                    self._harvest()
                    self._count_on()
                    if time.monotonic() - self.looked >= LOOK:
                        self._look()
                        self.looked = time.monotonic()
                    if all(state.status in SETTLED for state in self.states):
                        self.view.show(self.states, last=True)
                        return True
                    if self._out_of_time():
                        return False
                    self.view.show(self.states)
                    time.sleep(TICK)
                self.view.say("stopping: every run saves its checkpoint")
                return False
        finally:  # an error of ours, too, leaves no process behind
            self._leave()

    def _out_of_time(self) -> bool:
        if self.hours is None:
            return False
        if self.hours.over:
            self.view.say("the hours are over: every run saves its checkpoint")
            return True
        return self.late and not any(state.attempt for state in self.states)

    # -- cells that run -----------------------------------------------------------------------

    def _harvest(self) -> None:
        """Settle the processes that have ended, or put their cells back into the queue."""
        for state in self.states:
            if state.attempt is None or (code := state.attempt.poll()) is None:
                continue
            state.attempt, self.looked = None, -LOOK  # a slot is free: look at once
            self._settle(state)
            if self.hours and state.status == "finished":
                self.hours.note(state.cell, self.hours.clock() - state.began, state.to_do)
            if state.status not in SETTLED:
                self._crashed(state, code)

    def _crashed(self, state: State, code: int) -> None:
        """The process ended and its cell has not: try again, unless that has no prospect."""
        state.status, name = "waiting", f"{state.cell.id} ({state.cell.name})"
        if state.claim is None or self._busy(state):
            return  # in other hands, which is why it ended
        reached = self._reached(state)
        state.crashes = 0 if reached > state.reached else state.crashes + 1
        state.reached = max(reached, state.reached)
        why = self._last_words(state) if code else "ended without the run's result"
        if code == 2 and self.runner.kind == "direct":  # a refusal: it would be the same again
            self._end(state, "failed", why)
        elif state.crashes > RETRIES:
            self._end(state, "failed", f"{why} ({state.crashes} times without progress)")
        else:
            after = f"checkpoint of step {reached}" if reached else "start"
            self.view.say(f"{name} crashed: {why}; again from its {after}")

    def _settle(self, state: State) -> None:
        """Note how a cell ended, if it has."""
        try:
            ended = self.runner.ended(state.cell)
        except RunFailed as error:
            self._end(state, "failed", str(error))
            return
        if ended:
            self._end(state, ended)

    def _end(self, state: State, status: str, why: str = "") -> None:
        state.status, state.why = status, why
        if state.claim is not None:
            state.claim.release()
            state.claim = None
        if status != "finished":
            told = f": {why}" if why else ""
            self.view.say(f"{state.cell.id} ({state.cell.name}) {status}{told}")

    def _count_on(self) -> None:
        now = time.monotonic()
        for state in self.states:
            if state.claim is not None and now - state.beaten >= self.claims.beat:
                state.beaten = now
                if not state.claim.count_on():  # taken over: its process may end, the lock decides
                    state.claim.release()
                    state.claim = None

    # -- cells that wait ----------------------------------------------------------------------

    def _look(self) -> None:
        """Settle what others have done; start what can be, in order, while there is room."""
        room, self.late = self.engine.room, False
        for state in self.states:
            if state.status in SETTLED or state.attempt is not None:
                continue
            self._settle(state)
            if room < 1 or self.late or state.status in SETTLED:
                continue
            if self.hours and not self._in_time(state, room):
                self.late = True
                continue
            if state.claim is None:
                state.claim, state.beaten = self.claims.take(state.cell.id), time.monotonic()
                if state.claim is None:
                    state.status = "elsewhere"
                    continue
            if self._busy(state):
                state.status = "elsewhere"
                continue
            self._settle(state)  # by an owner or a writer that ended since the look above
            if state.status in SETTLED:
                continue
            log = self._log(state)
            state.said = log.stat().st_size if log.exists() else 0
            env = {"OMP_WAIT_POLICY": "PASSIVE"}  # threads that spin take the others' cores
            if self.hours:
                state.began, state.to_do = self.hours.clock(), self._to_do(state)
            state.attempt = self.engine.start(self.runner.argv(state.cell), log, env)
            state.status, room = "running", room - 1

    def _in_time(self, state: State, room: int) -> bool:
        """Whether a cell ends within the hours, with all that it is to be compared with."""
        held = [s for s in self.states if s.attempt is not None]
        own = [s for s in self.states if s.attempt is None and s.status not in SETTLED
               and group(s.cell.run) == group(state.cell.run)]  # fmt: skip
        now = self.hours.clock()
        return self.hours.admit(
            [(s.cell, self._to_do(s)) for s in own],
            [(s.cell, s.to_do, now - s.began) for s in held],
            room + len(held),
        )

    def _to_do(self, state: State) -> float:
        """The share of a cell's training that is left to do."""
        return 1 - taken(state.cell, self.out) / state.cell.run.recipe.segments[-1].end

    def _busy(self, state: State) -> bool:
        """Whether a process that we did not start, or that outlived its parent, writes the run."""
        try:
            with open(self.out / state.cell.id / "lock", "r+") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # no lock yet, or none to be had here: the run itself will say so
            return False
        return False

    def _reached(self, state: State) -> int:
        steps = Checkpoints(self.out / state.cell.id, state.cell.id).steps()
        return steps[-1] if steps else 0

    def _log(self, state: State) -> Path:
        return self.out / ".logs" / f"{state.cell.id}.log"

    def _last_words(self, state: State) -> str:
        """The line in which the process said why it ended: our own, else its last."""
        with contextlib.suppress(OSError):
            with open(self._log(state), "rb") as file:
                file.seek(state.said)
                lines = file.read().decode(errors="replace").split("\n")
            lines = [line.strip() for line in lines if line.strip()]
            ours = [line for line in lines if line.startswith("rr: ")]
            return (ours or lines or ["killed before it said anything"])[-1].removeprefix("rr: ")
        return "its log cannot be read"

    def _leave(self) -> None:
        """Stop every process, wait until it has saved, and give the claims up."""
        until = time.monotonic() + LEAVE
        for state in self.states:
            if state.attempt is not None:
                state.attempt.stop()
        while any(state.attempt is not None for state in self.states):
            for state in self.states:
                if state.attempt is not None and state.attempt.poll() is not None:
                    state.attempt = None
                elif state.attempt is not None and time.monotonic() > until:
                    state.attempt.kill()
                    state.attempt = None
            self._count_on()
            time.sleep(TICK)
        for state in self.states:
            if state.claim is not None:
                state.claim.release()
                state.claim = None
        self.view.progress.close()
