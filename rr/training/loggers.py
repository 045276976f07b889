"""A run's curves in TensorBoard or Weights & Biases, beside the metrics.jsonl that is always there.

Scalars: loss, lr, valid, val_loss (losses in nats a token) and tokens_per_second. Their step counts
all that the run has trained, left branches included, so that it never falls; what belongs to a
branch carries its budget, "budget_2000/loss". Nothing here changes a run's numbers.
"""

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..config import Interrupted, RRError, Run, nearest

PACKAGES = ("tensorboard", "wandb")
SCALARS = ("loss", "lr", "valid", "val_loss")
PROJECT = "review-residuals"


def named(words: str) -> list[str]:
    """`tensorboard,wandb` as names."""
    return [name for name in words.split(",") if name]


def check(names: Sequence[str], here: bool = True) -> None:
    """RRError unless each name is known and, where curves are drawn here, its package installed."""
    for name in names:
        if name not in PACKAGES:
            raise RRError(f"unknown log {name!r}: {nearest(name, PACKAGES)}")
        if here and importlib.util.find_spec(name) is None:
            raise RRError(f"log {name} needs a package: pip install {name} brings it")


class Charts:
    """What a run's scalars are drawn in. One that fails is said once, and the run goes on.

    done: steps that the run goes on from; what was logged after them, by a process that was cut
    off, is drawn again and not twice. (Weights & Biases keeps what it has seen of a step; offline
    it knows nothing of an earlier process, whose folder then holds those steps, too.)
    """

    def __init__(
        self, names: Sequence[str] = (), run: Run | None = None, folder: Path = Path(),
        done: int = 0, say: Callable[[str], None] = lambda line: None,
    ) -> None:  # fmt: skip
        self.say, self.open, self.before = say, {}, (done, 0.0)
        make = {"tensorboard": _tensorboard, "wandb": _wandb}
        for name in names:
            if chart := self._try(name, make[name], run, folder, done):
                self.open[name] = chart
        self.tokens = run and run.recipe.batch * run.model.seq_len

    def __enter__(self) -> "Charts":
        return self

    def __exit__(self, *error: object) -> None:
        for name, (_, close) in list(self.open.items()):
            self._try(name, close)

    def add(self, done: int, line: dict) -> None:
        """Draw a line of metrics.jsonl, written after `done` steps of all."""
        if not self.open:
            return
        found = {name: line[name] for name in SCALARS if line.get(name) is not None}
        if "budget" in line:
            found = {f"budget_{line['budget']}/{name}": value for name, value in found.items()}
        if "loss" in line:
            steps, seconds = done - self.before[0], line["seconds"] - self.before[1]
            if self.before[1] and seconds > 0:
                found["tokens_per_second"] = steps * self.tokens / seconds
            self.before = done, line["seconds"]
        # A measure of the end is drawn a step later: whoever goes on from the end takes it again.
        where = done + ("val_loss" in line)
        for name, (write, _) in list(self.open.items()):
            self._try(name, write, found, where)

    def _try(self, name: str, act: Callable, *given: object) -> Any:
        try:
            return act(*given)
        except Interrupted:
            raise
        except Exception as error:  # a network, a disk, a login: none is worth a run
            self.open.pop(name, None)
            why = " ".join(str(error).split())
            self.say(f"{name} failed and gets no more of this run: {type(error).__name__}: {why}")
        return None


def _tensorboard(run: Run, folder: Path, done: int) -> tuple[Callable, Callable]:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(folder / "tensorboard", purge_step=done + 1)

    def write(found: dict, step: int) -> None:
        for name, value in found.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return write, writer.close


def _wandb(run: Run, folder: Path, done: int) -> tuple[Callable, Callable]:
    import wandb

    there = wandb.init(
        project=PROJECT, id=run.id, name=f"{run.rung} {run.rule} seed {run.seed}",
        config=run.spec(), dir=folder, resume="allow",
    )  # fmt: skip
    return (lambda found, step: there.log(found, step=step)), there.finish
