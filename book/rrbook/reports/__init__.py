"""Reports of a run and of a folder of runs: documents of their own, for anybody's runs.

`run.ipynb` trains or finds a run and reports it; `folder.ipynb` reads a folder. Every sentence in
them is made here from what was read: about the reader's runs, and about nothing else.
"""

from .words import (
    folder_summary,
    folder_title,
    folder_warnings,
    listed,
    run_summary,
    run_title,
    run_warnings,
)

__all__ = ["folder_summary", "folder_title", "folder_warnings", "listed", "run_summary",
           "run_title", "run_warnings"]  # fmt: skip
