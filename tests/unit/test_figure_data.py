"""The tables of a figure hold the numbers that were drawn, under the names that a reader sees."""

import inspect
import json
from functools import partial
from types import SimpleNamespace
from urllib.parse import unquote

import figure_data
import numpy as np
import pytest
from bs4 import BeautifulSoup
from matplotlib import pyplot as plt

from rrbook import figures
from rrbook.figures import data
from rrbook.figures.data import as_json
from rrbook.figures.svg import svg

NAN = float("nan")
WORDS_ONLY = {"paths", "gate_wiring", "kind_key", "label_ends"}  # they draw no data
ROW = {"rule": "review", "arm": "review", "baseline": "standard", "diverged": [], "notes": [],
       "difference": -0.125, "lo": -0.25, "hi": 0.5, "pairs": [0, 1, 2], "holm": 0.25}  # fmt: skip
LOST = ROW | {"arm": "highway", "difference": None, "lo": None, "hi": None, "notes": ["not run"]}
BASE = ROW | {"arm": "standard", "baseline": None, "difference": None}
LINE = SimpleNamespace(at=lambda x: (x, x - 1, x + 1))
MLP = {"kind": "mlp", "mean": 0.5, "quantiles": [0.1, 0.2, 0.3, 0.4, 0.9], "by_fifth": [0.25, 1],
       "values": [0.5, 0.25], "tokens": 0.75, "channels": 0.25}  # fmt: skip
CURVE = {"rule": "review", "steps": [1, 2], "loss": [3.0, 2.0]}
RATES = [{"loops": 2, "lr": 1e-3, "seed": 0, "value": 0.5},
         {"loops": 2, "lr": 2e-3, "seed": 0, "value": None}]  # fmt: skip
GAP = {"series": "review", "rule": "review", "gap": 0.5, "lo": 0.25, "hi": 1, "size": 1e6}
DEPTHS = [{"rule": "review", "sublayers": 4, "value": value} for value in (3, 5, None)]
LOSS = "loss − standard (nats per token)"

