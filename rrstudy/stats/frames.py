"""Rows as a pandas DataFrame, and back."""

from collections.abc import Iterable, Mapping, Sequence

import pandas as pd


def as_frame(rows: Sequence[Mapping]) -> pd.DataFrame:
    """A DataFrame with a column per key, in which integers stay integers beside missing values.

    Missing numbers are NaN (of integers `<NA>`); anything else that is missing is None.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    return pd.DataFrame({name: _column([row.get(name) for row in rows]) for name in names})


def _column(values: list) -> pd.Series:
    kinds = {type(value) for value in values if value is not None}
    if len(values) == sum(value is not None for value in values):
        return pd.Series(values)
    if kinds == {int}:
        return pd.Series(values, dtype="Int64")
    if kinds and kinds <= {int, float}:
        return pd.Series(values, dtype=float)
    return pd.Series(values, dtype=object)


def as_rows(frame: pd.DataFrame | Iterable[Mapping]) -> list[dict]:
    """The rows of a DataFrame as dictionaries, with None where a value is missing.

    frame: of `read_results()`, `read_table()` or `compare()`, or a part of one; a list of
    dictionaries is copied.

    Example:
        >>> import rr
        >>> from rrstudy.stats import as_rows, read_results
        >>> rows = as_rows(read_results(rr.DATA / "measured" / "mini_arms"))
        >>> rows[0]["rung"]
        'mini'
    """
    rows = frame.to_dict("records") if isinstance(frame, pd.DataFrame) else map(dict, frame)
    return [{str(name): _plain(value) for name, value in row.items()} for row in rows]


def _plain(value: object) -> object:
    """A value as Python has it; None for NaN and `<NA>`."""
    if isinstance(value, list | tuple | dict | str | bool | int):
        return value
    if pd.api.types.is_scalar(value) and pd.isna(value):  # pyright: ignore[reportGeneralTypeIssues]
        return None
    return value.item() if hasattr(value, "item") else value  # pyright: ignore[reportAttributeAccessIssue]
