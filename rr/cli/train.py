"""`rr train`: train one run, or resume it."""

import os

from ..errors import RunFailed
from ..options import Request
from ..specs import RUN_OPTIONS
from .options import add_machine, add_run, machine, pick
from .output import locate_errors


def add_arguments(parser) -> None:
    add_run(parser)
    add_machine(parser)
    parser.add_argument("--out", required=True, help="folder of runs; this one is OUT/<id>")


def run(args) -> None:
    from ..training.planning import plan
    from ..training.run_folder import finished
    from ..training.trainer import train

    with locate_errors(args.rule, args.values):
        run = plan(**pick(args, RUN_OPTIONS))
        folder = train(run, args.out, Request(**machine(args)))
    if os.environ.get("RANK", "0") == "0":  # one of torchrun's processes speaks for all
        print(folder)
    result = finished(folder)
    if result is not None and result["status"] == "diverged":
        raise RunFailed(f"{folder} diverged: its loss is not finite; the run is kept and marked")
