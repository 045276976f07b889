"""`rr sweep`: train every combination of the options, some runs at a time."""

import shlex
from collections.abc import Callable
from pathlib import Path

from rr.cli.options import add_machine, add_run, machine, pick
from rr.cli.output import locate_errors, log
from rr.errors import RRError
from rr.options import Request
from rr.specs import RUN_OPTIONS

from .options import add_measured


def add_arguments(parser) -> None:
    add_run(parser, many=True)
    add_machine(parser)
    add_measured(parser)
    parser.add_argument(
        "--hours",
        type=float,
        help="time limit: no run is started that would not finish in time; at the end the "
        "running ones save and stop",
    )
    parser.add_argument(
        "--out",
        default="runs",
        help="folder of runs (default: runs); sweeps with the same folder share the work",
    )
    parser.add_argument(
        "--runner",
        default="papermill",
        help="papermill: each run is an executed notebook, its report; direct: rr train "
        "(default: papermill)",
    )
    parser.add_argument(
        "--notebook",
        metavar="PATH",
        help="for papermill (default: the checkout's report of a run)",
    )
    parser.add_argument(
        "--engine", default="local", help="local, or ray: a running cluster (default: local)"
    )
    parser.add_argument(
        "--jobs",
        type=int,
        help="runs at a time; GPUs are shared round robin "
        "(default: one per GPU, one without a GPU; ray: as many as the cluster holds)",
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=1,
        metavar="N",
        help="processes per run, by torchrun, one GPU each, for a model larger than a GPU; needs "
        "--runner direct (default: 1)",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the command of each run, one per line, and start nothing",
    )
    ray = parser.add_argument_group("with --engine ray")
    ray.add_argument("--address", help="of the cluster (default: the one this machine is part of)")
    ray.add_argument(
        "--gpu-fraction",
        type=float,
        metavar="F",
        help="GPUs per run, 0.5 for two runs on one (default: 1 where the cluster has any)",
    )
    ray.add_argument(
        "--cpus-per-cell",
        type=int,
        metavar="N",
        help="cores per run (default: one per process)",
    )


def run(args) -> None:
    if args.dry_run:
        listed = _listed(args)
        for words in listed["commands"]:
            line = shlex.join(words)
            if args.runner == "papermill":  # it creates no folders; words[2] is its report
                home = Path(words[2].replace("{{", "{").replace("}}", "}")).parent
                line = f"mkdir -p {shlex.quote(str(home))} && {line}"
            print(line)
        for line in listed["notes"]:
            log(line)
        return
    from rrstudy.sweep import sweep

    plan = _plan(args, log)
    sweep(
        plan,
        args.out,
        machine=machine(args),
        hours=_hours(args, plan),
        resume_command=args.command,
        **pick(
            args,
            (
                "runner",
                "engine",
                "jobs",
                "processes",
                "notebook",
                "address",
                "gpu_fraction",
                "cpus_per_cell",
            ),
        ),
    )
    print(args.out)


def _plan(args, say: Callable[[str], None]) -> list:
    """The cells of the sweep."""
    from rrstudy.sweep import cells

    with locate_errors(*(args.rule or ()), *(args.values or ())):
        return cells(pick(args, RUN_OPTIONS), say)


def _hours(args, plan: list):
    """The time limit, None without one."""
    if args.hours is None:
        if args.measured:
            raise RRError("--measured needs --hours: it estimates which runs finish in time")
        return None
    from rrstudy.sweep import Hours

    hours = Hours(args.hours)
    if args.measured:
        from rrstudy.perf.budget import expected, read_bench

        hours.expected = expected(read_bench(args.measured), [cell.run for cell in plan])
    return hours


def _listed(args) -> dict[str, list]:
    """The command of each run, and what is said beside them."""
    from rr.training.context import check_request
    from rrstudy.sweep import Runner, commands
    from rrstudy.sweep.start import check_engine

    notes = []
    plan = _plan(args, notes.append)
    hours = _hours(args, plan)
    runner = Runner(args.runner, Path(args.out), machine(args), args.processes, args.notebook)
    ray = pick(args, ("address", "gpu_fraction", "cpus_per_cell"))
    check_engine(args.engine, ray)
    check_request(Request(**runner.machine), here=False)  # the commands may run elsewhere
    listed = commands(plan, runner)
    if hours is not None:
        notes.append("rr: this lists all runs; rr plan estimates which of them fit the hours")
    return {"commands": listed, "notes": notes}
