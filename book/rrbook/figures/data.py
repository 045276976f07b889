"""The data of a figure as tables, read from what is drawn, for readers who do not see it.

A table has a row for each place on one axis (a category, a step, a bin) and a column for each
series: what a line, a bar, a point or a band says there. An interval stands as "a to b", several
values of one series at one place are separated by semicolons. Lines across the whole figure are
left out: they are no data, and the caption names them.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeGuard

import numpy as np
from matplotlib import colors
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import (
    Collection,
    LineCollection,
    PathCollection,
    PolyCollection,
    QuadMesh,
)
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import StepPatch
from matplotlib.text import Annotation, Text
from matplotlib.ticker import FixedLocator
from numpy.typing import ArrayLike

from .style import CARD, readable

ROWS = 1000  # that a table keeps at most; a longer one keeps every second, third, …
PLACE, VALUE = "name", "value"  # heads of columns that no axis names
MARKS = "marks"
STROKES = {"--": "dashed", ":": "dotted", "-.": "dash-dotted", "None": MARKS}
Place = float | tuple[float, float]  # on the axis of the rows: a point, or a bin


@dataclass
class Table:
    """Rows in the order of the figure: (place, {column: text})."""

    title: str
    over: str  # what the places are
    rows: list[tuple[str, dict[str, str]]]

    def columns(self) -> list[str]:
        return list(dict.fromkeys(column for _, cells in self.rows for column in cells))


def number(value: float) -> str:
    """Four digits, or all of a whole number."""
    value = float(value) + 0.0  # no −0
    return f"{value:.0f}" if value.is_integer() and abs(value) < 1e9 else f"{value:.4g}"


def span(values: tuple[float, ...]) -> str:
    low, high = number(min(values)), number(max(values))
    return low if low == high else f"{low} to {high}"


class Scale:
    """An axis and the words at its ticks."""

    def __init__(self, axis: Axis) -> None:
        self.words: dict[float, str] = {}
        self.straight: tuple[float, float] | None = None  # of ticks that show another number
        if isinstance(axis.get_major_locator(), FixedLocator):
            places = [float(place) for place in axis.get_majorticklocs()]
            found = axis.get_major_formatter().format_ticks(places)
            self.words = {p: _words(w) for p, w in zip(places, found, strict=True) if w}
        places = sorted(self.words)
        lettered = any(c.isalpha() for word in self.words.values() for c in word)
        steps = {round(high - low, 9) for low, high in pairwise(places)}
        self.categories = lettered and axis.get_scale() == "linear" and steps <= {1.0}
        if not lettered and len(places) > 1:
            try:
                shown = [float(self.words[place].replace("−", "-")) for place in places]
            except ValueError:
                return
            slope = (shown[-1] - shown[0]) / (places[-1] - places[0])
            straight = slope, shown[0] - slope * places[0]
            if np.allclose(np.polyval(straight, places), shown):
                self.straight = straight

    def at(self, place: Place) -> str:
        """A place as the figure's reader would name it."""
        if isinstance(place, tuple):
            return span(place)
        near = min(self.words, key=lambda tick: abs(tick - place), default=None)
        if near is not None:
            reach = 0.45 if self.categories else 1e-6 * max(abs(near), 1e-300)
            if abs(near - place) <= reach:
                return self.words[near]
        return number(float(np.polyval(self.straight, place)) if self.straight else place)


@dataclass
class Series:
    """What one artist says: at each place a value or an interval."""

    name: str
    points: list[tuple[Place, tuple[float, ...]]]
    kind: str = ""  # "interval", "band" or a stroke, which stand in a column of their own
    texts: list[str] = field(default_factory=list)  # in place of the values


def _hex(colour: Any) -> str | None:
    return colors.to_hex(colour) if colors.is_color_like(colour) else None


def _colour(artist: object) -> str | None:
    """The one colour that an artist is seen in; None where it has several."""
    names = ["get_color", "get_facecolor", "get_edgecolor"]
    if isinstance(artist, Line2D) and (
        np.size(artist.get_xdata()) == 1 or artist.get_linestyle() == "None"
    ):
        names = ["get_markerfacecolor", "get_markeredgecolor"]
    for name in names:
        found: Any = getattr(artist, name, lambda: None)()
        if np.ndim(found) == 2:  # one for each of its parts
            found = found[0] if len({tuple(one) for one in found}) == 1 else None
        if found is not None and _hex(found) not in (None, CARD) and colors.to_rgba(found)[3]:
            return _hex(found)
    return None


