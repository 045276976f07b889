"""A sweep: a plan of runs, carried out on one machine or many, losing nothing.

    grid        every combination of the options, each a run, once, in an order
    notebook    the notebook that papermill runs a cell by, and its parameters, checked
    command     the command that runs a cell: papermill, rr train or torchrun
    claims      which of several sweeps on one folder works on which cell
    process     a cell's own process
    local       engine: some processes at a time on this machine
    ray_engine  engine: tasks of a Ray cluster
    view        one line of progress over all cells
    hours       which cells still end within the hours that a sweep may take
    schedule    which cell next, and what became of it

What is on disk is the state: `result.json` says that a cell is done, its checkpoints where it goes
on. A sweep that is killed, or started twice, or on another machine, needs nothing else.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

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
    """The command of each cell, for a scheduler other than ours; nothing is made."""
    return [runner.command(cell) for cell in plan]


def sweep(
    plan: Sequence[Cell],
    out: str | Path,
    *,
    runner: str = "papermill",
    engine: str = "local",
    jobs: int | None = None,
    processes: int = 1,
    machine: Mapping[str, object] | None = None,
    notebook: str | None = None,
    address: str | None = None,
    gpu_fraction: float | None = None,
    cpus_per_cell: int | None = None,
    hours: Hours | None = None,
    again: str = "the same command",
    log: Callable[[str], None] | None = None,
) -> list[Cell]:
    """Run every cell of `plan` in `out/<id>` that is not done, in order; returns the plan.

    runner: "papermill" or "direct". engine: "local" or "ray". jobs: cells at a time. processes: of
    each cell, through torchrun, a GPU each where there are some. machine: threads, device, path,
    micro_batch, save_every, parallel and log, as `rr train` takes them. hours: cells that would not
    end within them are not started. again: the command that resumes the sweep, for messages.

    Raises RRError before anything is started; RunFailed, when all is settled, naming the cells that
    failed or diverged; Interrupted when told to stop or out of hours, the checkpoints saved.
    """
    out = Path(out)
    machine = {name: value for name, value in (machine or {}).items() if value is not None}
    how = Runner(runner, out, machine, processes, notebook)
    if runner == "papermill":
        check_installed()
    commands(plan, how)  # refuses what the notebook does not take
    asked = {"address": address, "gpu-fraction": gpu_fraction, "cpus-per-cell": cpus_per_cell}
    check(machine, engine, asked, here=engine == "local")
    view = View(out, log)
    if engine == "local":
        from .local import Local

        where = Local(jobs, processes, machine.get("threads"), machine.get("device"))
    else:
        from .ray_engine import RayEngine

        where = RayEngine(address, gpu_fraction, cpus_per_cell, jobs, processes, view.say)
        # Ray's nodes see the folder by its full path.
        out = how.out = view.out = out.resolve()
    if where.threads is not None:
        how.machine.setdefault("threads", where.threads)
    try:
        schedule = Schedule(plan, out, how, where, view, hours)
        if not schedule.go():
            raise Interrupted(_stopped(schedule, again))
    finally:
        where.close()
    lost = [state for state in schedule.states if state.status != "finished"]
    if lost:
        named = "; ".join(
            f"{state.cell.id} ({state.cell.name}) {state.status}"
            + (f": {state.why}" if state.why else "")
            for state in lost
        )
        raise RunFailed(f"{len(lost)} of {len(plan)} cells did not finish: {named}")
    return list(plan)


def _stopped(schedule: Schedule, again: str) -> str:
    """What is done, what is not, and how to resume."""
    states = schedule.states
    done = sum(state.status in ("finished", "diverged") for state in states)
    words = f"{done} of {len(states)} cells done; checkpoints are saved in {schedule.out}"
    if schedule.hours is not None:
        left = "; ".join(state.cell.name for state in states if state.status not in SETTLED)
        words += f"; not done within the hours: {left}"
    return f"{words}; resume with: {again}"


def check(
    machine: Mapping[str, object], engine: str, asked: Mapping[str, object], here: bool
) -> None:
    """RRError for options that the engine does not take, or that every cell would refuse.

    machine: as `Runner` holds it. asked: what ray alone takes. here: on this machine, whose device
    has to be there.
    """
    if engine not in ENGINES:
        raise RRError(f"unknown engine {engine!r}: {nearest(engine, ENGINES)}")
    for name, value in asked.items():
        if engine == "local" and value is not None:
            raise RRError(f"{name} {value} beside --engine local: --engine ray is accepted")
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
        raise RRError(f"unknown way to go parallel {machine['parallel']!r}: {known}")
    if "path" in machine:
        parse_backend(machine["path"])
    check_loggers(named(machine.get("log", "")), here)
    if "threads" in machine:
        before = torch.get_num_threads()
        set_threads(machine["threads"])
        torch.set_num_threads(before)
