"""`rr table`: the rules in a folder of runs, compared with a baseline."""

from pathlib import Path

from ..config import RRError
from .output import print_json


def add_arguments(parser) -> None:
    parser.add_argument("dir", help="folder of runs")
    parser.add_argument(
        "--baseline", default="standard", help="rule to compare with (default: standard)"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON value")
    form.add_argument("--csv", action="store_true", help="a line per rule, with all digits")
    form.add_argument("--markdown", action="store_true", help="a table per group of runs")


def run(args) -> None:
    from ..stats import csv_text, markdown, read_results, render, table

    if not Path(args.dir).is_dir():
        raise RRError(f"{args.dir} is not a folder: expected a folder of runs")
    rows = table(read_results(args.dir), args.baseline)
    if args.json:
        print_json(rows)
    elif args.csv:
        print(csv_text(rows))
    elif args.markdown:
        print(markdown(rows))
    else:
        print(render(rows, more=True))