def _label(artist: object) -> str:
    label = str(getattr(artist, "get_label", str)())
    return "" if label.startswith("_") else _words(label)


def _words(text: str) -> str:
    """A label as one line, without the marks of mathematics."""
    return " ".join(re.sub(r"[$\\{}]", "", text).split())


def _named(words: str) -> bool:
    """Whether words name a series; a number beside a mark does not."""
    return words[:1].isalpha()


def _anchored(text: Text) -> TypeGuard[Annotation]:
    """Whether the text belongs to a point of the data."""
    return isinstance(text, Annotation) and text.xycoords == "data"


class Panel:
    """One axes: its scales, the names of its series, what is drawn on it."""

    def __init__(self, ax: Axes) -> None:
        self.ax, self.x, self.y = ax, Scale(ax.xaxis), Scale(ax.yaxis)
        bars = [one for one in ax.containers if isinstance(one, BarContainer)]
        across = any(one.orientation == "horizontal" for one in bars)
        self.down = self.y.categories or across  # the rows are places on the y axis
        self.rows, self.values = (self.y, self.x) if self.down else (self.x, self.y)
        self.hues = self._hues()

    def _hues(self) -> dict[str, str]:
        """Colours that stand for one name: by a legend, or by lines with names of their own."""
        named: dict[str, set[str]] = {}
        legends = [self.ax.get_legend(), *self.ax.figure.legends]
        for legend in filter(None, legends):
            for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True):
                if hue := _colour(handle):
                    named.setdefault(hue, set()).add(_words(text.get_text()))
        if not self.down:
            for artist in (*self.ax.lines, *self.ax.collections, *self.ax.patches):
                if _label(artist) and (hue := _colour(artist)):
                    named.setdefault(hue, set()).add(_label(artist))
            for text in self.ax.texts:
                if isinstance(text, Annotation) and _named(text.get_text()):
                    hue = _hex(text.get_color())
                    for artist in (*self.ax.lines, *self.ax.patches):
                        drawn = _colour(artist)
                        if drawn and hue in (drawn, _hex(readable(drawn))) and drawn not in named:
                            named.setdefault(drawn, set()).add(_words(text.get_text()))
        return {hue: names.pop() for hue, names in named.items() if len(names) == 1}

    def _name(self, artist: object) -> str:
        if label := _label(artist):
            return label
        if isinstance(artist, Line2D) and np.size(artist.get_xdata()):
            end = np.asarray(artist.get_xydata())[-1]
            for text in self.ax.texts:
                if _anchored(text) and _named(text.get_text()) and np.allclose(text.xy, end):
                    return _words(text.get_text())
        return self.hues.get(_colour(artist) or "", "")

    def _turned(self, points: ArrayLike) -> list[tuple[float, float]]:
        """Points as (place, value); what is not finite is not drawn."""
        order = (1, 0) if self.down else (0, 1)
        finite = np.asarray(points, float).reshape(-1, 2)
        return [(float(p[order[0]]), float(p[order[1]])) for p in finite if np.isfinite(p).all()]

    def series(self) -> Iterator[Series]:
        """What each artist says that stands in the axes' own coordinates."""
        ax = self.ax
        for line in ax.lines:
            if line.get_transform() == ax.transData:
                # lines that one name stands for are told apart by their strokes, as in the figure
                stroke, name = STROKES.get(str(line.get_linestyle()), ""), self._name(line)
                kind = "" if _label(line) or not name else stroke
                yield self._run(name, line.get_xydata(), kind, joined=stroke != MARKS)
            elif line.get_marker() == "x":  # a cross at the edge: a run without a value
                points: list[tuple[Place, tuple[float, ...]]] = []
                points += [(place, (value,)) for place, value in self._turned(line.get_xydata())]
                yield Series(self._name(line), points, texts=["diverged"] * len(points))
        for one in ax.collections:
            yield from self._collection(one)
        for container in ax.containers:
            if isinstance(container, BarContainer):
                yield from self._bars(container)
        for patch in ax.patches:
            if isinstance(patch, StepPatch):
                shown, edges, _ = patch.get_data()
                bins = [*zip(pairwise(map(float, edges)), shown, strict=True)]
                yield Series(self._name(patch), [(place, (float(v),)) for place, v in bins])

    def _run(self, name: str, xy: ArrayLike, kind: str = "", joined: bool = True) -> Series:
        """A line, or points: two that are joined at one place are an interval."""
        points = self._turned(xy)
        if joined and len(points) == 2 and points[0][0] == points[1][0]:
            return Series(name, [(points[0][0], (points[0][1], points[1][1]))], "interval")
        return Series(name, [(place, (value,)) for place, value in points], kind)

    def _collection(self, one: Collection) -> Iterator[Series]:
        name = self._name(one)
        if isinstance(one, PathCollection):
            if one.get_offset_transform() == self.ax.transData:
                yield self._run(name, one.get_offsets(), joined=False)
        elif isinstance(one, LineCollection) and one.get_transform() == self.ax.transData:
            for segment in one.get_segments():
                yield self._run(name, segment)
        elif isinstance(one, PolyCollection) and one.get_transform() == self.ax.transData:
            for path in one.get_paths():
                heights: dict[float, list[float]] = {}
                for place, value in self._turned(path.vertices):
                    heights.setdefault(place, []).append(value)
                yield Series(name, [(p, tuple(v)) for p, v in sorted(heights.items())], "band")

    def _bars(self, container: BarContainer) -> Iterator[Series]:
        """Lengths of bars; from where to where, of one that begins neither at 0 nor on another."""
        ends = [self._bar(bar) for other in self.ax.containers
                if isinstance(other, BarContainer) for bar in other.patches]  # fmt: skip
        for bar in container.patches:
            place, start, end = self._bar(bar)
            stacked = any(np.allclose((p, e), (place, start)) for p, s, e in ends if s != e)
            said = (end - start,) if start == 0 or stacked else (start, end)
            yield Series(_label(container) or self._name(bar), [(place, said)])

    def _bar(self, bar) -> tuple[float, float, float]:
        x, y, width, height = bar.get_x(), bar.get_y(), bar.get_width(), bar.get_height()
        if self.down:
            return float(y + height / 2), float(x), float(x + width)
        return float(x + width / 2), float(y), float(y + height)

    def notes(self) -> Iterator[tuple[float, str]]:
        """What is written in the figure, with its place."""
        for text in self.ax.texts:
            at = text.xy if isinstance(text, Annotation) else text.get_position()
            inside = _anchored(text) or text.get_transform() == self.ax.transData
            if inside and text.get_text().strip():
                yield float(at[1] if self.down else at[0]), _words(text.get_text())

    def table(self, title: str, over: str, what: str) -> Table | None:
        cells: dict[str, dict[str, list[str]]] = {}
        first: dict[str, float] = {}
        # once what is drawn twice: an area and its edge, a line and its marks
        drawn = {(one.name, tuple(one.points)): one for one in self.series()}
        known = {point for one in drawn.values() if len(one.points) > 1 for point in one.points}
        drawn = {
            key: one  # without rings and stars about a point
            for key, one in drawn.items()
            if len(one.points) > 1 or one.texts or not known.issuperset(one.points)
        }
        names: dict[str, set[str]] = {}  # in each row
        for one in drawn.values():
            for place, _ in one.points:
                names.setdefault(self.rows.at(place), set()).add(one.name)
        # what a row of categories holds is named by the row, and by its colour only if it is parted
        parted = not self.rows.categories or any(len(found - {""}) > 1 for found in names.values())
        for one in drawn.values():
            kind = one.kind if parted or one.kind not in STROKES.values() else ""
            column = ", ".join(filter(None, (one.name if parted and one.name else what, kind)))
            texts = one.texts or [span(values) for _, values in one.points]
            for (place, _), text in zip(one.points, texts, strict=True):
                row = self.rows.at(place)
                first.setdefault(row, place[0] if isinstance(place, tuple) else place)
                cells.setdefault(row, {}).setdefault(column, []).append(text)
        if self.rows.categories:
            drawn_in = {*cells}
            for place, words in self.notes():
                row = self.rows.at(place)
                # beside a bar or a mark a number says what the table says
                if any(c.isalpha() for c in words) or row not in drawn_in:
                    first.setdefault(row, place)
                    cells.setdefault(row, {}).setdefault("note", []).append(words)
        sign = -1 if self.down and not self.ax.yaxis_inverted() else 1
        order = sorted(cells, key=lambda row: sign * first[row])
        rows = [(row, {c: "; ".join(v) for c, v in cells[row].items()}) for row in order]
        return Table(title, over, rows) if rows else None

    def maps(self, title: str, over: str) -> Iterator[Table]:
        """A table for each map of colours; words in its cells stand for the numbers behind them."""
        for drawn in (*self.ax.images, *self.meshes()):
            grid = np.ma.filled(np.ma.asarray(drawn.get_array(), float), np.nan)
            if grid.ndim != 2:  # a picture
                continue
            across, down = _centres(drawn, grid.shape)
            written = {text.get_position(): text.get_text() for text in self.ax.texts}
            rows: list[tuple[str, dict[str, str]]] = []
            for y, values in zip(down, grid, strict=True):
                cells = {
                    self.x.at(x): written.get((x, y), number(value))
                    for x, value in zip(across, values, strict=True)
                    if np.isfinite(value)
                }
                rows.append((self.y.at(y), cells))
            yield Table(title, over, rows)

    def meshes(self) -> list[QuadMesh]:
        return [one for one in self.ax.collections if isinstance(one, QuadMesh)]


