"""`rr train`: train one run, or resume it."""

import os

from ..config import RunFailed
from .options import RUN, add_machine, add_run, pick
from .own_rules import locate_errors


def add_arguments(parser) -> None:
    add_run(parser)
    add_machine(parser)
    parser.add_argument("--out", required=True, help="folder of runs; this one is OUT/<id>")


def run(args) -> None:
    from ..training.loggers import named
    from ..training.run_folder import finished, plan
    from ..training.trainer import train

    with locate_errors(args.rule, args.values):
        run = plan(
            args.rung,
            args.rule,
            corpus=args.corpus,
            tokenizer=args.tokenizer,
            **pick(args, RUN),
        )
        folder = train(
            run,
            args.out,
            threads=args.threads,
            device=args.device,
            save_every=args.save_every,
            micro_batch=args.micro_batch,
            parallel=args.parallel,
            path=args.path,
            charts=named(args.log),
        )
    if os.environ.get("RANK", "0") == "0":  # one of torchrun's processes speaks for all
        print(folder)
    result = finished(folder)
    if result is not None and result["status"] == "diverged":
        raise RunFailed(f"{folder} diverged: its loss is not finite; the run is kept and marked")