# fmt: off
SHOWN = [  # function, its data, its table: rows by "//", cells by "|"
    (figures.shares_by_size, (["60M"], {"of all": [0.25]}, 0.07, ""), "size|of all//60M|0.25"),
    (figures.parameter_bar, ({"gates": 1e6, "blocks": 5e5},),
     "name|parameters (millions)//gates|1//blocks|0.5"),
    (figures.block_sizes, ([{"size": 2, "difference": -0.5, "each": [-0.75]}], {}),
     "sublayers per block|attnres|attnres, each pair//2|-0.5|-0.75"),
    (figures.depth_map, ([[1, NAN], [0.25, 0.75]], ["1", "2"], ["emb.", "1"]),
     "read by|emb.|1//1|1|//2|0.25|0.75"),
    (figures.size_and_tokens, ({"grid": [(1e6, 2e6)]},), "parameters|grid//1000000|2000000"),
    (figures.gaps_along, ({"a": [(10, 1, 0, 2)], "b": [(10, 3, None, None)]}, "steps"),
     "steps|a|a, interval|b//10|1|0 to 2|3"),
    (figures.power_curve, ([2, 3], [0.25, 0.5], 3), "seeds|probability//2|0.25//3|0.5"),
    (figures.seed_deviations, ({"review": {1: 2, 0: 1}},), "seed|review//0|-0.5//1|0.5"),
    (figures.two_tests, ([("a", 0.5, 0.25)], ("Welch", "paired"), {}),
     "name|Welch|paired//a|0.5|0.25"),
    (figures.gap_against_size,
     ([{"name": "A", "size": 10, "gap": 0.5, "own": (0, 1), "pooled": (0, 2)}], "review", LINE),
     "model size (parameters)|value|own interval|pooled|line|band//A|0.5|0 to 1|0 to 2|1|0 to 2"),
    (figures.values_by_size, ({"review": {"60M": [1, 2]}}, {"60M": 6e7}),
     "model size (parameters)|review, each run|review//60M|1; 2|1.5"),
    (figures.simulated_tests, ([0.5], [0.25], 0.05, ("a", "b")), "p, a|p, b//0.5|0.25"),
    (figures.rule_ranking, ([ROW, LOST, BASE], ["review", "highway", "standard"],
                            dict.fromkeys(("review", "highway", "standard"), "gate")),
     f"name|{LOSS}|interval|n|note|corrected p//review|-0.125|-0.25 to 0.5|3||0.25"
     "//highway||||not run|0.25//standard||||baseline|"),
    (figures.reads_map, (np.array([[1, 0], [0.25, 0.75]]), ["a", "a"]),
     "name|1 a|2 a//1 a|1|//2 a|0.25|0.75"),
    (figures.gate_bands, ([MLP],),
     "sublayer|kind|gate r|middle half|5 to 95 %//1|MLP|0.5|0.2 to 0.4|0.1 to 0.9"),
    (figures.variance_shares, ([MLP], {"channels": "between channels", "tokens": "between tokens"}),
     "name|between channels|between tokens//MLP 1|0.25|0.75"),
    (figures.cost_of, ({"a half": [1, 2], "none": [3]},),
     "name|loss above that as trained (nats per token)|each seed//a half|1.5|1; 2//none|3|3"),
    (figures.seeds_by_sublayer, ([MLP], [0.5]),
     "sublayer|kind|value|each seed|chance//1|MLP|0.375|0.5; 0.25|-0.5 to 0.5"),
    (figures.by_fifth, ([MLP], ["rare", "common"]),
     "the token in the training text|MLP 1//rare|-0.25//common|0.5"),
    (figures.size_by_passes, ([1, 2], {"1/N": [1, 1.5]}), "passes N|ε = 1/N//1|1//2|1.5"),
    (figures.cosine_matrix, ([[1, 0.5], [0.25, 1]],), "block|1|2//1|1|0.5//2|0.25|1"),
    (figures.size_grid, ([[1, 2.25]], [8], [1, 4], 9), "unique blocks L|1|4//8|1|2.25"),
    (figures.rates_by_passes, (RATES,),
     "learning rate (10⁻³)|N = 2, each run|N = 2//1|0.5|0.5//2|diverged|"),
    (figures.spread_by_source,
     ([{"source": "seed", "marks": [("loss", 0.1, 0.05, 0.2)]},
       {"source": "threads", "marks": [("loss", 0, 0, 0)]}], {}),
     "name|loss|loss, interval//seed|0.1|0.05 to 0.2//threads|0|"),
    (figures.losses_apart, ({"one bit": [[0, 1], [0, 3]]},),
     "training step|one bit, each run|one bit//2|1; 3|2"),
    (figures.run_curve, ([CURVE], [(2, 2.5)], None, (2, 2.25)),
     "training step|held-out|held-out, whole stories|review//1|||3//2|2.5|2.25|2"),
    (figures.norm_curve, ([CURVE], 1.0), "training step|gradient norm//1|3//2|2"),
    (figures.gates_by_sublayer, ([{"name": "1 attn", "r": [0.1, 0.2, 0.3, 0.4, 0.9], "mean": 0.5}],
                                 "review"),
     "name|mean|median|middle half|5 to 95 %//1 attn|0.5|0.3|0.2 to 0.4|0.1 to 0.9"),
    (figures.reliability, (np.array([[4, 2, 1], [0, 0, 0]]),),
     "confidence in the likeliest token|how often it is right|tokens//0.5|0.25|4"),
    (figures.gaps_by_size, ([GAP, GAP | {"series": "highway", "gap": 0.75}],),
     "parameters|review|review, interval|highway|highway, interval"
     "//1000000|0.5|0.25 to 1|0.75|0.25 to 1"),
    (figures.loss_curves, ([CURVE, CURVE | {"loss": [5, 4]}],),
     "training step|review|review, mean//1|3; 5|4//2|2; 4|3"),
    (figures.paired_differences, ([ROW, LOST],),
     f"name|{LOSS}|interval|n|note//review|-0.125|-0.25 to 0.5|3|//highway||||not run"),
    (figures.bar_share, ([("60M", {"gates": 1, "body": 3})],), "name|gates|body//60M|0.25|0.75"),
    (figures.destroyed_work, ([{"every": 2, "lost_seconds": [0.5, 1]}],),
     "seconds between checkpoints|each kill|mean|half the interval//2|0.5; 1|0.75|1"),
    (figures.notices, ([{"rung": "nano", "params": 1000, "seconds": 2, "measured": False}], {}),
     "parameters|rung|seconds for a checkpoint|note//1000|nano|2|not measured"),
    (figures.attempts, (30, 15, 60),
     "name|step|done twice//first|0 to 30|15 to 30//second|15 to 60|"),
    (figures.stacked_parts, ({"60M": {"mlp": 2, "head": 1}, "1B": {"mlp": 4}},),
     "name|MLP|head//60M|2|1//1B|4|"),
    (figures.waterfall, ([("all off", 5), ("bf16", 3)],),
     "name|value|change//all off|5|//bf16|3|-2//all together|3|"),
    (figures.undone, ([("bf16", 3, 2, 4)],),
     "name|time of a step with this change undone, in steps of the best path|least to most"
     "//bf16|3|2 to 4"),
    (figures.beside, ({"nano": {"fast": [1, 2, 4]}},), "name|nano|nano, range//fast|2|1 to 4"),
    (figures.stream_norms, ([0, 1], {"standard": [1, 1.41421], "review": [1, -0.25]}),
     "sublayer|standard|review//0|1|1//1|1.414|-0.25"),
    (figures.norm_places, ({"pre-norm": [0.5, 0.25], "Keel": [0.5, 1]},),
     "sublayer|pre-norm|Keel//0|0.5|0.5//1|0.25|1"),
    (figures.gradient_by_depth, ([0, 1], {"review": [0, 0.5]}), "sublayer|review//1|0.5"),
    (figures.gate_histogram, ({"review": [0.1, 0.1, 0.1, 0.9]}, 2),
     "gate r|review//0 to 0.5|0.75//0.5 to 1|0.25"),
    (partial(figures.depth_plot, ylabel="loss"), (DEPTHS,),
     "sublayers|review, each run|review//4|diverged; 3; 5|4"),
    (figures.gap_bands, ({"review": [{"first": 1, "last": 30, "mean": 1, "lo": 0, "hi": 2}]}, "a"),
     "training step|review|review, interval//1 to 30|1|0 to 2"),
    (figures.rate_basins, ({"review": {1e-3: 3, 4e-3: 5}}, {"review": 2e-3}),
     "learning rate (10⁻³)|review|review, chosen//1|3|//2||4//4|5|"),
    (figures.by_block, ({"own": [[None, 1], [None, 3]]}, "λ", (0.5, "½")),
     "block|own|own, range|½//1|||0.5//2|2|1 to 3|0.5"),
    (figures.cache_bars, ([(4, 2)],), "block|keys|values//1|4|2"),
]
# fmt: on


