"""Figures show the data that they were given: tested on what is drawn, not on pixels."""

import math
import re

import numpy as np
import pytest
from matplotlib import pyplot as plt

from rr.errors import RRError
from rr.residual import REGISTRY
from rrbook import figures
from rrbook.figures.phone import phone
from rrbook.figures.svg import svg, variables
from rrbook.stats import fit

RULES = ["standard", "constant", "highway", "review", "review-convex", "highway-carry"]


@pytest.fixture
def ax():
    fig, ax = figures.canvas()
    yield ax
    fig.canvas.draw()  # it can be rendered
    plt.close(fig)


def lines(ax):
    """Label -> drawn points, of the lines that have a label of their own."""
    return {
        line.get_label(): line.get_xydata().tolist()
        for line in ax.get_lines()
        if not line.get_label().startswith("_")
    }


def test_styles_are_fixed_and_tell_rules_apart():
    styles = {rule: figures.style_of(rule) for rule in REGISTRY["residual"]}
    seen = [(look["color"], look["marker"]) for look in styles.values()]
    assert len(set(seen)) == len(seen)
    assert len({styles[rule]["marker"] for rule in RULES}) == len(RULES)
    assert styles["review"] == {"color": "#0072B2", "marker": "D", "linestyle": "-"}
    optioned = figures.style_of("review:rank=64")
    assert optioned["color"] == "#0072B2" and optioned["linestyle"] == ":"
    # a reader's own rule has the same style in every process, whatever its hash seed
    assert figures.style_of("damped") == {"color": "#CC79A7", "marker": ">", "linestyle": ":"}


def test_an_svg_has_letters_and_colours_that_a_page_can_set():
    texts = []
    for _ in range(2):
        fig, ax = figures.canvas()
        figures.stream_norms(ax, [0, 1], {"standard": [1.0, 1.4], "review": [1.0, 0.7]})
        texts.append(svg(fig))
    assert texts[0] == texts[1]  # ids and all: nothing random, no date
    named = re.findall(r"<text[^>]*>([^<]+)</text>", texts[0])
    assert {"standard", "review", "sublayer", "rms of the stream"} <= set(named)
    for colour in (figures.INK, figures.SOFT, figures.GRID, figures.CARD):
        assert f"var({variables()[colour]}, {colour})" in texts[0] and f": {colour}" not in texts[0]
    assert "<style" not in texts[0] and len(texts[0]) < 150_000
    # laid out for a phone, too, where it can be copied
    assert texts[0].count('class="rr-phone" display="none"') == 1
    ax.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    assert phone(fig) is None and "rr-phone" not in svg(fig)


def test_letters_are_large_and_dark_enough(ax):
    sizes = [plt.rcParams[key] for key in ("font.size", "axes.labelsize", "xtick.labelsize")]
    assert min(sizes) >= 9 and ax.figure.get_size_inches()[0] == 7
    ax.plot([0, 1], [0, 1])
    figures.label_ends(ax, [(1, 1, rule, figures.style_of(rule)["color"]) for rule in RULES])
    for text in ax.texts:
        rgb = text.get_color()[:3]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in rgb]
        contrast = 1.03 / (float(np.dot(linear, [0.2126, 0.7152, 0.0722])) + 0.05)
        assert contrast >= 4.5, text


def test_end_labels_do_not_cover_each_other(ax):
    heights = {"a": 1.0, "b": 1.001, "c": 1.002, "d": 5.0}
    ax.set_ylim(0, 6)
    figures.label_ends(ax, [(1, y, name, "#000000") for name, y in heights.items()])
    ax.figure.canvas.draw()
    boxes = {text.get_text(): text.get_window_extent() for text in ax.texts}
    order = sorted(boxes, key=lambda name: boxes[name].y0)
    assert order == ["a", "b", "c", "d"]
    for low, high in zip(order, order[1:], strict=False):
        assert boxes[high].y0 >= boxes[low].y0 + 9
    # a lone name stays level with its line
    level = ax.transData.transform((1, 5.0))[1]
    assert (boxes["d"].y0 + boxes["d"].y1) / 2 == pytest.approx(level, abs=2)


def test_gradients_that_underflowed_are_left_out(ax):
    figures.gradient_by_depth(ax, [0, 1, 2, 3], {"underflowed": [0.0, 0.0, 1e-30, 1.0]})
    assert lines(ax) == {"underflowed": [[2, 1e-30], [3, 1.0]]} and ax.get_yscale() == "log"


def test_loss_curves_means_floor_and_divergence(ax):
    curves = [
        ("review", [6.0, 4.0, 2.0]),
        ("review", [6.0, 5.0, 3.0]),
        ("review-convex", [6.0, 7.0, math.nan]),
    ]
    runs = [{"rule": rule, "steps": [0, 10, 20], "loss": loss} for rule, loss in curves]
    figures.loss_curves(ax, runs, floor=(1.5, 0.01))
    drawn = lines(ax)
    assert drawn["review, mean"] == [[0, 6.0], [10, 4.5], [20, 2.5]]
    assert drawn["review-convex"] == [[0, 6.0], [10, 7.0]]
    every = [line.get_xydata().tolist() for line in ax.get_lines()]
    assert [[0, 6.0], [10, 4.0], [20, 2.0]] in every and [[0, 6.0], [10, 5.0], [20, 3.0]] in every
    crosses = [line for line in ax.get_lines() if line.get_marker() == "x"]
    assert [line.get_xydata().tolist() for line in crosses] == [[[10, 7.0]]]
    low, high = ax.patches[0].get_extents().transformed(ax.transData.inverted()).intervaly
    assert (low, high) == pytest.approx((1.48, 1.52))


