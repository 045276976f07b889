"""A figure laid out again for a phone, with letters of the same size.

Panels that stand beside each other stand below each other, long names of rows stand above their
rows, and names of lines that would take the panel's room become a legend below it.
"""

import pickle
import re
import textwrap
import warnings
from collections.abc import Iterable
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox

WIDTH = 3.6  # inches
BESIDE = 0.3  # share of the width that names beside a panel may take
ROW = 0.42  # inches of a row that has its name above it
END = "end"  # gid of the name of a line at its end
NUMBER = re.compile(r"[−+±<≤]?[\d.,]+ ?[%×kMG]?")


def phone(fig: Figure) -> Figure | None:
    """A copy of the figure, WIDTH inches wide, which pyplot does not show; the figure stays.

    None where it cannot be copied, as with a formatter that is a lambda: matplotlib copies figures
    by pickling them.
    """
    try:
        fig = pickle.loads(pickle.dumps(fig))
    except (pickle.PicklingError, AttributeError, TypeError):
        return None
    plt.close(fig)  # a copy of one of pyplot's figures is one, too
    panels = [ax for ax in fig.axes if ax.get_label() != "<colorbar>"]
    rows = _stack(fig, panels)
    height = fig.get_size_inches()[1]
    fig.set_size_inches(WIDTH, height * rows)
    tall = [_names_above(fig, ax) for ax in panels]
    if any(tall):
        fig.set_size_inches(WIDTH, sum(own or height for own in tall))
    named = [handle for ax in panels for handle in _ends_below(fig, ax)]
    if named:
        once = {(handle.get_label(), handle.get_color()): handle for handle in reversed(named)}
        fig.legend(handles=[*reversed(once.values())], loc="outside lower center")
    of_panels = [legend for ax in panels if (legend := ax.get_legend())]
    for legend in (*fig.legends, *of_panels):
        _fit(fig, legend)
    _place(fig)
    for ax in panels:
        frame = ax.get_window_extent()
        _wrap(ax.xaxis, frame.width)
        _wrap(ax.yaxis, frame.height)
        _hide_every_other(ax)
        _hide_covered(ax)
    return fig


def _stack(fig: Figure, panels: list[Axes]) -> int:
    """Put panels in one row of a grid below each other; by how much the figure grows."""
    specs = [spec for ax in panels if (spec := ax.get_subplotspec()) is not None]
    places = sorted({(spec.rowspan.start, spec.colspan.start) for spec in specs})
    rows = len({row for row, _ in places})
    if len(specs) < len(panels) or len(places) < 2 or len(places) == rows:
        return 1
    grid = GridSpec(len(places), 1, figure=fig)
    for i, (ax, spec) in enumerate(zip(panels, specs, strict=True)):
        ax.set_subplotspec(grid[places.index((spec.rowspan.start, spec.colspan.start))])
        for other in panels[:i]:
            if ax.get_shared_y_axes().joined(ax, other):
                ax.tick_params(axis="y", labelleft=True)
                ax.set_ylabel(ax.get_ylabel() or other.get_ylabel())
                break
    return len(places) // rows


