"""Runs `rr …` in children that are meant to die: forked from a process that has torch in memory.

A start of Python and torch takes seconds, a fork milliseconds, so that hundreds of kills fit into
minutes. `Workers` starts this file as a process of its own and talks to it in lines of JSON; for
each request it forks a child that runs `rrstudy.cli.main(argv)`, its stdout and stderr in pipes.
The child announces on a pipe which phase it is in, by wrapped functions of rr: nothing in rr knows.
Whole sweeps, whose cells are forked as well, are in `sweep_workers`.
"""

import builtins
import json
import os
import random
import resource
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROTOCOLS = ("clean", "paper")
RULES, SEEDS = ("standard", "review"), (0, 1, 2, 3)  # of a sweep of eight
PHASES = ("start-up", "step", "save", "evaluation", "result")
LIMIT = 600.0  # seconds that one child may take


@dataclass
class Outcome:
    """code: exit code, −signal if killed; phase: the last one announced; phases: all, with times.

    The times, and `ended`, are seconds since the fork.
    """

    code: int
    phase: str
    phases: list[tuple[str, float]]
    ended: float
    out: str
    err: str

    def durations(self) -> dict[str, float]:
        """The longest stay in each phase, seconds."""
        longest = dict.fromkeys(PHASES, 0.0)
        ends = [at for _, at in self.phases[1:]] + [self.ended]
        for (phase, begun), end in zip(self.phases, ends, strict=True):
            longest[phase] = max(longest[phase], end - begun)
        return longest


def started(words: list, cache: Path, **pipes) -> subprocess.Popen:
    """A Python process of its own, in the checkout, with that cache."""
    env = os.environ | {"RR_CACHE": str(cache), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *map(str, words)]
    return subprocess.Popen(command, env=env, cwd=ROOT, text=True, **pipes)


