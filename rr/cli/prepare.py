"""`rr prepare`: tokenise a corpus, and score it by counting."""

from .options import add_text
from .output import add_json, log, print_columns, print_json


def add_arguments(parser) -> None:
    add_text(parser, "fables", default="fables")
    add_json(parser)


def run(args) -> None:
    from ..data import baselines, open_corpus

    result = baselines(open_corpus(args.corpus, args.tokenizer, log=log))
    if args.json:
        return print_json(result)
    rows = []
    for name, value in result.items():
        rows.append((name, f"{value:,}" if isinstance(value, int) else f"{value:.4f}"))
    print_columns(rows, "lr")
