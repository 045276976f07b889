"""`rr ladder`: the model sizes with GPT-2's tokenizer, and the rules that a protocol compares."""

from rr.cli.output import add_json, print_columns, print_json
from rr.errors import RRError, nearest
from rr.specs import PROTOCOLS


def add_arguments(parser) -> None:
    parser.add_argument(
        "--protocol", default="clean", help="clean, or paper: as the study trained (default: clean)"
    )
    add_json(parser)


def run(args) -> None:
    from rrstudy.perf.ladder import table

    if args.protocol not in PROTOCOLS:
        raise RRError(f"unknown protocol {args.protocol!r}: {nearest(args.protocol, PROTOCOLS)}")
    rows = table(args.protocol)
    if args.json:
        return print_json(rows)
    lines = [tuple(rows[0])]
    for row in rows:
        lines.append(tuple(f"{x:,}" if isinstance(x, int) else x for x in row.values()))
    print_columns(lines, "llrrrrrrrrr")
