"""The command that runs a cell: papermill on a notebook, or `rr train` directly."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rr.errors import RRError, RunFailed, nearest, positive
from rrstudy.command_line import typed

from . import notebook
from .grid import Cell

RUNNERS = ("papermill", "direct")


class Runner:
    """The command of each cell, and whether the cell is done.

    kind: "papermill", a notebook per cell, or "direct", `rr train`. out: the folder of runs.
    machine: the fields of `Request` that were given. processes: per cell, by torchrun.
    notebook_path: the notebook that papermill runs; None: the report of a run. Raises RRError for
    combinations that cannot run.

    Example:
        >>> from pathlib import Path
        >>> from rrstudy.sweep import Runner, cells
        >>> plan = cells({"rung": ["nano"], "seed": [0]}, say=print)
        >>> Runner("direct", Path("runs"), {"threads": 1}).command(plan[0])[:4]
        ['rr', 'train', '--rung', 'nano']
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
        positive("processes", processes)
        if kind == "direct":
            if notebook_path:
                raise RRError(
                    f"--notebook {notebook_path} needs --runner papermill, got --runner direct"
                )
            return
        if processes > 1 or "parallel" in self.machine:
            raise RRError("a notebook runs in one process: several per run need --runner direct")
        self.notebook = notebook.find(notebook_path)
        self.known, self.engine = notebook.parameters(self.notebook), notebook.engine()

    def command(self, cell: Cell) -> list[str]:
        """The command that a person would type, `papermill …`, `rr train …` or `torchrun …`."""
        if self.kind == "papermill":
            chosen = notebook.arguments(cell, self.out, self.machine, self._shown, self.known)
            report = self.out / cell.id / notebook.REPORT
            return notebook.papermill(self._shown, report, chosen, self.engine)
        options = {**cell.words, **self.machine, "out": self.out}
        words = typed({k: value if value is True else [value] for k, value in options.items()})
        start = ["rr"]
        if self.processes > 1:
            start = [
                "torchrun",
                "--standalone",
                "--nproc-per-node",
                str(self.processes),
                "-m",
                "rr.cli",
            ]
        return [*start, "train", *words]

    def argv(self, cell: Cell) -> list[str]:
        """The same as arguments of `python`, for a process that the sweep starts."""
        first, *words = self.command(cell)
        if first == "papermill":
            (self.out / cell.id).mkdir(parents=True, exist_ok=True)  # papermill does not
            return ["-m", "papermill", "--no-progress-bar", *words]
        return ["-m", {"rr": "rr.cli", "torchrun": "torch.distributed.run"}[first], *words]

    def ended(self, cell: Cell) -> str | None:
        """How a cell ended, "finished" or "diverged"; None while there is something left to do.

        A finished run whose report was not executed completely is not done; a diverged one is never
        tried again. Raises RunFailed where its result is corrupt.
        """
        from rr.training.run_folder import finished  # which takes torch, and a dry run does without

        result = finished(self.out / cell.id)
        if result is None:
            return None
        if result["status"] not in ("finished", "diverged"):
            path = self.out / cell.id / "result.json"
            raise RunFailed(f"{path} is corrupt (status {result['status']!r})")
        if self.kind == "papermill" and result["status"] == "finished":
            if not notebook.complete(self.out / cell.id / notebook.REPORT, cell.id):
                return None
        return result["status"]

    @property
    def _shown(self) -> Path:
        """The notebook, relative to the working folder if it is inside."""
        working_folder = Path.cwd()
        inside = self.notebook.is_relative_to(working_folder)
        return self.notebook.relative_to(working_folder) if inside else self.notebook


def commands(plan: Sequence[Cell], runner: Runner) -> list[list[str]]:
    """The command of each cell, for another scheduler; nothing is created.

    Example:
        >>> from pathlib import Path
        >>> from rrstudy.sweep import Runner, cells, commands
        >>> options = {"rung": ["nano"], "rule": ["review", "standard"]}
        >>> plan = cells(options, say=print)
        >>> len(commands(plan, Runner("direct", Path("runs"), {})))
        2
    """
    return [runner.command(cell) for cell in plan]
