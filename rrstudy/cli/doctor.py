"""`rr doctor`: what this machine lacks for a sweep, before anything is paid for."""

from rr.cli.options import add_machine, add_run, machine, pick
from rr.cli.output import add_json, locate_errors, log, print_json
from rr.errors import RunFailed
from rr.options import Request
from rr.specs import RUN_OPTIONS


def add_arguments(parser) -> None:
    add_run(parser, many=True)
    add_machine(parser)
    parser.add_argument(
        "--out", default="runs", help="folder of runs, whose disk is checked (default: runs)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="take no steps, which can last two minutes"
    )
    add_json(parser)


def run(args) -> None:
    with locate_errors(*(args.rule or ()), *(args.values or ())):
        _run(args)


def _run(args) -> None:
    from dataclasses import asdict

    from rrstudy.perf.doctor import examine, rows
    from rrstudy.sweep import cells

    options = pick(args, RUN_OPTIONS)
    if not any(options.values()):  # the study's own plan
        options["protocol"] = ["paper"]
    runs = [cell.run for cell in cells(options, log)]
    request = Request(**machine(args))
    checks = examine(runs, args.out, args.device, request, not args.quick, log)
    if args.json:
        print_json([asdict(check) for check in checks])
    else:
        for mark, name, words in rows(checks):
            print(f"{mark} {name}: {words}")
    wrong = [check.name for check in checks if check.good is False]
    if wrong:
        raise RunFailed(f"not ready: {', '.join(wrong)}")
