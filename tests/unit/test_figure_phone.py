"""A figure laid out for a phone: narrow, whole, and the figure itself untouched."""

import re
import warnings

import matplotlib.pyplot as plt
import pytest

from rrbook import figures
from rrbook.figures.phone import WIDTH, phone
from rrbook.figures.svg import svg


@pytest.fixture(autouse=True)
def _closed():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    plt.close("all")


def words(fig):
    """Text -> (left, right, low, high) in shares of the width and height."""
    fig.draw_without_rendering()
    size = fig.bbox
    found = {}
    for text in fig.findobj(plt.Text):
        box = text.get_window_extent()
        if text.get_text() and text.get_visible() and box.width:
            edges = box.x0 / size.width, box.x1 / size.width, box.y0 / size.height
            found.setdefault(text.get_text(), []).append(edges)
    return found


def cut(shown):
    """Words that stand out of the figure at its sides; numbers beyond an axis are not drawn."""
    return {
        name: edges
        for name, found in shown.items()
        for edges in found
        if re.search("[a-z]{2}", name) and (edges[0] < -0.01 or edges[1] > 1.03)
    }


def test_panels_in_a_row_stand_below_each_other_each_with_its_axis():
    fig, axes = figures.canvas(2, height=3, sharey=True)
    for ax, words_ in zip(axes, ("left", "right"), strict=True):
        ax.plot([1, 2], [30, 40])
        ax.set_xlabel(words_)
    axes[0].set_ylabel("nats")
    before = svg(fig, data=False)
    small = phone(fig)
    assert small.get_size_inches() == pytest.approx([WIDTH, 6])
    assert plt.get_fignums() == [fig.number] and svg(fig, data=False) == before
    shown = words(small)
    assert len(shown["nats"]) == 2 and shown["left"][0][2] > shown["right"][0][2]
    assert len(shown["30"]) == 2  # the second had no numbers of its own beside the first


def test_names_of_lines_move_into_a_legend_only_where_they_take_too_much_room():
    for names, columns in ((("short", "brief"), 0), (("a rather long name of a line", "b"), 2)):
        fig, ax = figures.canvas()
        ends = []
        for i, name in enumerate(names):
            ax.plot([0, 1], [i, i + 1])
            ends.append((1, i + 1, name, figures.BLUE))
        ax.set_xlim(0, 1.6)
        figures.label_ends(ax, ends)
        small = phone(fig)
        assert sum(len(one.get_texts()) for one in small.legends) == columns
        assert (small.axes[0].get_xlim()[1] < 1.1) == bool(columns)
        assert not cut(words(small))


def test_long_names_of_rows_stand_above_their_rows():
    fig, ax = figures.canvas()
    names = [f"a name of a row that is long {i}" for i in range(12)]
    ax.barh(range(12), range(12))
    ax.set_yticks(range(12), names)
    small = phone(fig)
    shown = words(small)
    assert set(names) <= shown.keys() and small.get_size_inches()[1] > 4
    heights = [shown[name][0][2] for name in names]
    assert heights == sorted(heights) and all(shown[name][0][1] < 1 for name in names)


def test_numbers_that_touch_are_thinned_and_wide_legends_and_words_fit():
    fig, ax = figures.canvas()
    ax.plot(range(9), range(9), label="one of the lines of this figure")
    ax.plot(range(9), label="another of the lines of this figure")
    ax.set_xticks(range(9), [f"{1000 * i}.5" for i in range(9)])
    ax.set_xlabel("words that say at great length what the horizontal axis of the figure shows")
    fig.legend(loc="outside lower center", ncols=2)
    shown = words(phone(fig))
    assert sum(name.endswith(".5") for name in shown) == 5
    assert not cut(shown)


def test_the_svg_holds_both_with_names_of_their_own_and_none_of_what_cannot_be_copied():
    fig, ax = figures.canvas()
    ax.plot([0, 1], [0, 1], "o-")
    text = svg(fig)
    names = re.findall(r'\bid="([^"]+)"', text)
    assert text.count('class="rr-phone" display="none"') == 1 and len(names) == len(set(names))
    for name in re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text):
        assert "".join(name) in names
    ax.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    assert phone(fig) is None and "rr-phone" not in svg(fig)
