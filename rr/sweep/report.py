"""Reports: of one run (chapter 9) and of a folder of runs (chapter 10).

`report_run`: the run that a notebook's parameters name, and its results. `report_folder`: the
results in a folder, the missing runs, and the command that trains them.
"""

from ..training.command_line import options, sample_command, words
from .report_folder import COST, Survey, command, cost_by_arm, points, shown, survey
from .report_run import (
    TIERS,
    Ended,
    Look,
    chosen,
    cost,
    gates,
    look,
    outcome,
    provenance,
    read,
    train,
)

__all__ = [
    "COST", "TIERS", "Ended", "Look", "Survey", "chosen", "command", "cost", "cost_by_arm",
    "gates", "look", "options", "outcome", "points", "provenance", "read", "sample_command",
    "shown", "survey", "train", "words",
]  # fmt: skip
