"""`rr rules`: every registered residual and value rule."""

from .output import add_json, print_columns, print_json


def add_arguments(parser) -> None:
    add_json(parser)


def run(args) -> None:
    from ..data.cache import cached_value, code_version

    # counted on small models, which takes torch; the same until the code is another
    rows = cached_value("rules", "registered", code_version(), _described)
    if args.json:
        return print_json(rows)
    table = [("name", "kind", "params per block", "at the start", "source")]
    for row in rows:
        start = "–" if row["coefficient"] is None else f"{row['coefficient']:.4g}"
        cost = row["cost"]["params_per_block"]
        table.append((row["name"], row["kind"], cost, start, row["source"]))
    print_columns(table)


def _described() -> list[dict]:
    from ..model.ladder import describe

    return describe()
