"""Logging of a run's curves to TensorBoard or Weights & Biases, in addition to metrics.jsonl.

Scalars: loss, lr, grad_norm, valid, val_loss (losses in nats per token) and tokens_per_second.
Their step counts all steps of the run, those of finished branches included, so that it never
decreases; the scalars of a branch are named by its budget, "budget_2000/loss". A run's numbers do
not depend on it.
"""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import Interrupted, RRError, nearest
from ..specs import Run

PACKAGES = ("tensorboard", "wandb")
SCALARS = ("loss", "lr", "grad_norm", "valid", "val_loss")
PROJECT = "review-residuals"


def named(words: str) -> list[str]:
    """The names in `tensorboard,wandb`."""
    return [name for name in words.split(",") if name]


def check_loggers(words: str, installed: bool = True) -> None:
    """Raise RRError unless each name is known and, with `installed`, its package there."""
    for name in named(words):
        if name not in PACKAGES:
            raise RRError(f"unknown logger {name!r}: {nearest(name, PACKAGES)}")
        if installed and importlib.util.find_spec(name) is None:
            raise RRError(f"logger {name} is not installed: pip install {name}")


class Charts:
    """The loggers of a run. One that fails is reported once and dropped; the run continues.

    done: the step from which the run resumes; what an interrupted process logged after it is
    replaced. (Weights & Biases keeps the first value of a step; offline it does not know of an
    earlier process, whose folder then also holds those steps.)
    """

    def __init__(
        self,
        words: str,
        run: Run,
        folder: Path,
        done: int,
        say: Callable[[str], None],
    ) -> None:
        self.say, self.open = say, {}
        self.done, self.seconds = done, 0.0  # of the last line with a loss
        make = {"tensorboard": _tensorboard, "wandb": _wandb}
        for name in named(words):
            if chart := self._try(name, make[name], run, folder, done):
                self.open[name] = chart
        self.tokens = run.recipe.batch * run.model.seq_len

    def __enter__(self) -> "Charts":
        return self

    def __exit__(self, *error: object) -> None:
        for name, (_, close) in list(self.open.items()):
            self._try(name, close)

    def add(self, done: int, line: dict) -> None:
        """Log a line of metrics.jsonl, written after `done` steps."""
        if not self.open:
            return
        scalars = {name: line[name] for name in SCALARS if line.get(name) is not None}
        if "budget" in line:
            scalars = {f"budget_{line['budget']}/{name}": value for name, value in scalars.items()}
        if "loss" in line:
            steps, seconds = done - self.done, line["seconds"] - self.seconds
            if self.seconds and seconds > 0:
                scalars["tokens_per_second"] = steps * self.tokens / seconds
            self.done, self.seconds = done, line["seconds"]
        # A final metric is logged one step later: a run resumed from its end logs it again.
        step = done + 1 if "val_loss" in line else done
        for name, (write, _) in list(self.open.items()):
            self._try(name, write, scalars, step)

    def _try(self, name: str, act: Callable, *given: object) -> Any:
        try:
            return act(*given)
        except Interrupted:
            raise
        except Exception as error:  # network, disk or login: no reason to end a run
            self.open.pop(name, None)
            why = " ".join(str(error).split())
            self.say(f"{name} failed and is no longer used: {type(error).__name__}: {why}")
        return None


def _tensorboard(run: Run, folder: Path, done: int) -> tuple[Callable, Callable]:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(folder / "tensorboard", purge_step=done + 1)

    def write(scalars: dict, step: int) -> None:
        for name, value in scalars.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return write, writer.close


def _wandb(run: Run, folder: Path, done: int) -> tuple[Callable, Callable]:
    import wandb  # pyright: ignore[reportMissingImports]  # optional

    session = wandb.init(
        project=PROJECT,
        id=run.id,
        name=f"{run.rung} {run.rule} seed {run.seed}",
        config=run.spec(),
        dir=folder,
        resume="allow",
    )
    return (lambda scalars, step: session.log(scalars, step=step)), session.finish