@pytest.fixture
def ax():
    fig, ax = figures.canvas()
    yield ax
    plt.close(fig)


def tables(ax) -> list[tuple[str, list[list[str]]]]:
    """Title and lines, the head first, of each of the figure's tables."""
    return [(one["title"], [one["head"], *one["rows"]]) for one in json.loads(as_json(ax.figure))]


@pytest.mark.parametrize("draw, given, shown", SHOWN, ids=lambda one: getattr(one, "__name__", ""))
def test_a_plotting_function_keeps_the_numbers_that_it_was_given(ax, draw, given, shown):
    draw(ax, *given)
    [(title, lines)] = tables(ax)
    assert title not in lines[0]  # a table says each name once
    assert ["|".join(cells) for cells in lines] == shown.split("//")


def test_every_plotting_function_keeps_a_table():
    named = {getattr(draw, "func", draw).__name__ for draw, *_ in SHOWN}
    others = {"keep", "keep_row", "note"} | WORDS_ONLY
    offered = [one for _, one in inspect.getmembers(figures, inspect.isfunction)]
    drawing = {one.__name__ for one in offered if "ax" in inspect.signature(one).parameters}
    assert drawing - others == named


def test_the_numbers_of_a_table_are_those_that_are_drawn():
    fig, (lines, bars, dots, colours, spans) = figures.canvas(5)
    figures.stream_norms(lines, [0, 1], {"standard": [1.0, 1.5], "review": [1.0, 0.25]})
    figures.stacked_parts(bars, {"60M": {"mlp": 0.25, "head": 0.5}, "1B": {"mlp": 2.0}})
    figures.reliability(dots, np.array([[4, 2, 1], [8, 6, 7]]))
    figures.depth_map(colours, [[1, NAN], [0.25, 0.75]], ["1", "2"], ["emb.", "1"])
    figures.paired_differences(spans, [ROW])
    *measured, compared = [one["rows"] for one in json.loads(as_json(fig))]
    norms, parts, right, reads = (
        np.array([[float(cell or NAN) for cell in row[1:]] for row in rows]) for rows in measured
    )
    np.testing.assert_array_equal(norms, np.transpose([one.get_ydata() for one in lines.lines]))
    widths = [bar.get_width() for bar in sorted(bars.patches, key=lambda bar: round(bar.get_y()))]
    assert parts[~np.isnan(parts)].tolist() == widths
    assert right[:, 0].tolist() == dots.collections[-1].get_offsets()[:, 1].tolist()
    np.testing.assert_array_equal(reads, np.ma.filled(colours.collections[0].get_array(), NAN))
    _, interval, mark = (line.get_xdata() for line in spans.lines)
    assert compared[0][1:3] == ["-0.125", "-0.25 to 0.5"]
    assert [*mark] == [-0.125] and [*interval] == [-0.25, 0.5]
    plt.close(fig)


