"""`rr bench`: time, throughput and memory of a training step."""

from rr.cli.options import pick
from rr.cli.output import add_json, locate_errors, log, print_columns, print_json


def add_arguments(parser) -> None:
    parser.add_argument(
        "--rung", nargs="+", default=["nano"], help="as for rr train (default: nano)"
    )
    parser.add_argument(
        "--rule",
        nargs="+",
        default=["review"],
        help="as for rr train (default: review)",
    )
    parser.add_argument(
        "--values", nargs="+", default=["own"], help="as for rr train (default: own)"
    )
    parser.add_argument(
        "--protocol",
        default="clean",
        help="whose models and precision: clean, or paper, the study's (default: clean)",
    )
    parser.add_argument(
        "--backends",
        nargs="+",
        metavar="BACKEND",
        help="reference, eager (as a short rr train on a CPU) or compiled, with options: "
        "eager:precision=tf32 (default: reference eager; on a GPU only the one that rr train "
        "takes here)",
    )
    parser.add_argument("--steps", type=int, default=5, help="timed steps per repeat (default: 5)")
    parser.add_argument(
        "--repeats", type=int, default=3, help="repeats of each case, in turns (default: 3)"
    )
    parser.add_argument("--batch", type=int, help="windows per step (default: the rung's)")
    parser.add_argument(
        "--micro-batch", type=int, help="windows at once (default: the batch on a GPU, 8 on a CPU)"
    )
    parser.add_argument("--threads", type=int, help="CPU threads (default: OMP_NUM_THREADS or all)")
    parser.add_argument("--device", help="auto, cpu or cuda (default: auto)")
    add_json(parser)


def run(args) -> None:
    with locate_errors(*args.rule, *args.values):
        _run(args)


def _run(args) -> None:
    from rrstudy.perf.benchmark import bench, table
    from rrstudy.perf.benchmark_case import arm

    names = ("steps", "repeats", "batch", "micro_batch", "threads", "device", "protocol")
    result = bench(
        args.rung, args.rule, args.backends, values=args.values, log=log, **pick(args, names)
    )
    if args.json:
        return print_json(result)
    print_columns(table(result), "lllrrrrrr")
    for row in result["over_the_standard"]:
        print(
            f"{row['rung']} {row['path']}: a step of {arm(row['rule'], row['values'])} takes "
            f"{row['time']:.3f} ({row['least']:.3f}–{row['most']:.3f}) times as long as one of "
            "standard"
        )
