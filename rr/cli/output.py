"""What verbs print: results on stdout, as JSON or columns; progress on stderr."""

import argparse
import json
import sys
from collections.abc import Sequence


def add_json(parser: argparse.ArgumentParser) -> None:
    """The option `--json`."""
    parser.add_argument("--json", action="store_true", help="print one JSON value")


def print_json(value: object) -> None:
    """Print one JSON value; NaN and infinity are refused."""
    print(json.dumps(value, allow_nan=False, ensure_ascii=False))


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
    print(line, file=sys.stderr, flush=True)
