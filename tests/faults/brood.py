"""Whole sweeps to be killed: `rr sweep --runner direct` with forked cells, and their killer.

The sweep is the real one: its plan, locks and retries. Only a cell's process is another: it
is forked, like the nursery's children, where a start of Python and torch would take seconds. Each
process announces its phases on one pipe, with its pid and its run; the process that forked the
sweep reads them and sends SIGKILL at moments drawn from a seeded generator.
"""

import contextlib
import ctypes
import os
import random
import select
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nursery import PHASES, Announcer, announce

OWN = ("sweep", "claim")  # phases of the sweep's own process
ALL = (*PHASES, *OWN)
SAID = struct.Struct("<I12sB")  # pid, run, phase
SWEEP = "sweep"  # what stands for a run where the sweep itself speaks
BARREN = 3  # kills in a row without a new checkpoint that the sweep forgives
LIMIT = 900.0  # seconds that one sweep may take

_read, _write = os.pipe()
for _end in (_read, _write):
    os.set_blocking(_end, False)
_libc = ctypes.CDLL(None)


def _tell(run: str):
    """Announces the phases of this process, which works on `run`; an orphan has no listener."""

    def tell(phase: str) -> None:
        with contextlib.suppress(OSError):
            os.write(_write, SAID.pack(os.getpid(), run.encode(), ALL.index(phase)))

    return tell


class Forked:
    """What `rr.sweep.process.Process` is, forked."""

    def __init__(self, argv: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        parent, self.code = os.getpid(), None
        self.pid = os.fork()
        if self.pid == 0:
            _end_as(lambda: self._be(argv, log, parent))

    @staticmethod
    def _be(argv: Sequence[str], log: Path, parent: int) -> int:
        from rr import cli

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        _libc.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG, as the real one asks for
        if os.getppid() != parent:
            return 143
        file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.dup2(file, 1)
        os.dup2(file, 2)
        announce(_tell(log.stem))
        return cli.main(list(argv[2:]))  # after -m rr.cli

    def poll(self) -> int | None:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code

    def stop(self) -> None:
        if self.code is None:
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)