def _centres(drawn: AxesImage | QuadMesh, shape: tuple[int, ...]) -> tuple[list, list]:
    """Where the cells of a map have their middles, on the x axis and on the y axis."""
    if isinstance(drawn, QuadMesh):
        corners = np.asarray(drawn.get_coordinates())
        x, y = corners[0, :, 0], corners[:, 0, 1]
    else:
        left, right, low, high = drawn.get_extent()
        if drawn.origin == "upper":
            low, high = high, low
        x, y = np.linspace(left, right, shape[1] + 1), np.linspace(low, high, shape[0] + 1)
    return ((x[1:] + x[:-1]) / 2).tolist(), ((y[1:] + y[:-1]) / 2).tolist()


def _axis_label(ax: Axes, side: str) -> str:
    """The axis's label, else that of an axes which shares it, else the figure's."""
    shared = getattr(ax, f"get_shared_{side}_axes")().get_siblings(ax)
    found = [getattr(one, f"get_{side}label")() for one in (ax, *shared)]
    of_figure = getattr(ax.figure, f"get_sup{side}label", str)()
    return _words(next(filter(None, [*found, of_figure]), ""))


def tables(fig: Figure) -> list[Table]:
    """A table for each of the figure's axes; one table where their rows are the same."""
    found: list[Table] = []
    for ax in fig.axes:
        if ax.get_label() == "<colorbar>" or not ax.get_visible():
            continue
        panel = Panel(ax)
        title = _words(ax.get_title() or ax.get_title("left"))
        labels = _axis_label(ax, "x"), _axis_label(ax, "y")
        over, what = labels[::-1] if panel.down else labels
        if ax.images or panel.meshes():
            found += panel.maps(title or f"{labels[1]}, by {labels[0]}", labels[1] or PLACE)
        elif table := panel.table(title, over or PLACE, what or VALUE):
            if not title and what not in table.columns():
                table.title = what
            found.append(table)
    return [_joined(found)] if _alike(found) else found


