"""`rr plan`: which runs a GPU, hours or dollars pay for."""

from rr.cli.options import add_run, pick
from rr.cli.output import add_json, locate_errors, log, print_columns, print_json
from rr.specs import RUN_OPTIONS

from .options import add_measured


def add_arguments(parser) -> None:
    add_run(parser, many=True)
    add_measured(parser)
    parser.add_argument(
        "--gpu",
        metavar="NAME",
        help="H100, H200, A100, L4, T4 …; any other with --tflops and --memory "
        "(default: the one of --measured)",
    )
    parser.add_argument("--tflops", type=float, help="its dense 16-bit peak, in TFLOP/s")
    parser.add_argument("--memory", type=float, metavar="GB", help="its memory, in 10^9 bytes")
    parser.add_argument("--hours", type=float, help="GPU hours to spend (default: no limit)")
    parser.add_argument("--dollars", type=float, help="dollars to spend; needs --price")
    parser.add_argument("--price", type=float, help="dollars per GPU hour; rr keeps no prices")
    parser.add_argument(
        "--mfu",
        metavar="LO-HI",
        help="model FLOP utilisation, assumed where this GPU was not measured (default: scaled "
        "from what was measured, else 0.2-0.45)",
    )
    add_json(parser)


def run(args) -> None:
    with locate_errors(*(args.rule or ()), *(args.values or ())):
        _run(args)


def _run(args) -> None:
    from rr.training.progress import Progress
    from rrstudy.perf import budget
    from rrstudy.sweep import cells

    bench = budget.read_bench(args.measured) if args.measured else None
    gpu = budget.chosen_gpu(args.gpu, args.tflops, args.memory, bench)
    hours = budget.budget(args.hours, args.dollars, args.price)
    mfu = None if args.mfu is None else budget.mfu_range(args.mfu)
    options = pick(args, RUN_OPTIONS)
    if not any(options.values()):  # the study's own plan
        options["protocol"] = ["paper"]
    runs = [cell.run for cell in cells(options, log)]
    progress = Progress(None)

    def show(line: str) -> None:
        if progress.due():
            progress.move(line)

    rows = budget.what_fits(runs, gpu, hours, mfu, args.price, bench=bench, say=show)
    progress.close()
    limit = {}
    if hours is not None:
        limit = {"hours": f"{hours:g}", "measured": args.measured}
    command = budget.command(options, **limit)
    notes = budget.notes(rows, gpu, hours, mfu)
    if args.json:
        return print_json(
            {
                "gpu": pick(gpu, ("name", "flops", "memory", "bf16")),
                "hours": hours,
                "price": args.price,
                "mfu": mfu,
                "rows": rows,
                "notes": notes,
                "command": command,
            }
        )
    print_columns(budget.table(rows), "lrrrrrrrlr")
    for line in notes:
        print(line)
    print(f"train them: {command}")
