"""Reports of a run and of a folder of runs: documents of their own, for anybody's runs.

`run.ipynb` trains or finds a run and reports it; `folder.ipynb` reads a folder. Every sentence in
them is made in `sentences` from what `run` and `folder` read: about the reader's runs, and about
nothing else. Chapters 9 and 10 teach to read them, with the same functions.
"""

# ruff: noqa: F401  (what this room offers)
from rrstudy.command_line import wrapped
from rrstudy.stats.show import foot

from .folder import STUDY, command, survey
from .run import (
    TIERS,
    Ended,
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
    made_by,
    run_summary,
    run_title,
    run_warnings,
)
from .tables import COST, cost_by_arm, labelled, lacking, points, shown
