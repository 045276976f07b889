"""A sweep: many runs on one machine or several, resumable after any interruption.

    grid        every combination of the options, each a run, once, in an order
    notebook    the notebook that papermill runs for a cell, and its checked parameters
    command     the command that runs a cell: papermill, rr train or torchrun
    leases      which of several sweeps on one folder works on which cell
    process     a cell's own process
    local       engine: some processes at a time on this machine
    ray_engine  engine: tasks of a Ray cluster
    view        one line of progress over all cells
    hours       which cells still end within a time limit
    schedule    which cell runs next, how it ended, whether it is tried again

All state is on disk: a cell with a `result.json` is done, one with checkpoints resumes from them. A
sweep that is killed, started twice, or started on another machine needs nothing else.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..config import Interrupted, RRError, RunFailed, nearest, positive
from ..model.ladder import group
from ..training.backend import parse_backend
from ..training.command_line import typed
from ..training.device import DEVICES, pick_device, set_threads
from ..training.distributed import STRATEGIES
from ..training.loggers import check_loggers, named
from ..training.save_interval import check_interval
from .command import RUNNERS, Runner
from .grid import AXES, ORDERS, Cell, cells, place
from .hours import Hours
from .notebook import check_installed
from .schedule import SETTLED, Schedule
from .view import View

ENGINES = ("local", "ray")

__all__ = [
    "AXES",
    "ENGINES",
    "ORDERS",
    "RUNNERS",
    "Cell",
    "Hours",
    "Runner",
    "cells",
    "check",
    "commands",
    "group",
    "place",
    "sweep",
    "typed",
]


def commands(plan: Sequence[Cell], runner: Runner) -> list[list[str]]:
    """The command of each cell, for another scheduler; nothing is created.

    Example:
        >>> from pathlib import Path
        >>> from rr.sweep import Runner, cells, commands
        >>> plan = cells({"rung": ["nano"], "rule": ["review", "standard"]}, say=print)
        >>> len(commands(plan, Runner("direct", Path("runs"), {})))
        2
    """
    return [runner.command(cell) for cell in plan]


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

    runner: "papermill" or "direct". engine: "local" or "ray". jobs: cells at a time. processes: per
    cell, by torchrun, one GPU each where there are any. machine: threads, device, path,
    micro_batch, save_every, parallel and log, as `rr train` takes them. hours: cells that would not
    end within them are not started. resume_command: of this sweep, for messages.

    Raises RRError before anything is started; RunFailed, when all cells have ended, naming those
    that failed or diverged; Interrupted when stopped or out of hours, the checkpoints saved.

    Example:
        >>> import tempfile
        >>> from rr.sweep import cells, sweep
        >>> tiny = "nano:d_model=16,n_layer=1,n_head=1,d_ff=32,seq_len=16"
        >>> short = {"steps": [2], "batch": [1], "eval_batches": [1]}
        >>> plan = cells({"rung": [tiny], **short}, say=print)
        >>> with tempfile.TemporaryDirectory() as out:
        ...     done = sweep(plan, out, runner="direct", jobs=1, log=lambda line: None)
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
    check(machine, engine, ray, here=engine == "local")
    view = View(out, log)
    if engine == "local":
        from .local import Local

        workers = Local(jobs, processes, machine.get("threads"), machine.get("device"))
    else:
        from .ray_engine import RayEngine

        workers = RayEngine(address, gpu_fraction, cpus_per_cell, jobs, processes, view.say)
        # Ray's nodes see the folder by its full path.
        out = launcher.out = view.out = out.resolve()
    if workers.threads is not None:
        launcher.machine.setdefault("threads", workers.threads)
    try:
        schedule = Schedule(plan, out, launcher, workers, view, hours)
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


def _stopped(schedule: Schedule, resume_command: str) -> str:
    """What is done, what is not, and how to resume."""
    states = schedule.states
    done = sum(state.status in ("finished", "diverged") for state in states)
    words = f"{done} of {len(states)} cells done; checkpoints are saved in {schedule.out}"
    if schedule.hours is not None:
        left = "; ".join(state.cell.name for state in states if state.status not in SETTLED)
        words += f"; not done within the hours: {left}"
    return f"{words}; resume with: {resume_command}"


def check(machine: Mapping[str, Any], engine: str, ray: Mapping[str, object], here: bool) -> None:
    """Raise RRError for options that the engine does not take, or that every cell would refuse.

    machine: as `Runner` holds it. ray: options of the engine ray alone. here: the cells run on this
    machine, whose device has to exist.

    Example:
        >>> from rr.sweep import check
        >>> check({"threads": 1, "device": "cpu"}, "local", {}, here=True)  # nothing to object to
    """
    if engine not in ENGINES:
        raise RRError(f"unknown engine {engine!r}: {nearest(engine, ENGINES)}")
    for name, value in ray.items():
        if engine == "local" and value is not None:
            option = name.replace("_", "-")
            raise RRError(f"--{option} {value} needs --engine ray, got --engine local")
    check_interval(machine.get("save_every"))
    device = machine.get("device")
    if device is not None and device not in DEVICES:
        raise RRError(f"unknown device {device!r}: {nearest(device, DEVICES)}")
    if here:
        pick_device(device)
    if "micro_batch" in machine:
        positive("micro-batch", machine["micro_batch"])
    if machine.get("parallel", "ddp") not in STRATEGIES:
        known = nearest(machine["parallel"], STRATEGIES)
        raise RRError(f"unknown parallel strategy {machine['parallel']!r}: {known}")
    if "path" in machine:
        parse_backend(machine["path"])
    check_loggers(named(machine.get("log", "")), here)
    if "threads" in machine:
        before = torch.get_num_threads()
        set_threads(machine["threads"])
        torch.set_num_threads(before)
