"""What verbs print: results on stdout, as JSON or columns; progress and errors on stderr."""

import argparse
import codecs
import contextlib
import json
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..errors import Interrupted, RRError
from ..io import tell

# How the characters of our own messages are written where an encoding lacks them.
PLAIN = {
    **{"−": "-", "–": "-", "·": ".", "×": "x", "✓": "+", "✗": "x", "→": "->", "…": "..."},
    **{"±": "+-", "≥": ">=", "≤": "<=", "½": "1/2", "²": "^2", "³": "^3", "‖": "||"},
}


def print_anywhere() -> None:
    """Let everything be printed: in any encoding, and where there is no stdout or stderr.

    A character that the stream's encoding lacks (Windows' code pages, ASCII) is written as in
    `PLAIN`, another as its escape, `\\u03bb`; what the encoding has stays as it is.
    """
    codecs.register_error("rr", _written_plainly)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller, or of a program without a console
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
        elif hasattr(stream, "reconfigure"):  # a notebook's streams take everything
            try:
                stream.reconfigure(errors="rr")
            except OSError:  # of a file that was exchanged for a pipe behind Python's back
                more = {"encoding": stream.encoding, "errors": "rr", "closefd": False}
                setattr(sys, name, open(stream.fileno(), "w", buffering=1, **more))


def _written_plainly(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    characters = error.object[error.start : error.end]
    escaped = (PLAIN.get(c) or c.encode("ascii", "backslashreplace").decode() for c in characters)
    return "".join(escaped), error.end


def add_json(parser: argparse.ArgumentParser) -> None:
    """The option `--json`."""
    parser.add_argument("--json", action="store_true", help="print one JSON value")


def print_json(value: object) -> None:
    """Print one JSON value, in ASCII; NaN and infinity are refused."""
    print(json.dumps(value, allow_nan=False))


def print_columns(rows: Sequence[tuple], align: str = "") -> None:
    """Print rows as columns. align: a letter per column, "r" for right; left otherwise."""
    widths = [max(len(str(row[i])) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = (
            str(cell).rjust(width) if align[i : i + 1] == "r" else str(cell).ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join(cells).rstrip())


def log(line: str) -> None:
    """Print a line on stderr at once."""
    tell(line)


@contextlib.contextmanager
def locate_errors(*specs: str) -> Iterator[None]:
    """Turn an exception raised by a rule of the reader's own, among `specs`, into an RRError."""
    try:
        yield
    except (RRError, Interrupted, OSError, ModuleNotFoundError):
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
