"""Progress reporting of a run, and graceful shutdown on SIGTERM and Ctrl-C."""

import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TextIO

from ..errors import Interrupted
from ..io import tell
from ..specs import Run

WINDOW = 10.0  # seconds over which a speed is measured


class Progress:
    """Reports progress: one updating line on a terminal, a new line every few seconds elsewhere."""

    def __init__(self, log: Callable[[str], None] | None, plain: float = 5.0) -> None:
        self.log = log
        self.tty = log is None and sys.stderr.isatty()
        self.every = 0.2 if self.tty else plain  # seconds between two lines
        self.shown, self.width = -float("inf"), 0
        self.seen: deque[tuple[int, float]] = deque()  # steps and when they ended, of WINDOW

    def say(self, line: str) -> None:
        """Print a line that stays."""
        if self.log is not None:
            self.log(line)
            return
        tell(("\r" if self.width else "") + line.ljust(self.width))
        self.width = 0

    def close(self) -> None:
        """End the updating line, so that the next output starts on a new one."""
        if self.width:
            tell("")
            self.width = 0

    def step(self, run: Run, step: int, total: int, loss: float | None) -> None:
        """Show loss (nats per token), speed and time left, at most every few tenths of a second.

        step: steps so far; total: all steps of the run, those of its branches included. The speed
        is that of the last `WINDOW` seconds: the first step, which compiles, is no part of it.
        """
        now = time.monotonic()
        self.seen.append((step, now))
        while now - self.seen[0][1] > WINDOW and len(self.seen) > 2:
            self.seen.popleft()
        if not (self.due() or step == total):
            return
        words = f"{run.rung} {run.rule} seed {run.seed}  step {step}/{total}  "
        words += f"loss {'–' if loss is None else f'{loss:.3f}'}"
        first, began = self.seen[0]
        if step > first and now > began:
            per_second = (step - first) / (now - began)
            left = (total - step) / per_second
            words += f"  {per_second * run.recipe.batch * run.model.seq_len:,.0f} tokens/s"
            words += f"  {int(left // 60)}:{int(left % 60):02d} left"
        self.move(words, last=step == total)

    def due(self) -> bool:
        """Whether the updating line is due again."""
        return time.monotonic() - self.shown >= self.every

    def move(self, text: str, last: bool = False) -> None:
        """Show the updating line; a `last` one stays."""
        self.shown = time.monotonic()
        if self.tty:
            if not last:  # a moving line that wraps cannot move back
                text = text[: _columns(sys.stderr) - 1]
            tell("\r" + text.ljust(self.width), end="\n" if last else "")
            self.width = 0 if last else len(text)
        else:
            self.say(text)


def _columns(stream: TextIO) -> int:
    """Characters in a line of the terminal that a stream writes to; 80 where it does not say."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


class Stop:
    """Turns SIGTERM, Ctrl-C and a closed terminal into a request: stop after this step.

    With `at_once` set, the next signal raises Interrupted where it arrives.
    """

    def __init__(self) -> None:
        self.requested, self.at_once = False, False

    def _ask(self, number, frame) -> None:
        if self.at_once:
            raise Interrupted("stopped while measuring; the trained weights are saved")
        self.requested = True

    def __enter__(self) -> "Stop":
        # Handlers can only be set in the main thread; other threads keep the process's own.
        self.before = {}
        if threading.current_thread() is threading.main_thread():
            for name in ("SIGTERM", "SIGINT", "SIGHUP"):  # Windows has no third
                number = getattr(signal, name, signal.SIGTERM)
                if name != "SIGHUP" or signal.getsignal(number) != signal.SIG_IGN:  # by nohup
                    self.before.setdefault(number, signal.signal(number, self._ask))
        return self

    def __exit__(self, *error) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
