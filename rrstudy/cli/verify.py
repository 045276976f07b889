"""`rr verify`: a record run again on this machine, and how far the two agree."""

from pathlib import Path

from rr.cli.output import locate_errors
from rr.cli.sample import add_own_rules


def add_arguments(parser) -> None:
    parser.add_argument("record", help="an id or its first letters, or a finished run's folder")
    parser.add_argument(
        "--records", type=Path, help="where ids are looked up (default: data/measured)"
    )
    parser.add_argument("--corpus", help="where the text is, if not where the record says")
    parser.add_argument("--tokenizer", help="where the tokenizer is, likewise")
    parser.add_argument("--steps", type=int, help="only the first of them, by training loss")
    parser.add_argument("--device", help="cpu, cuda or mps, if not that of the record")
    add_own_rules(parser)


def run(args) -> int:
    from rr import DATA

    from .. import verify

    record = verify.find(args.record, args.records or DATA / "measured")
    names = ("corpus", "tokenizer", "steps", "device")
    with locate_errors(*args.rule):
        given = {name: getattr(args, name) for name in names}
        verdict = verify.verify(record, **given, allow_rule=args.rule)
    for line in verdict.lines():
        print(line)
    print(verdict)
    return 0 if verdict.agrees else 3
