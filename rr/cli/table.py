"""`rr table`: the rules in a folder of runs, or the arms in anybody's logs, against a baseline."""

from ..config import RRError
from .logs import add_logs, holds_runs, logs_options, read_logs
from .options import add_design
from .output import print_json


def add_arguments(parser) -> None:
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="folder of runs; or logs: CSV in any dialect, JSON, JSONL, exports of W&B and "
        "TensorBoard, trainer_state.json, or a folder of such files or of event files",
    )
    add_logs(parser)
    add_design(parser, "logs: ")
    parser.add_argument(
        "--baseline", default="standard", help="rule to compare with (default: standard)"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON value")
    form.add_argument("--csv", action="store_true", help="a line per rule, with all digits")
    form.add_argument("--markdown", action="store_true", help="a table per group of runs")


def run(args) -> None:
    from ..stats import as_rows, compare, read_results, render

    if holds_runs(args.paths):
        if any(logs_options(args).values()) or args.design:
            raise RRError(
                f"{args.paths[0]} is a folder of runs, which needs none of the options for logs: "
                "leave them out"
            )
        table = compare(read_results(args.paths[0]), args.baseline)
    else:
        table = compare(read_logs(args), args.baseline, design=args.design)
    if args.json:
        print_json(as_rows(table))
    else:
        print(render(table, "csv" if args.csv else "markdown" if args.markdown else "text"))
