"""`rr table`: the rules in a folder of runs, or the arms of a tidy table, against a baseline."""

from pathlib import Path

from rr.cli.output import print_json
from rr.errors import RRError
from rr.specs import RUN_OPTIONS

from .options import add_design


def add_arguments(parser) -> None:
    parser.add_argument(
        "path",
        metavar="PATH",
        help="folder of runs; or a tidy table, .csv, .parquet or .jsonl, with the columns arm, "
        "seed, loss, optionally step and status",
    )
    add_design(parser, "tidy table: ")
    parser.add_argument(
        "--baseline", default="standard", help="rule to compare with (default: standard)"
    )
    seed = RUN_OPTIONS["seed"]
    parser.add_argument(
        "--seeds",
        nargs="+",
        type=seed.read,
        metavar=seed.metavar,
        help="compare the runs of these seeds alone (default: all); leave out those that chose "
        "the learning rates",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON value")
    form.add_argument("--csv", action="store_true", help="a line per rule, with all digits")
    form.add_argument("--markdown", action="store_true", help="a table per group of runs")


def run(args) -> None:
    from rrstudy.stats import as_rows, compare, render

    runs = runs_of(args.path)
    if "rung" in runs and args.design:
        raise RRError(
            f"{args.path} is a folder of runs, whose seeds are paired: leave --{args.design} out"
        )
    if "rung" not in runs and args.design is None:
        raise RRError(
            "no design given: --paired if runs of one seed saw the same data in the same order, "
            "else --unpaired"
        )
    if args.seeds:
        if absent := sorted(set(args.seeds) - set(runs.seed)):
            known = ", ".join(map(str, sorted(set(runs.seed))))
            raise RRError(f"no run has seed {', '.join(map(str, absent))}: they have {known}")
        runs = runs[runs.seed.isin(args.seeds)]
    table = compare(runs, args.baseline, design=args.design or "paired")
    if args.json:
        print_json(as_rows(table))
    else:
        print(render(table, "csv" if args.csv else "markdown" if args.markdown else "text"))


def runs_of(path: str):
    """The runs in a folder of `rr`, or those of a tidy table, a row each."""
    from rrstudy.stats import read_results, read_table
    from rrstudy.stats.tidy import PAGE

    place = Path(path)
    if not place.is_dir():
        return read_table(place)
    if holds_runs(place):
        return read_results(place)
    raise RRError(f"{path} holds no runs of rr: expected them, or the file of a tidy table; {PAGE}")


def holds_runs(folder: Path) -> bool:
    """Whether any file of a run or of a record lies in a folder or below."""
    from rrstudy.stats.records import places

    return any(True for _ in places(folder))
