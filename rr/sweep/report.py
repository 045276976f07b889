"""What the two report notebooks compute: one run's report (chapter 9) and a folder's (chapter 10).

`run`: the run that a notebook's parameters name, and what is known once it has ended. `folder`:
what a folder of runs holds, what it lacks, and the command that fills it.
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