def _place(fig: Figure) -> None:
    """Lay the figure out, to be measured; what is still too wide for it may leave no room."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "constrained_layout not applied")
        fig.draw_without_rendering()


def _size(text: Text) -> Bbox:
    """Where the text stands, in inches from the lower left corner."""
    return text.get_window_extent().transformed(text.figure.dpi_scale_trans.inverted())


def _widest(texts: Iterable[Text]) -> float:
    return max((_size(text).width for text in texts), default=0)


def _names_above(fig: Figure, ax: Axes) -> float:
    """Write long names of rows above their rows; the inches the panel then needs, 0 for as many."""
    _place(fig)
    low, high = sorted(ax.get_ylim())
    names = [one for one in ax.get_yticklabels() if one.get_text() and one.get_visible()]
    names = [one for one in names if low <= one.get_position()[1] <= high]
    if _widest(names) < BESIDE * WIDTH:
        return 0
    at = sorted(name.get_position()[1] for name in names)
    apart = min((b - a for a, b in pairwise(at)), default=high - low)
    bars = [bar.get_height() for row in ax.containers for bar in getattr(row, "patches", ())]
    thick = max(bars, default=0) / apart  # of a bar, in rows: its name stands above it
    row = ROW + 0.5 * ROW * thick
    for name in names:
        ax.annotate(
            name.get_text(),
            (0, name.get_position()[1]),
            (2, 36 * row * thick + 1 if thick else 5),
            xycoords=ax.get_yaxis_transform(),
            textcoords="offset points",
            color=name.get_color(),
            fontsize=name.get_fontsize(),
            fontweight=name.get_fontweight(),
            va="bottom",
            annotation_clip=False,
        )
    ax.tick_params(axis="y", labelleft=False, length=0)
    ax.set_ylabel("")
    return row * (high - low) / apart + 0.8


def _ends_below(fig: Figure, ax: Axes) -> list[Line2D]:
    """Take away names of lines that take the panel's room; what a legend below names them by."""
    _place(fig)
    ends = [one for one in ax.texts if isinstance(one, Annotation) and one.get_gid() == END]
    ends.sort(key=lambda one: -_size(one).y0)  # as they stand, from the top
    if _widest(ends) < BESIDE * WIDTH:
        return []
    handles = []
    for end in ends:
        handle = Line2D([], [], color=end.get_color())
        for line in ax.lines:
            points = np.asarray(line.get_xydata())
            if len(points) and tuple(points[-1]) == tuple(end.xy):
                handle.update_from(line)
        handle.set_label(end.get_text())
        handles.append(handle)
        end.remove()
    ax.set_xlim(right=_beyond(ax, max(end.xy[0] for end in ends)))  # no room for names is needed
    return handles


def _beyond(ax: Axes, x: float) -> float:
    """A little right of x, or the present end of the axis where that is nearer."""
    place = ax.transAxes.inverted().transform(ax.transData.transform((x, ax.get_ylim()[0])))[0]
    corner = ax.transAxes.transform((min(place + 0.03, 1), 0))
    return ax.transData.inverted().transform(corner)[0]


def _fit(fig: Figure, legend: Legend) -> None:
    """Put a legend that is too wide below the figure, in as many columns as fit."""
    _place(fig)
    room = WIDTH * 0.97
    if legend.axes is not None:
        room = legend.axes.get_window_extent().width / fig.dpi * 0.6 * 0.97
    if legend.get_window_extent().width / fig.dpi <= room:
        return
    words = legend.get_texts()
    columns = max(1, int(WIDTH / (_widest(words) + 0.5)))
    title = legend.get_title().get_text() or None
    legend.remove()
    fig.legend(
        [handle for handle in legend.legend_handles if handle is not None],
        [word.get_text() for word in words],
        loc="outside lower center",
        ncols=columns,
        title=title,
    )


def _wrap(axis: Axis, room: float) -> None:
    """Break the words of an axis that are longer than it is."""
    box, words = axis.label.get_window_extent(), axis.label.get_text()
    long = max(box.width, box.height)
    if words and long > 1.1 * room:
        axis.label.set_text("\n".join(textwrap.wrap(words, max(8, int(len(words) * room / long)))))


def _hide_every_other(ax: Axes) -> None:
    """Hide every other number of the horizontal axis where two would touch."""
    shown = [one for one in ax.get_xticklabels() if one.get_visible() and one.get_text()]
    shown.sort(key=lambda one: _size(one).x0)
    if any(_size(a).x1 + 0.03 > _size(b).x0 for a, b in pairwise(shown)):
        for text in shown[1::2]:
            text.set_visible(False)


def _hide_covered(ax: Axes) -> None:
    """Hide a number inside the panel that another one covers; the data fold below has it."""
    kept: list[Bbox] = []
    for text in ax.texts:
        if not NUMBER.fullmatch(text.get_text()):
            continue
        if any(Bbox.intersection(_size(text), box) for box in kept):
            text.set_visible(False)
        else:
            kept.append(_size(text))
