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