def test_depth_plot_keeps_every_seed_and_marks_diverged_ones(ax):
    values = [(4, 3.0), (4, 3.4), (16, 5.0), (16, None)]
    points = [{"rule": "review-convex", "sublayers": n, "value": value} for n, value in values]
    figures.depth_plot(ax, points, "loss", logx=True)
    assert lines(ax) == {
        "review-convex": [[4, 3.2], [16, 5.0]],
        "review-convex, each run": [[4, 3.0], [4, 3.4], [16, 5.0]],
    }
    *_, cross = ax.get_lines()
    assert cross.get_marker() == "x" and cross.get_xdata().tolist() == [16]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["4", "16"]


@pytest.mark.parametrize(
    "draw, words",
    [
        (lambda ax: figures.stream_norms(ax, [0, 1], {"review": [1.0]}), "1 values for 2 depths"),
        (lambda ax: figures.norm_places(ax, {"nowhere": [1.0]}), "no place of the norm 'nowhere'"),
        (lambda ax: figures.stream_norms(ax, [0], {"review": [math.nan]}), "not finite"),
        (lambda ax: figures.gradient_by_depth(ax, [0], {"review": [0.0]}), "none above"),
        (lambda ax: figures.gradient_by_depth(ax, [0, 1], {"a": [1, -1]}), "norm below 0"),
        (lambda ax: figures.bar_share(ax, [("x", {"a": 0})]), "no positive amounts"),
        (lambda ax: figures.gate_histogram(ax, {"review": [1.5]}), "outside 0 to 1"),
        (lambda ax: figures.two_tests(ax, [("x", 0.5, math.nan)], ("a", "b"), {}), "not in"),
        (lambda ax: figures.rate_basins(ax, {}, {}), "no rates"),
        (lambda ax: figures.seed_deviations(ax, {"review": {0: 5.0}}), "review has 1 seeds"),
        (lambda ax: figures.loss_curves(ax, [{"rule": "a", "steps": [1], "loss": []}]), "0 losses"),
        (lambda ax: figures.reliability(ax, np.zeros((3, 3))), "no tokens"),
        (lambda ax: figures.size_by_passes(ax, [1], {"2/N": [1]}), "scale must be .* got '2/N'"),
        (lambda ax: figures.cosine_matrix(ax, np.zeros((2, 3))), r"shape \(n, n\), got \(2, 3\)"),
        (lambda ax: figures.size_grid(ax, np.ones((2, 3)), [1, 2], [1, 2], 10), "2 blocks and 2 p"),
        *(
            (lambda ax, bad=bad: figures.by_block(ax, {"own": bad}, ""), "own has no finite values")
            for bad in ([], [math.inf, 1.0], [None, None])
        ),
    ],
)
def test_data_that_cannot_be_drawn_is_one_clear_line(ax, draw, words):
    with pytest.raises(RRError, match=words):
        draw(ax)


# ---- Evidence ----------------------------------------------------------------------------------


def test_gap_against_size_draws_points_intervals_and_the_line(ax):
    sizes = [1e7, 1e8, 1e9]
    points = [
        {"name": f"{s:g}", "size": s, "gap": g, "own": (g - 2, g + 2), "pooled": (g - 1, g + 1)}
        for s, g in zip(sizes, (1.0, 2.0, 3.5), strict=True)
    ]
    line = fit([7, 8, 9], [1.0, 2.0, 3.5])
    figures.gap_against_size(ax, points, "standard", line)
    drawn = [one.get_xydata() for one in ax.get_lines()]
    for point in points:
        for pair in (point["own"], point["pooled"]):
            assert any(np.array_equal(d, [[point["size"], y] for y in pair]) for d in drawn)
        assert any(np.array_equal(d, [[point["size"], point["gap"]]]) for d in drawn)
    (curve,) = [d for d in drawn if len(d) > 10]
    at = np.interp(9, np.log10(curve[:, 0]), curve[:, 1])
    assert at == pytest.approx(line.at(9)[0], abs=1e-6)
    assert [label.get_text() for label in ax.get_xticklabels()] == [p["name"] for p in points]


def test_a_gates_wiring_says_every_number_at_its_place(ax):
    figures.gate_wiring(ax, "attention", h=0.06, u=-0.25, r=0.64)
    said = [text.get_text() for text in ax.texts]
    for words in ("h = 0.06", "u = −0.25", "r = 0.64", "r·u = −0.16", "h + r·u = −0.10"):
        assert words in said
    inside = [text.get_window_extent() for text in phone(ax.figure).axes[0].texts]
    assert all(0 <= box.x0 and box.x1 <= 3.6 * ax.figure.dpi for box in inside)


def test_places_of_the_norm_that_end_together_have_one_label():
    _, ax = figures.canvas()
    figures.norm_places(
        ax, {"pre-norm": [0.03, 0.03], "Keel": [0.03, 1.0], "post-norm": [0.03, 1.0]}
    )
    labels = [text.get_text() for text in ax.texts]
    assert [line.get_label() for line in ax.lines[:3]] == ["pre-norm", "Keel", "post-norm"]
    assert sorted(labels) == ["Keel, post-norm", "pre-norm"]
