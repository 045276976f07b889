"""The engine `ray`: cells on a Ray cluster, a GPU or a share of one for each.

A cell is a Ray task that runs the cell's process on its node and returns the exit code. When a node
is lost, Ray starts the task again elsewhere, and the run resumes from its checkpoint: the folder of
runs is on storage that every node shares, and `rr` is installed on every node.
"""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rr.errors import RRError, install
from rr.training.device import GPU_SHARE

from .process import Process

SMALLEST = 0.0001  # of a GPU, in which Ray counts
ASK = 5.0  # seconds between two queries of the cluster's size
PASSED = ("RR_", "HF_", "OMP_")  # environment variables that cells on other machines inherit


class RayEngine:
    """The cluster at `address` ("auto": the one that this machine is part of).

    gpus: per cell, a fraction where several share one; None: one where the cluster has any, but
    none with device="cpu". cpus: cores per cell. jobs: cells at a time, at most; None: as many as
    the cluster has room for.
    """

    def __init__(
        self,
        address: str | None,
        gpus: float | None,
        cpus: int | None,
        jobs: int | None,
        processes: int,
        say: Callable[[str], None],
        device: str | None = None,
    ) -> None:
        try:
            import ray
        except ModuleNotFoundError:
            raise RRError(
                f"--engine ray needs the package ray: {install('ray')}, or use --engine local"
            ) from None
        for name, value in (("gpu-fraction", gpus), ("cpus-per-cell", cpus), ("jobs", jobs)):
            if value is not None and not 0 < value < float("inf"):
                raise RRError(f"{name} must be a number > 0, got {value}")
        if gpus is not None and (gpus < SMALLEST or gpus > 1 and gpus != int(gpus)):
            raise RRError(f"gpu-fraction must be from {SMALLEST} to 1, or whole, got {gpus:g}")
        self.ray, self.limit, self.say = ray, jobs, say
        if not ray.is_initialized():
            try:
                ray.init(
                    address=address or "auto", log_to_driver=False, logging_level=logging.ERROR
                )
            except Exception as error:  # Ray has many, of its own, grpc's and Python's
                raise RRError(
                    f"no Ray cluster at {address or 'auto'} ({error}): "
                    "give the --address of a running one"
                ) from None
        resources = ray.cluster_resources()
        self.cpus, self.processes = cpus or processes, processes
        if gpus is None:
            gpus = float(processes) if resources.get("GPU") and device != "cpu" else 0.0
        self.gpus = gpus
        self.tasks: list[_Task] = []
        self._size, self._asked = self._count(), time.monotonic()
        if self._size == 0:
            ray.shutdown()
            raise RRError(
                f"the Ray cluster has {resources.get('CPU', 0):.0f} cores and "
                f"{resources.get('GPU', 0):.0f} GPUs, but a run needs {self.cpus} and "
                f"{self.gpus:g}: lower --cpus-per-cell or --gpu-fraction"
            )
        # Retried without limit where a node is lost; a crash of the cell itself is an exit code.
        self.remote = ray.remote(_run).options(
            num_cpus=self.cpus, num_gpus=self.gpus, max_retries=-1
        )
        # Ray prints a page on stdout for a lost node; `room` reports it in one line.
        self.quiet = contextlib.ExitStack()
        nowhere = self.quiet.enter_context(open(os.devnull, "w"))
        self.quiet.enter_context(contextlib.redirect_stdout(nowhere))

    @property
    def threads(self) -> int | None:
        """CPU threads of each process of a cell: its cores; None where it has a GPU."""
        return None if self.gpus else max(1, self.cpus // self.processes)

    def _count(self) -> int:
        """Cells that the cluster can run at once, counted node by node."""
        total = 0
        for node in self.ray.nodes():
            if node["Alive"]:
                has = node["Resources"]
                fits = has.get("CPU", 0) // self.cpus
                if self.gpus:
                    fits = min(fits, _on_gpus(int(has.get("GPU", 0)), self.gpus))
                total += int(fits)
        return total

    def reap(self) -> None:
        """Forget the cells that have ended; now and then count the cluster's machines again."""
        if time.monotonic() - self._asked > ASK:
            before, self._size, self._asked = self._size, self._count(), time.monotonic()
            if self._size != before:
                self.say(f"the cluster now has room for {self._size} cells, before for {before}")
        self.tasks = [task for task in self.tasks if task.poll() is None]

    @property
    def free_slots(self) -> int:
        """How many more cells can be started."""
        most = self._size if self.limit is None else min(self._size, self.limit)
        return most - len(self.tasks)

    def start(self, argv: Sequence[str], log: Path, env: Mapping[str, str]) -> "_Task":
        """Hand a cell to the cluster."""
        env = {k: v for k, v in os.environ.items() if k.startswith(PASSED)} | dict(env)
        if 0 < self.gpus < 1:
            env[GPU_SHARE] = str(self.gpus)
        ref = self.remote.remote(list(argv), str(log), env, os.getcwd())
        self.tasks.append(_Task(self.ray, ref, log))
        return self.tasks[-1]

    def close(self) -> None:
        """Leave the cluster."""
        self.ray.shutdown()
        self.quiet.close()


def _on_gpus(gpus: int, share: float) -> int:
    """How many cells fit on a node's GPUs. A share is of one GPU: 0.6 fits once on each."""
    return gpus * int(round(1 / share, 6)) if share < 1 else gpus // int(share)


class _Task:
    """A cell in the cluster, with the interface of `Process`."""

    def __init__(self, ray, ref, log: Path) -> None:
        self.ray, self.ref, self.log, self.code = ray, ref, log, None

    def poll(self) -> int | None:
        """The exit code; None while it runs, waits for a node, or is moved to another."""
        if self.code is None and self.ray.wait([self.ref], timeout=0)[0]:
            try:
                self.code = self.ray.get(self.ref)
            except self.ray.exceptions.TaskCancelledError:
                self.code = 1
            except self.ray.exceptions.RayError as error:  # it could not be started there
                self.code = 1
                why = str(error).strip().rpartition("\n")[2] or type(error).__name__
                self.log.parent.mkdir(parents=True, exist_ok=True)  # the cell's process would
                with open(self.log, "a") as file:  # where the sweep looks for the reason
                    file.write(f"rr: on the cluster: {why}\n")
        return self.code

    def stop(self) -> None:
        """Ray raises KeyboardInterrupt in the task, which asks its process to save."""
        if self.code is None:
            self.ray.cancel(self.ref, force=False)

    def kill(self) -> None:
        """End the task's worker; the system ends its process."""
        if self.code is None:
            self.ray.cancel(self.ref, force=True)


def _run(argv: list[str], log: str, env: dict[str, str], folder: str) -> int:
    """In a worker: run the cell's process, and return its exit code."""
    if os.path.isdir(folder):
        os.chdir(folder)  # relative paths on the command line are relative to it
    if not (out := Path(log).parents[1]).is_dir():
        raise FileNotFoundError(f"{out} is not there on this node: share the folder of runs")
    process = Process(argv, Path(log), env)
    while True:
        try:
            while (code := process.poll()) is None:
                time.sleep(0.1)
            return code
        except KeyboardInterrupt:  # cancelled: saved first
            process.stop()
