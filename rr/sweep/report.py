"""Reports: of one run (chapter 9) and of a folder of runs (chapter 10).

`report_run`: the run that a notebook's parameters name, and its results. `report_folder`: the
results in a folder, the missing runs, and the command that trains them.
"""

from ..training.command_line import options, sample_command, words, wrapped
from .report_folder import COST, STUDY, Survey, command, cost_by_arm, points, shown, survey
from .report_run import (
    TIERS,
    Ended,
    Look,
    bigram,
    chosen,
    cost,
    gates,
    look,
    outcome,
    provenance,
    read,
    text,
    train,
    train_in_parts,
)

__all__ = [
    "COST", "STUDY", "TIERS", "Ended", "Look", "Survey", "bigram", "chosen", "command", "cost",
    "cost_by_arm", "gates", "look", "options", "outcome", "points", "provenance", "read",
    "sample_command", "shown", "survey", "text", "train", "train_in_parts", "words", "wrapped",
]  # fmt: skip
