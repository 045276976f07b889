"""One case of a benchmark, in a process of its own, driven by commands."""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rr.errors import RRError
from rr.model import costs, sizes
from rr.model.init import initialise
from rr.model.transformer import Model
from rr.options import written
from rr.residual import allow_rule
from rr.specs import ModelConfig
from rr.training import planning
from rr.training.backend import parse_backend
from rr.training.device import device_name, out_of_memory, pick_device, prepare_device
from rr.training.step import OptimizerStep

VOCAB = 50257  # GPT-2's


@dataclass(frozen=True)
class Case:
    """What to measure: a model with a path."""

    rung: str
    rule: str
    path: str
    batch: int
    micro_batch: int
    protocol: str = "clean"
    values: str = "own"

    @property
    def config(self) -> ModelConfig:
        """The model: the rule's arm in the protocol."""
        allow_rule(self.rule, self.values)  # the user named them
        return sizes.arm(self.rung, self.rule, VOCAB, self.protocol, self.values)

    @property
    def name(self) -> str:
        """The case's name in messages and tables."""
        return f"{self.rung} {arm(self.rule, self.values)} {self.path}"


def arm(rule: str, values: str) -> str:
    """A case's rules as a table names them: the value rule where it is not `own`."""
    return rule if values == "own" else f"{rule} + {written(values)}"


class Bench:
    """A case's model and batches, with a method per command."""

    def __init__(self, case: Case, device: str | None, threads: int | None) -> None:
        self.device = pick_device(device)
        self.threads = prepare_device(self.device, threads)
        config, recipe = case.config, planning.recipe(case.rung, case.protocol, batch=case.batch)
        self.model = initialise(Model(config), 0)
        self.model.to(self.device).train()
        self.config, self.case = config, case
        path = parse_backend(case.path)
        path.set_up(self.device)
        began = time.perf_counter()
        self.step = OptimizerStep(self.model, recipe, path, self.device, case.micro_batch)
        self.compiling = time.perf_counter() - began  # its check compiles the blocks
        source = torch.Generator().manual_seed(0)
        shape = (4, case.batch, config.seq_len + 1)  # four batches, again and again
        self.tokens = torch.randint(config.vocab_size, shape, generator=source).to(self.device)
        self.done = 0

    def describe(self) -> dict:
        """What is known before the first step. Parameters without the padding of the head."""
        return {
            "params": costs.count(self.config),
            "flops_per_token": costs.flops_per_token(self.config),
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
        """Take two steps, which compile and allocate; the peak counts from here on.

        The seconds include the making of the step, whose check compiles, too.
        """
        began = time.perf_counter()
        self._steps(2)
        seconds = self.compiling + time.perf_counter() - began
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


_bench: Bench | None = None  # of this process


def start() -> None:
    """Prepare a case's process: it prints on stderr, stops at Ctrl-C and ends with its parent."""
    os.dup2(2, 1)  # what a library prints must not mix with the results
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None  # this is a pool's process
    parent.join()
    os._exit(1)


def run_command(command: str, *arguments: Any) -> dict:
    """In the case's process: "build" its `Bench` from the arguments, or call a method of it.

    Raises RRError for whatever goes wrong: another exception may not survive the way back.
    """
    global _bench
    try:
        if command == "build":
            _bench = Bench(*arguments)
            return _bench.describe()
        return getattr(_bench, command)(*arguments)
    except RRError:
        raise
    except (Exception, SystemExit) as error:  # of the rule, of a library
        if out_of_memory(error):
            raise RRError("out of memory") from None
        words = " ".join(str(error).split())
        raise RRError(f"{type(error).__name__}: {words}") from None
    finally:
        if _bench is not None and _bench.device.type == "cuda":
            torch.cuda.empty_cache()  # for the other cases
