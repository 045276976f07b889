"""Reports of a run and of a folder of runs: documents of their own, for anybody's runs.

`run.ipynb` trains or finds a run and reports it; `folder.ipynb` reads a folder. Every sentence in
them is made in `sentences` from what `run` and `folder` read: about the reader's runs, and about
nothing else. Chapters 9 and 10 teach to read them, with the same functions.
"""

from rrstudy.command_line import options, sample_command, words, wrapped
from rrstudy.stats.show import foot

from .folder import STUDY, Survey, command, survey
from .run import (
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
from .sentences import (
    folder_summary,
    folder_title,
    folder_warnings,
    listed,
    made_by,
    run_summary,
    run_title,
    run_warnings,
)
from .tables import COST, cost_by_arm, labelled, lacking, points, shown

__all__ = [
    "COST", "Ended", "Look", "STUDY", "Survey", "TIERS", "bigram", "chosen", "command",
    "cost", "cost_by_arm", "folder_summary", "folder_title", "folder_warnings", "foot",
    "gates", "labelled", "lacking", "listed", "look", "made_by", "options", "outcome", "points",
    "provenance", "read", "run_summary", "run_title", "run_warnings", "sample_command",
    "shown", "survey", "text", "train", "train_in_parts", "words", "wrapped",
]  # fmt: skip
