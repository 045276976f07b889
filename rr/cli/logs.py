"""Options of `rr table` and `rr power` for the logs of other trainers."""

from pathlib import Path

from ..config import RRError

OPTIONS = ("loss", "arm", "seed", "step", "run", "at", "duplicates", "decimal")


def add_logs(parser) -> None:
    """The options that say what a log's columns and names mean."""
    for name, metavar, help in (
        ("loss", "COLUMN", "column or tag of the loss"),
        ("arm", "COLUMN", "column that names the arm"),
        ("seed", "COLUMN", "column of the seed"),
        (
            "step",
            "COLUMN",
            "column of the step; the last at which every run has a loss is compared",
        ),
        (
            "run",
            "PATTERN",
            "where names of runs, files or folders hold arm and seed: '{arm}-s{seed}'",
        ),
    ):
        parser.add_argument(f"--{name}", metavar=metavar, help=f"logs: {help}")
    parser.add_argument("--at", type=float, metavar="STEP", help="logs: the step that is compared")
    parser.add_argument(
        "--duplicates",
        choices=("first", "last", "error"),
        help="logs: which of two losses at one step counts (default: last, if a run was resumed)",
    )
    parser.add_argument("--decimal", choices=(".", ","), help="logs: the decimal mark")


def logs_options(args) -> dict:
    """What was given of these options."""
    return {name: getattr(args, name) for name in OPTIONS}


def holds_runs(paths: list[str]) -> bool:
    """Whether this is one folder of runs of `rr`, or of their records."""
    folder = Path(paths[0])
    return (
        len(paths) == 1
        and folder.is_dir()
        and any(any(folder.rglob(name)) for name in ("result.json", "run.json", "runs.parquet"))
    )


def read_logs(args):
    """The runs in these logs; RRError without a design, which no log holds."""
    from .. import stats

    runs = stats.read_logs(args.paths, **logs_options(args))
    if args.design is None:
        raise RRError(
            "no design given: --paired if runs of one seed saw the same data in the same order, "
            "else --unpaired"
        )
    return runs
