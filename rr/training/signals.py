"""Graceful shutdown on SIGTERM and Ctrl-C."""

import signal
import threading

from ..config import Interrupted


class Stop:
    """Turns SIGTERM and Ctrl-C into a request that the training loop honours after its step.

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
            for number in (signal.SIGTERM, signal.SIGINT):
                self.before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *error) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
