"""A sweep from its plan to its last cell."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rr.errors import Interrupted, RRError, RunFailed, nearest
from rr.options import Request, options_of
from rr.specs import Run
from rr.training.context import check_request
from rr.training.device import pick_device
from rrstudy.perf import doctor

from ..perf.budget import disk_of, staying
from .command import Runner, commands
from .grid import Cell
from .hours import Hours
from .notebook import check_installed
from .schedule import SETTLED, Schedule
from .view import View

ENGINES = ("local", "ray")


def check_engine(engine: str, ray: Mapping[str, object]) -> None:
    """Raise RRError for an unknown engine, and for options of ray (None: not given) without it."""
    if engine not in ENGINES:
        raise RRError(f"unknown engine {engine!r}: {nearest(engine, ENGINES)}")
    for name, value in ray.items():
        if engine == "local" and value is not None:
            option = name.replace("_", "-")
            raise RRError(f"--{option} {value} needs --engine ray, got --engine local")


def sweep(
    plan: Sequence[Cell],
    out: str | Path,
    *,
    runner: str = "papermill",
    engine: str = "local",
    jobs: int | None = None,
    processes: int = 1,
    machine: Mapping[str, Any] | None = None,
    notebook: str | None = None,
    address: str | None = None,
    gpu_fraction: float | None = None,
    cpus_per_cell: int | None = None,
    hours: Hours | None = None,
    resume_command: str = "the same command",
    log: Callable[[str], None] | None = None,
) -> list[Cell]:
    """Run every cell of `plan` in `out/<id>` that is not done, in order; returns the plan.

    plan: as `cells()` makes it. runner: "papermill", a notebook per cell, which reports its run, or
    "direct", `rr train`. engine: "local", this machine, or "ray", a cluster. jobs: cells at a time;
    None: one per GPU, else one; with ray as many as the cluster has room for. processes: per cell,
    by torchrun, one GPU each where there are any. machine: threads, device, backend, micro_batch,
    save_every, parallel and charts, as `rr train` takes them. notebook: path of the notebook that
    papermill runs; None: the report of a run. address: of the Ray cluster; None: the one that this
    machine is part of. gpu_fraction: GPUs per cell, with ray; below 1 several cells share one;
    None: one per process where the cluster has any. cpus_per_cell: cores per cell, with ray; None:
    one per process. hours: cells that would not end within them are not started. resume_command: of
    this sweep, for messages. log: receives every line of progress; None prints them.

    Raises RRError before anything is started; RunFailed, when all cells have ended, naming those
    that failed or diverged; Interrupted when stopped or out of hours, the checkpoints saved.

    Example:
        >>> import tempfile
        >>> from rrstudy.sweep import cells, sweep
        >>> tiny = "nano:d_model=16,n_layer=1,n_head=1,d_ff=32,seq_len=16"
        >>> short = {"steps": [2], "batch": [1], "eval_batches": [1]}
        >>> plan = cells({"rung": [tiny], **short}, say=print)
        >>> with tempfile.TemporaryDirectory() as out:
        ...     done = sweep(
        ...         plan, out, runner="direct", jobs=1, log=lambda line: None
        ...     )
        >>> len(done)
        1
    """
    out = Path(out)
    machine = {name: value for name, value in (machine or {}).items() if value is not None}
    launcher = Runner(runner, out, machine, processes, notebook)
    if runner == "papermill":
        check_installed()
    commands(plan, launcher)  # raises for what the notebook does not take
    ray = {"address": address, "gpu_fraction": gpu_fraction, "cpus_per_cell": cpus_per_cell}
    check_engine(engine, ray)
    for name in machine:
        if name not in (known := options_of(Request)):
            raise RRError(f"unknown option {name!r} of machine: {nearest(name, known)}")
    request = Request(**machine)
    check_request(request, here=engine == "local")
    view = View(out, log)
    if engine == "local":
        from .local import Local

        workers = Local(jobs, processes, machine.get("threads"), machine.get("device"))
    else:
        from .ray_engine import RayEngine

        workers = RayEngine(
            address,
            gpu_fraction,
            cpus_per_cell,
            jobs,
            processes,
            view.say,
            device=machine.get("device"),
        )
        # Ray's nodes see the folder by its full path.
        out = launcher.out = view.out = out.resolve()
    if workers.threads is not None:
        launcher.machine.setdefault("threads", workers.threads)
    try:
        left = [cell for cell in plan if not _has_ended(launcher, cell)]
        if left and engine == "local" and pick_device(machine.get("device")).type == "cuda":
            _examine([cell.run for cell in left], out, machine, view.say)
        disk = _room_on_disk(left, out, workers.free_slots, staying(request))
        schedule = Schedule(plan, out, launcher, workers, view, hours)
        view.say(disk)
        if not schedule.run():
            raise Interrupted(_stopped(schedule, resume_command))
    finally:
        workers.close()
    unfinished = [state for state in schedule.states if state.status != "finished"]
    if unfinished:
        names = "; ".join(
            f"{state.cell.id} ({state.cell.name}) {state.status}"
            + (f": {state.why}" if state.why else "")
            for state in unfinished
        )
        raise RunFailed(f"{len(unfinished)} of {len(plan)} cells did not finish: {names}")
    return list(plan)


def _has_ended(launcher: Runner, cell: Cell) -> bool:
    """Whether nothing is left of a cell; the schedule names a corrupt result and goes on."""
    try:
        return launcher.ended(cell) is not None
    except RunFailed:
        return True


def _examine(runs: Sequence[Run], out: Path, machine: Mapping, say: Callable[[str], None]) -> None:
    """What `rr doctor` finds on this machine, said; RRError where the runs would fail."""
    say("checking this machine (rr doctor)")
    checks = doctor.examine(runs, out, machine.get("device"), Request(**machine), say=say)
    for mark, name, words in doctor.rows(checks):
        say(f"{mark} {name}: {words}")
    if wrong := [check.name for check in checks if check.stops]:
        raise RRError(f"nothing was started, because of: {', '.join(wrong)}; see rr doctor's lines")


def _room_on_disk(left: Sequence[Cell], out: Path, at_once: int, stay: int) -> str:
    """What the cells that are left need of the disk of `out`; RRError where that is not free.

    What they have there already, from an earlier sweep, they need not find free.
    """
    runs = [cell.run for cell in left]
    need = max(0, disk_of(runs, at_once, stay) - doctor.on_disk(runs, out))
    place = next(path for path in (out.resolve(), *out.resolve().parents) if path.exists())
    free = shutil.disk_usage(place).free
    words = f"disk: {len(left)} runs need {need / 1e9:.2g} GB at most, {free / 1e9:.2g} GB are free"
    if need > free:
        raise RRError(f"{words} for {out}: make space, choose another --out, or plan fewer runs")
    return words


def _stopped(schedule: Schedule, resume_command: str) -> str:
    """What is done, what is not, and how to resume."""
    states = schedule.states
    done = sum(state.status in ("finished", "diverged") for state in states)
    words = f"{done} of {len(states)} cells done; checkpoints are saved in {schedule.out}"
    if schedule.hours is not None:
        left = "; ".join(state.cell.name for state in states if state.status not in SETTLED)
        words += f"; not done within the hours: {left}"
    return f"{words}; resume with: {resume_command}"
