"""`rr rules`: every registered residual and value rule."""

from typing import Any

from ..options import written
from .output import add_json, print_columns, print_json


def add_arguments(parser) -> None:
    add_json(parser)


def run(args) -> None:
    from ..residual.table import describe

    rows: list[dict[str, Any]] = [
        row | {"name": written(row["name"], row["kind"])} for row in describe()
    ]
    if args.json:
        return print_json(rows)
    table = [("name", "kind", "params per block", "at the start", "source", "shipped in")]
    for row in rows:
        start = "–" if row["coefficient"] is None else f"{row['coefficient']:.4g}"
        cost = row["cost"]["params_per_block"]
        shipped = row["shipped"] or "–"
        table.append((row["name"], row["kind"], cost, start, row["source"], shipped))
    print_columns(table)
