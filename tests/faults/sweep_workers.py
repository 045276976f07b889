"""Whole sweeps to be killed: `rr sweep --runner direct` with forked cells, and their killer.

The sweep is the real one: its plan, locks and retries. Only a cell's process is another: it is
forked, like the children of `workers`, where a start of Python and torch would take seconds. Each
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

from workers import PHASES, Announcer, announce

OWN = ("sweep", "claim")  # phases of the sweep's own process
ALL = (*PHASES, *OWN)
MESSAGE = struct.Struct("<I12sB")  # pid, run, phase
SWEEP = "sweep"  # stands for a run where the sweep itself announces a phase
LIMIT = 900.0  # seconds that one sweep may take

_read, _write = os.pipe()
for _end in (_read, _write):
    os.set_blocking(_end, False)
_libc = ctypes.CDLL(None)


def _announcing(run: str):
    """A function that announces phases of this process, which works on `run`."""

    def announce_phase(phase: str) -> None:
        with contextlib.suppress(OSError):  # an orphan has no listener
            os.write(_write, MESSAGE.pack(os.getpid(), run.encode(), ALL.index(phase)))

    return announce_phase


class Forked:
    """What `rrstudy.sweep.process.Process` is, forked."""

    def __init__(self, argv: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        parent, self.code = os.getpid(), None
        self.pid = os.fork()
        if self.pid == 0:
            _run_and_exit(lambda: self._run(argv, log, parent))

    @staticmethod
    def _run(argv: Sequence[str], log: Path, parent: int) -> int:
        from rrstudy import cli

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        _libc.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG, as the real one asks for
        if os.getppid() != parent:
            return 143
        file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.dup2(file, 1)
        os.dup2(file, 2)
        announce(_announcing(log.stem))
        return cli.main(list(argv[2:]))  # after -m rrstudy.cli

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


def _run_and_exit(body) -> None:
    """Run `body` in a child, then exit without the parent's clean-up."""
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
    from rrstudy import cli
    from rrstudy.sweep import local, schedule

    os.dup2(out, 1)
    os.dup2(err, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request.get("clock"):
        _jumping_clock()
    local.Process = Forked
    schedule.TICK, schedule.LOOK = 0.02, 0.1
    phases = Announcer(_announcing(SWEEP), "sweep")
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
class Target:
    """A living process. when: the moment at which it is killed, on the monotonic clock."""

    run: str
    handle: int  # of the process, by which it cannot be taken for another
    phase: str
    when: float | None = None


@dataclass
class Killer:
    """Draws the moment at which each process is killed. kills: how many are still wanted.

    A run's process is killed within `span` seconds of its first step, a quarter of the times
    already of its start; in a save, an evaluation and a result once more. With `own` the sweep's
    process is killed instead: at any time, or while it claims a cell.
    """

    kills: int
    rng: random.Random
    own: bool
    span: float
    living: dict[int, Target] = field(default_factory=dict)
    starts: Counter = field(default_factory=Counter)  # processes, by run
    killed: Counter = field(default_factory=Counter)  # by phase

    def listen(self) -> None:
        """Read all announcements."""
        while True:
            try:
                message = os.read(_read, MESSAGE.size)
            except BlockingIOError:
                return
            pid, run, phase = MESSAGE.unpack(message)
            self._announced(pid, run.rstrip(b"\0").decode(), ALL[phase])

    def _announced(self, pid: int, run: str, phase: str) -> None:
        if pid not in self.living:
            try:
                handle = os.pidfd_open(pid)
            except ProcessLookupError:  # of a sweep before this one
                return
            self.living[pid] = Target(run, handle, phase)
            self.starts[run] += 1
        target = self.living[pid]
        target.phase = phase
        if (run == SWEEP) != self.own or (phase == "step" and target.when is not None):
            return
        likely, within = {
            "start-up": (0.25, self.span),
            "step": (1.0, self.span),
            "save": (0.05, 0.02),
            "evaluation": (0.6, 0.02),
            "result": (0.6, 0.03),
            "sweep": (1.0, 3 * self.span),
            "claim": (0.2, 0.001),
        }[phase]
        if self.rng.random() < likely:
            target.when = time.monotonic() + self.rng.random() * within

    @property
    def wait(self) -> float:
        """Seconds until the next moment, 0.2 at most."""
        moments = [target.when for target in self.living.values() if target.when and self.kills]
        return min([0.2, *(max(0.0, when - time.monotonic()) for when in moments)])

    def strike(self) -> None:
        """Kill those whose moment has come."""
        for pid, target in list(self.living.items()):
            due = target.when is not None and target.when <= time.monotonic()
            if select.select([target.handle], [], [], 0)[0]:  # it ended by itself
                self.forget(pid)
            elif due and self.kills:
                signal.pidfd_send_signal(target.handle, signal.SIGKILL)
                select.select([target.handle], [], [], 10)
                self.listen()  # its last announcement says where it was killed
                self.killed[target.phase] += 1
                self.kills -= 1
                self.forget(pid)

    def forget(self, pid: int) -> None:
        os.close(self.living.pop(pid).handle)


def serve(request: dict) -> dict:
    """One sweep from its start to its end, or its kill.

    request: argv; kills, of cells, or, if `own`, at most one, of the sweep; seed; span: seconds
    within which an attempt's moment lies; clock: whether the wall clock jumps.
    """
    killer = Killer(
        request.get("kills", 0),
        random.Random(request.get("seed", 0)),
        request.get("own", False),
        request.get("span", 0.3),
    )
    with contextlib.suppress(BlockingIOError):  # announcements of the last one's orphans
        while os.read(_read, 1 << 16):
            pass
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        pid = os.fork()
        if pid == 0:
            _run_and_exit(lambda: _sweep(request, out.fileno(), err.fileno()))
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
        killer.forget(left)
    del killer.starts[SWEEP]
    return {
        "code": code,
        "out": texts[0],
        "err": texts[1],
        "kills": killer.killed,
        "starts": killer.starts,
    }
