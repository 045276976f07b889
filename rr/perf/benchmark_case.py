"""One case of a benchmark, in a process of its own, driven by commands on stdin."""

import contextlib
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from ..config import ModelConfig, RRError
from ..model import ladder
from ..model.init import initialise
from ..model.transformer import Model
from ..residual import allow_rule
from ..training.backend import parse_backend
from ..training.device import device_name, out_of_memory, pick_device, prepare_device
from ..training.step import OptimizerStep
from .peers import Peer

VOCAB = 50257  # GPT-2's


@dataclass(frozen=True)
class Case:
    """What to measure: a model with a path, or a peer's model of equal size."""

    rung: str
    rule: str
    path: str
    batch: int
    micro_batch: int
    peer: str | None = None
    protocol: str = "clean"

    @property
    def config(self) -> ModelConfig:
        """The model: the rule's arm in the protocol; for a peer the standard arm."""
        allow_rule(self.rule)  # the user named it
        flavour = "gpt2" if self.peer in (None, "gpt2") else "llama"
        return ladder.arm(self.rung, self.rule, VOCAB, self.protocol, flavour=flavour)

    @property
    def name(self) -> str:
        """The case's name in messages and tables."""
        return f"{self.rung} {self.peer or self.rule} {self.path}"


class Bench:
    """A case's model and batches, with a method per command."""

    def __init__(self, case: Case, device: str | None, threads: int | None) -> None:
        self.device = pick_device(device)
        self.threads = prepare_device(self.device, threads)
        config, recipe = case.config, ladder.recipe(case.rung, case.protocol, batch=case.batch)
        if case.peer is None:
            self.model = initialise(Model(config), 0)
        else:
            torch.manual_seed(0)
            self.model = Peer(case.peer, config)
        self.model.to(self.device).train()
        self.config, self.case = config, case
        path = parse_backend(case.path)
        path.set_up(self.device)
        self.step = OptimizerStep(self.model, recipe, path, self.device, case.micro_batch)
        source = torch.Generator().manual_seed(0)
        shape = (4, case.batch, config.seq_len + 1)  # four batches, again and again
        self.tokens = torch.randint(config.vocab_size, shape, generator=source).to(self.device)
        self.done = 0

    def describe(self) -> dict:
        """What is known before the first step. Parameters without the padding of the head."""
        params = sum(p.numel() for p in self.model.parameters())
        if self.case.peer is None:
            params = ladder.count(self.config)
        return {
            "params": params,
            "flops_per_token": ladder.flops_per_token(self.config),
            "precision": self.step.precision,
            "device": device_name(self.device),
            "threads": self.threads,
        }

    def run(self, steps: int) -> dict:
        """Seconds of `steps` steps after one that is not timed, and the last loss (nats)."""
        self._steps(1)
        began = time.perf_counter()
        loss = self._steps(steps)
        return {"seconds": time.perf_counter() - began, "loss": loss}

    def _steps(self, steps: int) -> float:
        for _ in range(steps):
            batch = self.tokens[self.done % len(self.tokens)]
            loss = self.step(batch[:, :-1], batch[:, 1:])
            self.done += 1
        return loss.item()  # waits for the device

    def warm(self) -> dict:
        """Take two steps, which compile and allocate; the peak counts from here on."""
        began = time.perf_counter()
        self._steps(2)
        seconds = time.perf_counter() - began
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        else:
            with contextlib.suppress(OSError):  # Linux: reset the high-water mark
                Path("/proc/self/clear_refs").write_text("5")
        return {"warm_seconds": seconds}

    def peak(self) -> dict:
        """Peak bytes since `warm`: allocated by torch on a GPU, resident memory on a CPU."""
        if self.device.type == "cuda":
            return {"bytes": torch.cuda.max_memory_allocated()}
        with contextlib.suppress(OSError):
            for line in Path("/proc/self/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return {"bytes": int(line.split()[1]) * 1024}
        import resource  # where there is no /proc: the peak since the process started

        unit = 1 if sys.platform == "darwin" else 1024
        return {"bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}


def serve() -> None:
    """Answer commands on stdin, a line of JSON each, until it closes."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not mix with the answers
    bench = None
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        try:
            if command == "build":
                case, device, threads = arguments
                bench = Bench(Case(**case), device, threads)
                answer = bench.describe()
            else:
                answer = getattr(bench, command)(*arguments)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            answer = {"failed": "out of memory"}
        except RRError as error:
            answer = {"failed": str(error)}
        if bench is not None and bench.device.type == "cuda":
            torch.cuda.empty_cache()  # for the other cases
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    serve()