def _named_column(table: Table, column: str) -> str:
    """The column's name where tables are joined: the panel's, where that says it."""
    alone = len(table.columns()) == 1
    if not table.title or column == table.title:
        return column
    return table.title if alone else f"{table.title}: {column}"


def _alike(found: list[Table]) -> bool:
    """Whether several tables have the same rows, and columns whose names stay apart."""
    rows = {(table.over, tuple(row for row, _ in table.rows)) for table in found}
    names = [_named_column(table, column) for table in found for column in table.columns()]
    return len(found) > 1 and len(rows) == 1 and len({*names}) == len(names)


def _joined(found: list[Table]) -> Table:
    rows: list[tuple[str, dict[str, str]]] = [(row, {}) for row, _ in found[0].rows]
    for table in found:
        for (_, cells), (_, more) in zip(rows, table.rows, strict=True):
            cells.update({_named_column(table, column): text for column, text in more.items()})
    return Table("", found[0].over, rows)


def as_json(fig: Figure) -> str:
    """The tables as JSON: a list of {title, head, rows}."""
    made = []
    for table in tables(fig):
        columns, every = table.columns(), -(-len(table.rows) // ROWS)
        rows = [[row, *(cells.get(c, "") for c in columns)] for row, cells in table.rows[::every]]
        head = [table.over, *columns]
        made.append({"title": table.title, "head": head, "rows": rows})
    return json.dumps(made, ensure_ascii=False, separators=(",", ":"))
