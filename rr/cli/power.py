"""`rr power`: how many seeds a difference needs, before anything is trained."""

from .options import add_design
from .output import add_json, print_json


def add_arguments(parser) -> None:
    parser.add_argument(
        "--sd",
        type=float,
        required=True,
        help="spread: of the differences (paired), of an arm's losses over seeds (unpaired)",
    )
    parser.add_argument("--effect", type=float, help="true difference to find, in the unit of --sd")
    parser.add_argument("--seeds", type=int, metavar="N", help="seeds per arm that can be trained")
    parser.add_argument(
        "--comparisons", type=int, default=1, metavar="M", help="tests in the study (default: 1)"
    )
    add_json(parser)
    add_design(parser)


def run(args) -> None:
    from ..stats.command import power_in_words, power_of_plan

    rows = power_of_plan(args.sd, args.effect, args.seeds, args.design, args.comparisons)
    if args.json:
        print_json(rows)
    else:
        print(power_in_words(rows))
