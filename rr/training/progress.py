"""What a person sees of a run, and how a person stops it."""

import sys
import time
from collections.abc import Callable

from ..config import Run


class Progress:
    """A moving line on a terminal, a plain flushed line every few seconds elsewhere."""

    def __init__(self, log: Callable[[str], None] | None, plain: float = 5.0) -> None:
        self.log = log
        self.tty = log is None and sys.stderr.isatty()
        self.every = 0.2 if self.tty else plain  # seconds between two lines
        self.shown, self.width = -float("inf"), 0

    def say(self, line: str) -> None:
        """A line that stays."""
        if self.log is not None:
            self.log(line)
            return
        print(("\r" if self.width else "") + line.ljust(self.width), file=sys.stderr, flush=True)
        self.width = 0

    def close(self) -> None:
        """End the moving line, so that what comes next begins its own."""
        if self.width:
            print(file=sys.stderr, flush=True)
            self.width = 0

    def step(self, run: Run, step: int, of: int, loss: float | None, spent: float) -> None:
        """Loss (nats), speed and time left, not more often than a reader can use; spent in s.

        step: taken so far, `of` all that the run will take, those of its branches included.
        """
        if not (self.due() or step == of):
            return
        rate = step * run.recipe.batch * run.model.seq_len / spent
        left = spent / step * (of - step)
        self.move(
            f"{run.rung} {run.rule} seed {run.seed}  step {step}/{of}  "
            f"loss {'–' if loss is None else f'{loss:.3f}'}  {rate:,.0f} tokens/s  "
            f"{int(left // 60)}:{int(left % 60):02d} left",
            last=step == of,
        )

    def due(self) -> bool:
        """Whether the last moving line is old enough for a reader to want the next."""
        return time.monotonic() - self.shown >= self.every

    def move(self, text: str, last: bool = False) -> None:
        """The moving line, as it is now; one that is `last` stays."""
        self.shown = time.monotonic()
        if self.tty:
            print(
                "\r" + text.ljust(self.width), end="\n" if last else "", file=sys.stderr, flush=True
            )
            self.width = 0 if last else len(text)
        else:
            self.say(text)
