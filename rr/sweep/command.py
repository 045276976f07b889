"""How a cell is run: by papermill, as a notebook, or directly, as `rr train`."""

from collections.abc import Mapping
from pathlib import Path

from ..config import RRError, RunFailed, nearest
from ..training.command_line import typed
from ..training.run_folder import finished
from . import notebook
from .grid import Cell

RUNNERS = ("papermill", "direct")


class Runner:
    """Says for each cell which command runs it, and whether it is done.

    machine: options of `rr train` that leave the id alone (threads, device, path, micro_batch,
    save_every, parallel, log), those that were given. processes: of each cell, through torchrun.
    """

    def __init__(
        self,
        kind: str,
        out: Path,
        machine: Mapping[str, object],
        processes: int = 1,
        notebook_path: str | None = None,
    ) -> None:
        if kind not in RUNNERS:
            raise RRError(f"unknown runner {kind!r}: {nearest(kind, RUNNERS)}")
        self.kind, self.out, self.processes = kind, out, processes
        self.machine = {name: value for name, value in machine.items() if value is not None}
        if processes < 1:
            raise RRError(f"processes is {processes}: a whole number of at least 1 is accepted")
        if kind == "direct":
            if notebook_path:
                raise RRError(f"notebook {notebook_path} beside --runner direct: without one")
            return
        if processes > 1 or "parallel" in self.machine:
            raise RRError("a kernel is one process: several a cell need --runner direct")
        self.notebook = notebook.find(notebook_path)
        self.known, self.engine = notebook.parameters(self.notebook), notebook.engine()

    def command(self, cell: Cell) -> list[str]:
        """The command that a person would type, `papermill …`, `rr train …` or `torchrun …`."""
        if self.kind == "papermill":
            chosen = notebook.told(cell, self.out, self.machine, self._shown, self.known)
            report = self.out / cell.id / notebook.REPORT
            return notebook.papermill(self._shown, report, chosen, self.engine)
        told = {**cell.words, **self.machine, "out": self.out}
        words = typed({name: value if value is True else [value] for name, value in told.items()})
        start = ["rr"]
        if self.processes > 1:
            start = ["torchrun", "--standalone", "--nproc-per-node", str(self.processes),
                     "-m", "rr.cli"]  # fmt: skip
        return [*start, "train", *words]

    def argv(self, cell: Cell) -> list[str]:
        """The same for a process of ours, after the name of Python."""
        first, *words = self.command(cell)
        if first == "papermill":
            (self.out / cell.id).mkdir(parents=True, exist_ok=True)  # papermill makes no folders
            return ["-m", "papermill", "--no-progress-bar", *words]
        return ["-m", {"rr": "rr.cli", "torchrun": "torch.distributed.run"}[first], *words]

    def ended(self, cell: Cell) -> str | None:
        """How a cell ended, "finished" or "diverged"; None while there is something left to do.

        RunFailed where its result is damaged. A finished run whose report was not executed to its
        end has that left to do; a diverged one is never tried again.
        """
        result = finished(self.out / cell.id)
        if result is None:
            return None
        if result["status"] not in ("finished", "diverged"):
            path = self.out / cell.id / "result.json"
            raise RunFailed(f"{path} is damaged and is not believed: status {result['status']!r}")
        if self.kind == "papermill" and result["status"] == "finished":
            if not notebook.complete(self.out / cell.id / notebook.REPORT):
                return None
        return result["status"]

    @property
    def _shown(self) -> Path:
        """The notebook as seen from here, which is where the commands are run."""
        here = Path.cwd()
        return (
            self.notebook.relative_to(here)
            if self.notebook.is_relative_to(here)
            else (self.notebook)
        )
