"""The data of a figure as tables, for readers who do not see it.

A plotting function says itself what it draws, by `keep`. A panel's words (title, labels of its
axes) are read when the figure is stored, since a notebook may set them last. Lines across a whole
figure are left out: they are no data, and the caption names them.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from matplotlib.axes import Axes
from matplotlib.figure import Figure

ROWS = 1000  # that a table keeps at most; a longer one keeps every second, third, …
PLACE, VALUE = "name", "value"  # heads of columns that no axis names
Columns = dict[str, dict[Any, list[str]]]  # {column: {place: its values}}
KEPT: WeakKeyDictionary[Axes, tuple[Columns, bool]] = WeakKeyDictionary()


def keep(ax: Axes, places: Iterable, columns: Mapping[Any, Iterable], down: bool = False) -> None:
    """Keep what was drawn as rows of the panel's table: {column: a value for each place}.

    places: numbers, words or bins (low, high), on the x axis; on the y axis, from the top, if
    `down`. A value is a number, words, an interval (low, high) or a list of several; None and NaN
    are an empty cell. The column "" has the name of the other axis. Further calls for the same axes
    add rows and columns; values of one column at one place stand in one cell.
    """
    (kept, _), places = KEPT.setdefault(ax, ({}, down)), list(places)
    for name, values in columns.items():
        cells = kept.setdefault(str(name), {})
        for place, value in zip(places, values, strict=True):
            cells.setdefault(place, []).extend(filter(None, [text(value)]))


def keep_row(ax: Axes, place: Any, cells: Mapping[str, Any], down: bool = False) -> None:
    """One row, {column: value}; otherwise as `keep`."""
    keep(ax, [place], {name: [value] for name, value in cells.items()}, down)


def number(value: float) -> str:
    """Four digits, or all of a whole number."""
    value = float(value) + 0.0  # no −0
    return f"{value:.0f}" if value.is_integer() and abs(value) < 1e9 else f"{value:.4g}"


def text(value: Any) -> str:
    """A place or a value as the table shows it."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "; ".join(filter(None, map(text, value)))
    if isinstance(value, tuple):
        low, high = text(min(value)), text(max(value))
        return low if low == high else f"{low} to {high}"
    return "" if value is None or value != value else number(value)


def _words(label: str) -> str:
    """A label as one line, without the marks of mathematics."""
    return " ".join(re.sub(r"[$\\{}]", "", label).split())


def _axis_label(ax: Axes, side: str) -> str:
    """The axis's label, else that of an axes which shares it, else the figure's."""
    shared = getattr(ax, f"get_shared_{side}_axes")().get_siblings(ax)
    names = [getattr(one, f"get_{side}label")() for one in (ax, *shared)]
    of_figure = getattr(ax.figure, f"get_sup{side}label")()
    return _words(next(filter(None, [*names, of_figure]), ""))


def _places(columns: Columns) -> list:
    """Where there is a value: numbers sorted, words and bins in the order of the calls."""
    every = dict.fromkeys(place for cells in columns.values() for place in cells)
    names = [one for one in every if any(cells.get(one) for cells in columns.values())]
    return names if any(isinstance(one, str | tuple) for one in names) else sorted(names)


def as_json(fig: Figure) -> str:
    """[{title, head, rows}, …]: a table a panel; one, where panels differ in their columns only."""
    tables: list[tuple[str, str, list, Columns]] = []
    for ax in (ax for ax in fig.axes if ax in KEPT):
        kept, down = KEPT[ax]
        over, what = (_axis_label(ax, side) for side in ("yx" if down else "xy"))
        kept = {name: cells for name, cells in kept.items() if any(cells.values())}
        in_head = "" in kept or what == over  # by the table's head
        title = ": ".join(filter(None, [_words(ax.get_title()), "" if in_head else what]))
        columns = {_words(name) or what or VALUE: cells for name, cells in kept.items()}
        if not (places := _places(columns)):
            continue  # nothing has a value
        for *same, others in tables:
            if same == [title, over, places] and not others.keys() & columns.keys():
                others |= columns
                break
        else:
            tables.append((title, over, places, columns))
    made = []
    for title, over, places, columns in tables:
        rows = [
            [_words(text(place)), *("; ".join(cells.get(place, [])) for cells in columns.values())]
            for place in places[:: -(-len(places) // ROWS)]
        ]
        made.append({"title": title, "head": [over or PLACE, *columns], "rows": rows})
    return json.dumps(made, ensure_ascii=False, separators=(",", ":"))
