"""A sweep: many runs on one machine or several, resumable after any interruption.

A cell is one run of the plan. `cells()` makes the plan, `sweep()` runs it. All state is on disk: a
cell with a `result.json` is done (with papermill, once its report is executed, too), one with
checkpoints resumes from them. A sweep that is killed, started twice, or started on
another machine needs nothing else.

The modules:

    grid        every combination of the options, each a run, once, in an order
    notebook    the notebook that papermill runs for a cell, and its checked parameters
    command     the command that runs a cell: papermill, rr train or torchrun
    process     a cell's own process
    local       engine: some processes at a time on this machine
    ray_engine  engine: tasks of a Ray cluster
    view        one line of progress over all cells
    hours       which cells still end within a time limit
    schedule    which cell runs next, how it ended, whether it is tried again
    start       all of these together: `sweep()`

Example:
    >>> from rrstudy.sweep import cells
    >>> plan = cells({"rule": ["standard", "review"], "seed": [0, 1]}, say=print)
    >>> len(plan)  # sweep(plan, "runs") trains them
    4
"""

from rr import lazy_names

_MODULES = {
    "Cell": "grid",
    "Hours": "hours",
    "Runner": "command",
    "cells": "grid",
    "commands": "command",
    "sweep": "start",
}
__all__ = [*_MODULES]
__getattr__, __dir__ = lazy_names(__name__, _MODULES, __all__)
