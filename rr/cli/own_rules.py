"""Errors in a reader's own rule, reported as one line that names the place."""

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path

from ..config import Interrupted, RRError


@contextlib.contextmanager
def locate_errors(*specs: str) -> Iterator[None]:
    """Turn an exception raised by a rule of the reader's own, among `specs`, into an RRError."""
    try:
        yield
    except (RRError, Interrupted):
        raise
    except Exception as error:
        own = next((spec for spec in specs if ".py:" in spec), None)
        if own is None:
            raise
        raise RRError(f"{_place(error, own)}: {type(error).__name__}: {error}") from error


def _place(error: Exception, own: str) -> str:
    """The line of the rule's file that raised, or the rule that was in use when something did."""
    path = Path(own.partition(".py:")[0] + ".py").resolve()
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if Path(frame.filename).resolve() == path:
            return f"{path.name}, line {frame.lineno}"
    return f"with the rule {own}"
