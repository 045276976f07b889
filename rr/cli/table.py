"""`rr table`: the rules in a folder of runs, or the arms in anybody's logs, against a baseline."""

from pathlib import Path

from ..config import RRError
from .options import add_design
from .output import print_json


def add_arguments(parser) -> None:
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="folder of runs; with --loss, logs: CSV, TSV, JSONL, W&B's or TensorBoard's export, "
        "or a folder of event files",
    )
    parser.add_argument("--loss", metavar="COLUMN", help="logs: column or tag of the loss")
    parser.add_argument("--arm", metavar="COLUMN", help="logs: column that names the arm")
    parser.add_argument("--seed", metavar="COLUMN", help="logs: column of the seed")
    parser.add_argument(
        "--step", metavar="COLUMN", help="logs: column of the step; the last common one is compared"
    )
    parser.add_argument(
        "--run",
        metavar="PATTERN",
        help="logs whose run names hold arm and seed, as '{arm}-s{seed}', instead of columns",
    )
    parser.add_argument("--figure", metavar="FILE.svg", help="logs: also draw the differences")
    add_design(parser, "logs: ")
    parser.add_argument(
        "--baseline", default="standard", help="rule to compare with (default: standard)"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON value")
    form.add_argument("--csv", action="store_true", help="a line per rule, with all digits")
    form.add_argument("--markdown", action="store_true", help="a table per group of runs")


def run(args) -> None:
    from ..stats import csv_text, markdown, read_results, render, render_against, table
    from ..stats.command import table_of_logs

    columns = {name: getattr(args, name) for name in ("loss", "arm", "seed", "step", "run")}
    if args.loss is not None:
        rows = table_of_logs(args.paths, args.design, args.baseline, args.figure, **columns)
        text = render_against(rows, pipes=args.markdown)
    else:
        if len(args.paths) > 1 or not Path(args.paths[0]).is_dir():
            raise RRError(
                f"{' '.join(args.paths)} is not a folder: expected a folder of runs, or logs with "
                "--loss COLUMN"
            )
        if any(columns.values()) or args.design or args.figure:
            raise RRError(
                "these options are for logs, and a folder of runs needs none of them: "
                "add --loss COLUMN if these are logs"
            )
        rows = table(read_results(args.paths[0]), args.baseline)
        text = markdown(rows) if args.markdown else render(rows, more=True)
    if args.json:
        print_json(rows)
    else:
        print(csv_text(rows) if args.csv else text)
