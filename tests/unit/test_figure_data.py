"""The tables of a figure hold the numbers that were drawn, under the names that a reader sees."""

from urllib.parse import unquote

import figure_data
import numpy as np
import pytest
from bs4 import BeautifulSoup
from matplotlib import pyplot as plt

from rrbook import figures
from rrbook.figures.svg import svg


@pytest.fixture
def ax():
    fig, ax = figures.canvas()
    yield ax
    plt.close(fig)


def tables(ax) -> list[tuple[str, list[str], list[list[str]]]]:
    """Title, head and rows of each table that the figure's SVG holds."""
    svg_alone, found = figure_data.taken(svg(ax.figure))
    assert "<metadata" not in svg_alone
    return [(one["title"], one["head"], one["rows"]) for one in found]


def test_lines_are_columns_over_the_places_that_they_share(ax):
    series = {"standard": [1.0, 1.41421, 1.75], "review": [1.0, 0.5, -0.25]}
    figures.stream_norms(ax, [0, 1, 2], series)
    ax.axhline(0.5)  # a line across the figure is no data
    [(title, head, rows)] = tables(ax)
    assert title == "rms of the stream" and head == ["sublayer", "standard", "review"]
    assert rows == [["0", "1", "1"], ["1", "1.414", "0.5"], ["2", "1.75", "-0.25"]]


def test_categories_have_their_interval_value_and_note(ax):
    row = {"rule": "review", "arm": "review", "baseline": "standard", "diverged": [], "notes": [],
           "difference": -0.125, "lo": -0.25, "hi": 0.5, "pairs": [0, 1, 2]}  # fmt: skip
    lost = row | {"arm": "highway", "rule": "highway", "difference": None, "notes": ["not run"]}
    figures.paired_differences(ax, [row, lost])
    [(_, head, rows)] = tables(ax)
    assert "loss − standard (nats per token)" in head[1]
    told = {name: dict(zip(head[1:], cells, strict=True)) for name, *cells in rows}
    assert [*told] == ["review", "highway"]  # from the top, as they are drawn
    assert {"-0.25 to 0.5", "-0.125"} <= {*told["review"].values()}
    assert [*filter(None, told["highway"].values())] == ["not run"]


def test_hollow_marks_have_the_name_of_their_edge_and_a_zero_is_zero(ax):
    rows = [{"source": "seed", "marks": [("loss", 0.1, 0.05, 0.2), ("pair", 0.02, 0.01, 0.03)]},
            {"source": "threads", "marks": [("loss", 0, 0, 0), ("pair", 0, 0, 0)]}]  # fmt: skip
    figures.spread_by_source(ax, rows, {"studied": (0.05, 0.02, 0.08)})
    [(_, head, rows)] = tables(ax)
    told = [dict(zip(head, cells, strict=True)) for cells in rows]
    assert told[0]["pair"] == "0.02" and told[0]["pair, interval"] == "0.01 to 0.03"
    assert [*filter(None, rows[1])] == ["threads", "0"]


def test_bars_are_their_lengths_and_floating_bars_their_ends(ax):
    ax.barh(0, 0.25, label="one")
    ax.barh(0, 0.75, left=0.25, label="two")
    ax.barh(1, 2, left=3, label="alone")
    ax.set_yticks([0, 1], ["first", "second"])
    [(_, head, rows)] = tables(ax)
    told = {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}
    assert told["first"] == {"one": "0.25", "two": "0.75", "alone": ""}
    assert told["second"]["alone"] == "3 to 5"


def test_a_histogram_has_bins_and_a_band_its_ends(ax):
    figures.gate_histogram(ax, {"review": [0.1, 0.1, 0.1, 0.9]}, bins=2)
    [(_, head, rows)] = tables(ax)
    assert head == ["gate r", "review"]
    assert rows == [["0 to 0.5", "0.75"], ["0.5 to 1", "0.25"]]
    ax.clear()
    ax.fill_between([1, 2], [0, 1], [2, 4], label="range")
    [(_, head, rows)] = tables(ax)
    assert "range" in head[1] and rows == [["1", "0 to 2"], ["2", "1 to 4"]]


def test_panels_with_the_same_rows_are_one_table():
    fig, axes = figures.canvas(2, sharey=True)
    for ax, name in zip(axes, ("left", "right"), strict=True):
        ax.plot([1, 2], [3, 4])
        ax.set(title=name, xlabel="step")
    [(_, head, rows)] = tables(axes[0])
    plt.close(fig)
    assert head == ["step", "left", "right"] and rows == [["1", "3", "3"], ["2", "4", "4"]]


def test_a_page_shows_a_long_table_in_part_and_offers_the_whole(ax):
    ax.plot(range(200), np.arange(200) / -8)
    ax.set_xlabel("a < b")
    _, held = figure_data.taken(svg(ax.figure))
    page = BeautifulSoup(figure_data.shown(held, "fig-long"), "html.parser")
    assert page.select_one("thead th").text == "a < b"
    assert len(page.select("tbody tr")) <= figure_data.ROWS
    assert page.select("tbody tr")[1].td.text == "−0.5"  # row 4, as prose writes it
    link = page.select_one("caption a[download='fig-long.csv']")
    whole = unquote(link["href"].partition(",")[2]).splitlines()
    assert whole[1:4] == ["0,0", "1,-0.125", "2,-0.25"] and len(whole) == 201
    assert figure_data.shown([], "fig-none") == ""