class Workers:
    """A process that forks children: `rr(argv)` runs one to its end, or to its kill."""

    def __init__(self, cache: Path) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = started([__file__], cache, **pipes)

    def rr(self, *argv: object, **options: object) -> Outcome:
        """One child.

        at: (phase, n, s): signal `number` (SIGKILL) is sent s seconds into the n-th such phase, by
        the child to itself where s is zero.
        crash_at: the child kills itself before its n-th call that changes a folder or syncs a file.
        uid: the child's user; file_limit: bytes that one file may have (a full disk, to the child).
        fill: (disk, name, n): the disk is filled when the n-th file called `name` on it is opened
        to be written.
        """
        return Outcome(**self._ask({"argv": list(map(str, argv)), **options}))

    def sweep(self, *argv: str, **options: object) -> dict:
        """One sweep, as `sweep_workers.serve` describes it; `options` are of its request."""
        return self._ask({"argv": list(map(str, argv)), "sweep": True, **options})

    def _ask(self, request: dict) -> dict:
        self.process.stdin.write(json.dumps(request, default=str) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        """End the process and wait for it."""
        self.process.stdin.close()
        self.process.wait()


def moment(rng: random.Random, phase: str, longest: dict[str, float]) -> tuple[str, int, float]:
    """A random time to kill within `phase`, given how long each phase lasts at the longest."""
    most = {"start-up": 1, "step": 15, "save": 2, "evaluation": 2, "result": 1}
    return phase, rng.randint(1, most[phase]), rng.random() * longest[phase]


def outcome(folder: Path) -> tuple[dict, list[dict]]:
    """What must not depend on interruptions: the result and the curve, without their times."""
    result = json.loads((folder / "result.json").read_text())
    curve = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    del result["seal"], result["curve_sha256"]  # the times are in them
    for row in [result, *curve]:
        del row["seconds"]
    return result, curve


def only(out: Path) -> Path:
    """The one run in a folder of runs."""
    (folder,) = out.iterdir()
    return folder


# -- inside the process that forks --------------------------------------------------------------


class Announcer:
    """Calls `report(phase)` at each phase that begins, with `first` now."""

    def __init__(self, report: Callable[[str], None], first: str) -> None:
        self.report = report
        self.enter(first)

    def enter(self, phase: str) -> None:
        self.now = phase
        self.report(phase)

    def wrap(self, owner: object, name: str, phase: str, stays: bool = False) -> None:
        """`owner.name` is the phase, until it returns, or, if it `stays`, until the next."""
        real = getattr(owner, name)

        def wrapped(*args, **kwargs):
            before = self.now
            self.enter(phase)
            try:
                return real(*args, **kwargs)
            finally:
                if not stays:
                    self.enter(before)

        setattr(owner, name, wrapped)


def announce(report: Callable[[str], None]) -> None:
    """Announce the phases of a run."""
    from rr.training import checkpoint, evaluate, trainer

    phases = Announcer(report, "start-up")
    phases.wrap(trainer, "batch_starts", "step", stays=True)
    phases.wrap(evaluate.Examiner, "held_out", "evaluation")
    phases.wrap(evaluate, "result", "result", stays=True)
    phases.wrap(checkpoint.Checkpoints, "save", "save")


def _crash(at: int) -> None:
    """Kill this process before its `at`-th durable change of the file system."""
    left = [at]

    def wrap(name: str) -> None:
        real = getattr(os, name)

        def wrapped(*args, **kwargs):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        setattr(os, name, wrapped)

    for name in ("replace", "fsync", "mkdir", "rmdir", "unlink"):
        wrap(name)


def fill_up(disk: Path) -> None:
    """Leave no free byte on `disk`."""
    handle = os.open(disk / "filler", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for piece in (1 << 16, 1 << 12, 1):
        try:
            while True:
                os.write(handle, bytes(piece))
        except OSError:
            pass
    os.close(handle)


def _fill(disk: str, name: str, n: int) -> None:
    """Fill the disk when the n-th file of that name on it is opened to be written."""
    left = [n]

    def meets(path: object, writing: bool) -> None:
        full = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
        file = os.path.basename(full).removeprefix(".").removesuffix(".aside")
        if writing and full.startswith(disk) and file == name:
            left[0] -= 1
            if left[0] == 0:
                fill_up(Path(disk))

    def wrap(owner: object, name: str, writes: Callable[..., bool]) -> None:
        real = getattr(owner, name)

        def wrapped(path, *args, **kwargs):
            meets(path, writes(*args, **kwargs))
            return real(path, *args, **kwargs)

        setattr(owner, name, wrapped)

    wrap(builtins, "open", lambda mode="r", *args, **kwargs: mode[:1] in "wax")
    wrap(os, "open", lambda flags, *args, **kwargs: bool(flags & os.O_CREAT))


def _child(request: dict, pipe: int, out: int, err: int) -> int:
    from rrstudy import cli

    os.dup2(out, 1)
    os.dup2(err, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if "file_limit" in request:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_limit"],) * 2)
    if "uid" in request:
        os.setuid(request["uid"])
    entered: Counter[str] = Counter()

    def report(phase: str) -> None:
        os.write(pipe, bytes([PHASES.index(phase)]))
        entered[phase] += 1
        if request.get("at") == [phase, entered[phase], 0.0]:  # from outside it may come too late
            os.kill(os.getpid(), request.get("number", signal.SIGKILL))

    announce(report)
    if "fill" in request:
        _fill(*request["fill"])
    if "crash_at" in request:
        _crash(request["crash_at"])
    code = cli.main(request["argv"])
    sys.stdout.flush()
    return code


def _serve(request: dict) -> dict:
    phase, out, err = (os.pipe() for _ in range(3))
    pid = os.fork()
    if pid == 0:
        code = 99  # of a child that ends in an exception: no traceback is ever expected
        try:
            code = _child(request, phase[1], out[1], err[1])
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    for _, write in (phase, out, err):
        os.close(write)
    begun = time.monotonic()
    at, number = request.get("at"), request.get("number", signal.SIGKILL)
    phases, out, err = _watch(pid, phase[0], out[0], err[0], at, number)
    return {
        "code": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]),
        "phases": phases,
        "ended": time.monotonic() - begun,
        "phase": phases[-1][0] if phases else "",
        "out": out,
        "err": err,
    }


def _watch(
    pid: int, pipe: int, out: int, err: int, at: tuple | None, number: int
) -> tuple[list, str, str]:
    """Read what the child prints and announces until it ends; send the signal at its moment."""
    begun = time.monotonic()
    phases, when, texts = [], None, {out: b"", err: b""}
    reading = [pipe, out, err]
    while reading:
        now = time.monotonic()
        if when is not None and now >= when:
            os.kill(pid, number)
            when, at = None, None
        if now - begun > LIMIT:
            os.kill(pid, signal.SIGKILL)
        for end in select.select(reading, [], [], 0.5 if when is None else max(0, when - now))[0]:
            data = os.read(end, 1 if end == pipe else 1 << 16)
            if not data:
                reading.remove(end)
                os.close(end)
            elif end != pipe:
                texts[end] += data
            else:
                phases.append((PHASES[data[0]], time.monotonic() - begun))
                entered = sum(phase == phases[-1][0] for phase, _ in phases)
                if at and at[2] and when is None and [phases[-1][0], entered] == at[:2]:
                    when = time.monotonic() + at[2]
    return phases, *(text.decode(errors="replace") for text in texts.values())


def _main() -> None:
    import sweep_workers
    import torch._dynamo  # noqa: F401  (an optimiser imports it: three seconds)

    import rr.data.corpus
    import rr.training.trainer  # noqa: F401  (all of it in memory before the first fork)

    for line in sys.stdin:
        request = json.loads(line)
        sweep = request.pop("sweep", False)
        answer = sweep_workers.serve(request) if sweep else _serve(request)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _main()
