"""`rr sample`: generate text with a trained run."""

from ..errors import RRError
from .output import locate_errors


def add_own_rules(parser) -> None:
    """The option `--rule` of verbs that load a run: rules in files that may be imported."""
    parser.add_argument(
        "--rule",
        nargs="+",
        default=[],
        metavar="FILE.py:CLASS",
        help="your own rules that the run was trained with; their files are imported",
    )


def add_arguments(parser) -> None:
    parser.add_argument("run", help="folder of the run")
    add_own_rules(parser)
    parser.add_argument("--prompt", default="", help="text to continue")
    parser.add_argument(
        "--loops", type=int, help="passes over the stack (default: as it was trained)"
    )
    parser.add_argument(
        "--keep-scale",
        action="store_true",
        help="with --loops: keep the scale of the trained number of passes",
    )
    parser.add_argument("--tokens", type=int, default=200, help="at most so many (default: 200)")
    parser.add_argument(
        "--temperature", type=float, default=0.8, help="0: the likeliest token (default: 0.8)"
    )
    parser.add_argument(
        "--top-k", type=int, default=40, help="sample from the k likeliest tokens (default: 40)"
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")


def run(args) -> None:
    from ..training.loading import load
    from ..training.sampling import sample

    for name, least in (("tokens", 1), ("top_k", 1), ("seed", 0)):
        if not getattr(args, name) >= least:
            option = name.replace("_", "-")
            raise RRError(f"{option} must be at least {least}, got {getattr(args, name)}")
    if args.temperature != 0 and not 1e-6 <= args.temperature < float("inf"):
        raise RRError(
            f"temperature must be 0, or a number of at least 1e-6, got {args.temperature}"
        )
    if args.seed >= 2**63:
        raise RRError(f"seed must be below 2**63, got {args.seed}")
    try:
        args.prompt.encode()
    except UnicodeEncodeError:
        raise RRError("the prompt is not UTF-8 text") from None
    with locate_errors(*args.rule):
        model, _, vocabulary = load(
            args.run, loops=args.loops, keep_scale=args.keep_scale, allow_rule=args.rule
        )
        options = (args.tokens, args.temperature, args.top_k, args.seed)
        text = sample(model, vocabulary, args.prompt, *options)
    print(text)
