"""`rr report`: the report of a run or of a folder of runs, as a notebook and as one HTML page."""

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

from rr.cli.output import locate_errors
from rr.cli.sample import add_own_rules
from rr.errors import RRError, RunFailed


def add_arguments(parser) -> None:
    parser.add_argument("folder", type=Path, help="a finished run, or a folder of runs")
    parser.add_argument(
        "--html", type=Path, metavar="OUT.html", help="also write the report as one page"
    )
    parser.add_argument(
        "--baseline",
        help="of a folder: the arm that the others are compared with (default: standard)",
    )
    add_own_rules(parser)


def run(args) -> None:
    """Make report.ipynb in the folder, unless a sweep left one of a run there; then the page.

    The report of a folder is always made anew: it may hold more runs than last time.
    """
    if importlib.util.find_spec("rrbook") is None:
        raise RRError(
            "rr report needs the book's package, rrbook: pip install -e '.[notebooks]' -e book "
            "in the checkout of rr"
        )
    from rr.training.loading import allowed, read_specification
    from rr.training.run_folder import finished
    from rrstudy.sweep import notebook
    from rrstudy.verify import check_text

    folder = args.folder.resolve()
    if not folder.is_dir():
        raise RRError(f"no folder {args.folder}: expected a finished run, or a folder of runs")
    report = folder / notebook.REPORT
    if not (folder / "run.json").exists():
        _report_of_runs(folder, report, args)
    elif args.baseline:
        raise RRError(f"--baseline is for a folder of runs, and {args.folder} is one run: leave it")
    elif finished(folder) is None:  # which refuses a corrupt result, whatever report there is
        raise RRError(f"{args.folder} has not ended: rr train resumes it, then it has a report")
    elif not notebook.complete(report, folder.name):
        notebook.check_installed()
        _, run = read_specification(folder)
        with locate_errors(*args.rule):
            run = allowed(run, folder, args.rule)
        text = "the report scores it: put that text back"  # of another, another run would be made
        check_text(run, corpus=text, tokenizer=text)
        _execute(_report_of_run(run, folder))
    if args.html:
        if why := _failure(["-m", "rrbook.plain", str(report), str(args.html)]):
            raise RRError(why.removeprefix("rrbook.plain: "))
    print(args.html or report)


def _report_of_runs(folder: Path, report: Path, args) -> None:
    """Write the report of a folder of runs; where it fails, the one that was there stays."""
    from rrstudy.cli.table import holds_runs
    from rrstudy.sweep import notebook

    if args.rule:
        raise RRError(f"--rule is for one run, and {args.folder} is a folder of runs: leave it out")
    if not holds_runs(folder):
        raise RRError(f"no run below {args.folder}: expected a finished run, or a folder of runs")
    notebook.check_installed()
    given = {"folder": str(folder), "baseline": args.baseline or "standard"}
    with tempfile.TemporaryDirectory(dir=folder, prefix=".report-") as beside:
        executed = Path(beside) / notebook.REPORT
        path = notebook.find(None).with_name("folder.ipynb")
        _execute(["-m", *notebook.papermill(path, executed, given, notebook.engine())])
        executed.replace(report)


def _report_of_run(run, folder: Path) -> list[str]:
    """The arguments of `python` that execute the run's notebook; it finds the run finished.

    RRError where the notebook's parameters would name another run, which it would train.
    """
    from rrstudy.command_line import named_by_options, options
    from rrstudy.sweep import Cell, Runner

    if not named_by_options(run):
        raise RRError(
            f"{folder.name} has a setting that neither an option of rr train nor a "
            "parameter of a report gives: rr table and rr verify read it"
        )
    return Runner("papermill", folder.parent, {}).argv(Cell(run, options(run), flops=0))


def _execute(words: list[str]) -> None:
    if why := _failure(words):
        raise RunFailed(f"the report's notebook stopped: {why}")


def _failure(words: list[str]) -> str:
    """Run `python` with these words; the last line of its errors where it failed, else ""."""
    from rrstudy.sweep.process import variables

    command = [sys.executable, *words]  # which imports nothing from the working folder
    done = subprocess.run(
        command, capture_output=True, text=True, errors="backslashreplace", env=variables({})
    )
    lines = done.stderr.strip().splitlines() or ["no reason given"]
    return lines[-1] if done.returncode else ""
