"""Cells on this machine, some at a time; where there are GPUs, round robin over them."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from ..config import RRError
from .process import Process


class Local:
    """jobs cells at a time: one for each GPU (or group of `processes` GPUs), else one.

    More jobs than that share the GPUs. Without a GPU and without a number of threads of the
    reader's own, the cores are divided.
    """

    def __init__(self, jobs: int | None, processes: int, threads: int | None, device: str | None):
        gpus = [] if device == "cpu" else _gpus()
        if gpus and processes > len(gpus):
            raise RRError(f"processes is {processes}: as many GPUs as are here, {len(gpus)}, are "
                          "accepted")  # fmt: skip
        size = processes
        self.groups = [gpus[i : i + size] for i in range(0, len(gpus) - size + 1, size)]
        if jobs is not None and jobs < 1:
            raise RRError(f"jobs is {jobs}: a whole number of at least 1 is accepted")
        self.jobs = jobs or max(1, len(self.groups))
        self.slots: list[Process | None] = [None] * self.jobs
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        divided = max(1, cores // (self.jobs * processes))
        crowded = self.jobs * processes > 1 and not gpus
        self.threads = divided if threads is None and crowded else threads

    @property
    def room(self) -> int:
        """How many more cells can start."""
        self.slots = [p if p is not None and p.poll() is None else None for p in self.slots]
        return self.slots.count(None)

    def start(self, argv: Sequence[str], log: Path, env: Mapping[str, str]) -> Process:
        """Start a process in the first free slot."""
        slot = self.slots.index(None)
        if self.groups:
            group = self.groups[slot % len(self.groups)]
            env = {**env, "CUDA_VISIBLE_DEVICES": ",".join(group)}
        self.slots[slot] = Process(argv, log, env)
        return self.slots[slot]

    def close(self) -> None:
        """Nothing is held."""


def _gpus() -> list[str]:
    """What CUDA_VISIBLE_DEVICES would call each GPU that we may use."""
    if not torch.cuda.is_available():
        return []
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    return named.split(",")[:count] if named else [str(i) for i in range(count)]