@pytest.mark.parametrize(
    "value, text",
    [(0.123456, "0.1235"), (-0.0, "0"), (762000.0, "762000"), (3e9, "3e+09"), (None, ""), (NAN, ""),
     ("diverged", "diverged"), ((2, 0.5), "0.5 to 2"), ((1, 1), "1"), ((NAN, NAN), ""),
     ([0.5, NAN, "lost"], "0.5; lost"), (np.float32(0.5), "0.5")],
)  # fmt: skip
def test_a_value_is_written_in_four_digits(value, text):
    assert data.text(value) == text


def test_rows_are_in_order_and_calls_for_one_panel_add_up(ax):
    figures.keep(ax, [10, 3, 2], {"$W_V$": [1, None, 2], "never": [None, NAN, ""]})
    figures.keep_row(ax, 2, {"$W_V$": 3, "late": (0, 1)})
    ax.set(title="block 1", ylabel="norm")
    assert tables(ax) == [
        ("block 1: norm", [["name", "W_V", "late"], ["2", "2; 3", "0 to 1"], ["10", "1", ""]])
    ]
    with pytest.raises(ValueError, match="shorter"):
        figures.keep(ax, [1, 2], {"late": [1]})


def test_panels_that_differ_in_columns_alone_are_one_table():
    fig, axes = figures.canvas(4, sharey=True)
    panels = (["left", "ba"], ["right", "ba"], ["right", "ba"], ["other rows", "bc"])
    for ax, (column, places) in zip(axes, panels, strict=True):
        figures.keep(ax, places, {column: [3, 4]}, down=True)
    axes[0].set_ylabel("rule")
    fig.supxlabel("loss")
    joined, *alone = tables(axes[0])
    plt.close(fig)
    assert joined == ("loss", [["rule", "left", "right"], ["b", "3", "3"], ["a", "4", "4"]])
    assert [lines[0] for _, lines in alone] == [["rule", "right"], ["rule", "other rows"]]


def test_a_long_table_is_thinned_and_a_figure_without_data_has_none(ax):
    figures.losses_apart(ax, {"nothing": [[0, 0]]})
    assert tables(ax) == []
    figures.keep(ax, range(2 * data.ROWS + 1), {"": range(2 * data.ROWS + 1)})
    [(_, lines)] = tables(ax)
    assert lines[1:3] == [["0", "0"], ["3", "3"]] and len(lines) <= data.ROWS + 1


def test_a_page_shows_a_long_table_in_part_and_offers_the_whole(ax):
    figures.keep(ax, range(200), {"": np.arange(200) / -8})
    ax.set_xlabel("a < b")
    svg_alone, held = figure_data.taken(svg(ax.figure))
    assert "<metadata" not in svg_alone
    page = BeautifulSoup(figure_data.shown(held, "fig-long"), "html.parser")
    assert page.select("thead th")[0].text == "a < b"
    assert len(page.select("tbody tr")) <= figure_data.ROWS
    assert page.select("tbody td")[1].text == "−0.5"  # row 4, as prose writes it
    [link] = page.select("caption a[download='fig-long.csv']")
    whole = unquote(str(link["href"]).partition(",")[2]).splitlines()
    assert whole[1:4] == ["0,0", "1,-0.125", "2,-0.25"] and len(whole) == 201
    assert figure_data.shown([], "fig-none") == ""