def _end_as(body) -> None:
    """Be a child: do `body`, then leave without what the parent had planned for its own end."""
    code = 99
    try:
        code = body()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _sweep(request: dict, out: int, err: int) -> int:
    from rr import cli
    from rr.sweep import local, schedule

    os.dup2(out, 1)
    os.dup2(err, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request.get("clock"):
        _jumping_clock()
    local.Process = Forked
    schedule.TICK, schedule.LOOK = 0.02, 0.1
    phases = Announcer(_tell(SWEEP), "sweep")
    phases.wrap(schedule.Schedule, "_claim", "claim")
    phases.wrap(schedule.Schedule, "_release", "claim")
    return cli.main(request["argv"])


def _jumping_clock() -> None:
    """The wall clock jumps an hour to and fro at each look, for this process and its children."""
    import datetime

    real, looks = time.time, [0]

    def jumping() -> float:
        looks[0] += 1
        return real() + 3600 * (looks[0] % 3 - 1)

    class Jumping(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls.fromtimestamp(jumping(), tz)

    time.time, time.time_ns = jumping, lambda: int(jumping() * 1e9)
    datetime.datetime = Jumping


# -- the killer ---------------------------------------------------------------------------------


@dataclass
class Prey:
    """A living process. when: its moment, on the monotonic clock; saved: since it was born."""

    run: str
    handle: int
    phase: str
    when: float | None = None
    saved: bool = False
    spared: bool = False


@dataclass
class Killer:
    """Draws the moment at which each process dies. kills: how many are still wanted.

    A cell dies after its run's first step: a quarter of the moments are counted from the start of
    an attempt, the others from its first step, and in a save, an evaluation and a result once more.
    A run has its ration of kills before its result, so that some are left for that. With `own`, the
    sweep's process is what dies: at any time, or while it claims a cell.
    """

    kills: int
    rng: random.Random
    own: bool
    span: float
    ration: float
    living: dict[int, Prey] = field(default_factory=dict)
    barren: Counter = field(default_factory=Counter)
    stepped: set = field(default_factory=set)
    starts: Counter = field(default_factory=Counter)
    died: Counter = field(default_factory=Counter)
    had: Counter = field(default_factory=Counter)

    def listen(self) -> None:
        """Take in all that was said."""
        while True:
            try:
                told = os.read(_read, SAID.size)
            except BlockingIOError:
                return
            pid, run, phase = SAID.unpack(told)
            self._heard(pid, run.rstrip(b"\0").decode(), ALL[phase])

    def _heard(self, pid: int, run: str, phase: str) -> None:
        prey = self.living.get(pid)
        if prey is None:
            try:
                handle = os.pidfd_open(pid)
            except ProcessLookupError:  # of a sweep before this one
                return
            prey = self.living[pid] = Prey(run, handle, phase)
            self.starts[run] += 1
            prey.spared = self.barren[run] >= BARREN
            if run in self.stepped and self.rng.random() < 0.25:
                self._aim(prey, self.span)
        if prey.phase == "save" != phase:
            prey.saved, prey.spared = True, False
            self.barren[run] = 0
        prey.phase = phase
        if phase == "step":
            self.stepped.add(run)
            if prey.when is None:
                self._aim(prey, self.span)
        sudden = {
            "save": (0.05, 0.02),
            "evaluation": (0.6, 0.02),
            "result": (0.6, 0.03),
            "claim": (0.2, 0.001),
        }  # phase -> how likely, and within how many seconds
        if phase in sudden and self.rng.random() < sudden[phase][0]:
            self._aim(prey, sudden[phase][1])
        if run == SWEEP and prey.when is None:
            self._aim(prey, 3 * self.span)

    def _aim(self, prey: Prey, within: float) -> None:
        if (prey.run == SWEEP) == self.own:
            prey.when = time.monotonic() + self.rng.random() * within

    @property
    def wait(self) -> float:
        """Seconds until the next moment."""
        if not self.kills:
            return 0.2
        moments = [prey.when for prey in self.living.values() if prey.when and not prey.spared]
        return min([0.2, *(max(0.0, when - time.monotonic()) for when in moments)])

    def strike(self) -> None:
        """Kill those whose moment has come."""
        for pid, prey in list(self.living.items()):
            due = prey.when is not None and prey.when <= time.monotonic() and not prey.spared
            if select.select([prey.handle], [], [], 0)[0]:  # it ended by itself
                self._bury(pid)
            elif due and prey.phase != "result" and self.had[prey.run] >= self.ration:
                prey.when = None
            elif due and self.kills:
                signal.pidfd_send_signal(prey.handle, signal.SIGKILL)
                select.select([prey.handle], [], [], 10)
                self.listen()  # its last words say where it died
                self.died[prey.phase] += 1
                self.had[prey.run] += 1
                self.kills -= 1
                self.barren[prey.run] += not prey.saved
                self._bury(pid)

    def _bury(self, pid: int) -> None:
        os.close(self.living.pop(pid).handle)


def serve(request: dict) -> dict:
    """One sweep from its start to its end, or its kill.

    request: argv; kills, of cells, or, if `own`, at most one, of the sweep; seed; span: seconds
    within which an attempt's moment lies; ration: kills of a run before its result; clock: whether
    the wall clock jumps.
    """
    killer = Killer(
        request.get("kills", 0),
        random.Random(request.get("seed", 0)),
        request.get("own", False),
        request.get("span", 0.3),
        request.get("ration", float("inf")),
    )
    with contextlib.suppress(BlockingIOError):  # what orphans of the last one said
        while os.read(_read, 1 << 16):
            pass
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        pid = os.fork()
        if pid == 0:
            _end_as(lambda: _sweep(request, out.fileno(), err.fileno()))
        handle, born = os.pidfd_open(pid), time.monotonic()
        while not select.select([handle], [], [], 0)[0]:
            select.select([_read, handle], [], [], killer.wait)
            killer.listen()
            killer.strike()
            if time.monotonic() - born > LIMIT:
                os.kill(pid, signal.SIGKILL)
        os.close(handle)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        killer.listen()
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    for left in list(killer.living):
        killer._bury(left)
    del killer.starts[SWEEP]
    return {
        "code": code,
        "out": texts[0],
        "err": texts[1],
        "kills": killer.died,
        "starts": killer.starts,
    }
