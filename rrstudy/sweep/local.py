"""The engine `local`: some cells at a time on this machine, round robin over its GPUs."""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from rr.errors import RRError, positive
from rr.training import memory_fit
from rr.training.device import GPU_SHARE, cores

from .process import Process


class Local:
    """Runs `jobs` cells at a time: one per GPU (or per group of `processes` GPUs), else one.

    More jobs than that share the GPUs. Jobs that share a machine share its memory in equal parts:
    each fits its run into its own (`memory_fit.free`). Without a GPU, and unless `threads` says
    otherwise, they also share the cores.
    """

    def __init__(self, jobs: int | None, processes: int, threads: int | None, device: str | None):
        gpus = [] if device == "cpu" else _gpus()
        if gpus and processes > len(gpus):
            raise RRError(f"processes must be at most the {len(gpus)} GPUs here, got {processes}")
        size = processes
        self.groups = [gpus[i : i + size] for i in range(0, len(gpus) - size + 1, size)]
        if jobs is not None:
            positive("jobs", jobs)
        self.jobs = jobs or max(1, len(self.groups))
        self.memory = self._memory_shares()
        self.slots: list[Process | None] = [None] * self.jobs
        self.threads = threads
        if threads is None and not gpus and self.jobs * processes > 1:
            self.threads = max(1, cores() // (self.jobs * processes))

    def _memory_shares(self) -> dict[str, str]:
        """Variables that tell each job its part of the RAM that is free now, and of its GPU."""
        shares = {}
        free = memory_fit.free_ram() if self.jobs > 1 else None
        if free is not None:
            shares[memory_fit.RAM_LIMIT] = str(free // self.jobs)
        if self.jobs > len(self.groups) > 0:
            shares[GPU_SHARE] = str(1 / math.ceil(self.jobs / len(self.groups)))
        return shares

    def reap(self) -> None:
        """Free the slots whose processes have ended."""
        self.slots = [p if p is not None and p.poll() is None else None for p in self.slots]

    @property
    def free_slots(self) -> int:
        """How many more cells can be started."""
        return self.slots.count(None)

    def start(self, argv: Sequence[str], log: Path, env: Mapping[str, str]) -> Process:
        """Start a process in the first free slot."""
        slot = self.slots.index(None)
        env = {**env, **self.memory}
        if self.groups:
            group = self.groups[slot % len(self.groups)]
            env["CUDA_VISIBLE_DEVICES"] = ",".join(group)
        started = self.slots[slot] = Process(argv, log, env)
        return started

    def close(self) -> None:
        """Nothing is held."""


def _gpus() -> list[str]:
    """The name in CUDA_VISIBLE_DEVICES of each GPU that we may use."""
    if not torch.cuda.is_available():
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    return visible.split(",")[:count] if visible else [str(i) for i in range(count)]
