"""Explorables in a real browser: their script against their Python, keyboard, phone, re-rendering.

The pages are made here from `rrbook.explore`; that the built book carries them is tested elsewhere.
"""

import csv
import itertools
import json
import re
from collections.abc import Callable
from typing import NamedTuple

import drawings
import pytest
from nbkit import ROOT, read, sources

from rr import DATA
from rrbook.explorables.audit import PAPERS, VERDICTS, audit_sentence, audit_shown
from rrbook.explorables.cliff import cliff_numbers, cliff_sentence, recorded_near
from rrbook.explorables.emergence import toy_sentence
from rrbook.explorables.evidence import (
    CORRECTIONS,
    TESTS,
    verdict_data,
    verdict_numbers,
    verdict_sentence,
)
from rrbook.explorables.field import TOY, field_numbers, field_sentence
from rrbook.explorables.floats import FORMATS, float_numbers, float_sentence
from rrbook.explorables.gate import gate_numbers, gate_sentence
from rrbook.explorables.kit import HERE, number, share
from rrbook.explorables.looking import looking_numbers, looking_sentence
from rrbook.explorables.loops import SCALES, loop_numbers, loop_sentence
from rrbook.explorables.luck import luck_numbers, luck_sentence
from rrbook.explorables.roofline import (
    CARDS,
    FUSION,
    PATHS,
    RUNGS,
    step_data,
    step_numbers,
    step_sentence,
)
from rrbook.explorables.running import lost_numbers, lost_sentence
from rrbook.explorables.stream import RULES, stream_numbers, stream_sentence
from rrbook.explorables.strip import strip_data, strip_numbers, strip_sentence
from rrbook.explorables.values import RULES as VALUE_RULES
from rrbook.explorables.values import value_numbers, value_sentence
from rrbook.explorables.write import START, write_numbers, write_sentence
from rrbook.explore import (
    Explorable,
    audit_rows,
    audit_table,
    claim_map,
    depth_attention,
    depth_cliff,
    float_formats,
    gate_playground,
    gated_write,
    held_back,
    loop_growth,
    lost_work,
    rule_field,
    size_or_training,
    step_roofline,
    stream_share,
    value_dilution,
    verdict_table,
    winners_luck,
)

pytestmark = pytest.mark.browser

RECORDED = [
    {
        "rule": rule,
        "sublayers": n,
        "bias": bias,
        "seed": seed,
        "steps": [0, 50, 100],
        "loss": [7.0, 6.0, 3.0 + n / 100 + seed / 10 - bias],
    }
    for rule, bias in (("review", 0), ("review-convex", 0), ("review-convex", -3))
    for n in (4, 16, 32)
    for seed in range(2 if n == 4 else 1)
]

with (DATA / "published" / "review_residuals.csv").open() as file:
    PUBLISHED = [
        r | {"seed": int(r["seed"]), "val_loss": float(r["val_loss"])} for r in csv.DictReader(file)
    ]
GAPS = {"60M": 0.008633, "150M": 0.002833, "320M": -0.0036, "590M": -0.0106, "1B": -0.016433}
LADDER = list(
    {
        r["rung"]: [r["rung"], 1e6 * float(r["params_M"]), int(r["steps"]), GAPS[r["rung"]]]
        for r in PUBLISHED
        if r["arm"] == "review"
    }.values()
)
STORY = json.loads((DATA / "measured" / "13_inside_the_gate" / "story.json").read_text())


@pytest.fixture
def show(browser):
    """show(*explorables, width=…) -> page; fails at the end if the page raised an error."""
    contexts, errors = [], []

    def make(*shown, width=800, **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: errors.append(f"asked for {request.url}"))
        body = "".join(one.html for one in shown)
        page.set_content(f"<!doctype html><meta charset=utf-8><body>{body}</body>")
        return page

    yield make
    for context in contexts:
        context.close()
    assert errors == []


# -- each script against its Python twin ----------------------------------------------------------


class Twin(NamedTuple):
    """A script's functions and the Python that must say the same, over cases."""

    cases: list
    pairs: dict[str, Callable]  # expression in x, in JavaScript -> the same of a case, in Python
    data: object = None  # what the expressions find as `data`
    tiny: float = 0.0  # what counts as 0
    rel: float = 1e-11


def dicts(keys: str, *columns) -> list[dict]:
    """Every combination of the columns' values, as dicts."""
    return [dict(zip(keys.split(), row, strict=True)) for row in itertools.product(*columns)]


def pairs_of(**columns) -> list[list]:
    return [list(row) for row in itertools.product(*columns.values())]


VERDICTS_OF, STEPS, STRIP = verdict_data(PUBLISHED), step_data(), strip_data(STORY)
BASELINES = {
    "both": dict.fromkeys(VERDICTS_OF, True),
    "highway": dict.fromkeys(VERDICTS_OF, False),
    "standard": {rung: rung == "1B" for rung in VERDICTS_OF},
}
VALUES = [0, 1, -3, 0.5, 1 / 3, 0.03125, 12.345, 999.6, 1000, 9.96e-10, 2**-64, 0.00098, -2.5e-7]
TWINS = {
    "kit": Twin(
        pairs_of(value=VALUES, share=[1 / 33, 1e-4, 9e-5]),
        {"number(x[0])": lambda x: number(x[0]), "share(x[1])": lambda x: share(x[1])},
    ),
    "stream": Twin(
        pairs_of(sublayers=(2, 3, 9, 32, 64), rule=RULES),
        {
            "streamNumbers(x[0], x[1])": lambda x: stream_numbers(*x),
            "streamSentence(x[0], x[1])": lambda x: stream_sentence(*x),
        },
    ),
    "gate": Twin(
        [
            x | {"update": 1.5, "state": state, "bias": bias}
            for x in dicts(
                "angle size rule",
                (-180, -70, 0, 115),
                (0, 0.7, 1.5),
                ("standard", "constant", "state", "review"),
            )
            for state, bias in ((0, 0), (2.5, -4))
        ],
        {
            "gateNumbers(x)": lambda x: gate_numbers(**x),
            "gateSentence(x)": lambda x: gate_sentence(**x),
        },
        tiny=1e-15,  # the sine of 180° is not quite 0
    ),
    "write": Twin(
        dicts("u1 u2 r1 r2", (-2, 0, 1.3), (0, 1.1), (0, 0.25, 1), (0, 0.25, 0.9)),
        {
            "writeNumbers(x)": lambda x: write_numbers(**x),
            "writeSentence(x)": lambda x: write_sentence(**x),
        },
        tiny=1e-12,
    ),
    "cliff": Twin(
        pairs_of(sublayers=(4, 10, 24, 33, 64), bias=(0, -0.25, -1.5, -2, -4)),
        {
            "cliffNumbers(x[0], x[1])": lambda x: cliff_numbers(*x),
            "cliffSentence(x[0], x[1])": lambda x: cliff_sentence(*x),
            "recordedNear(data, x[0], x[1])": lambda x: recorded_near(RECORDED, *x),
            "cliffSentence(x[0], x[1], data)": lambda x: cliff_sentence(*x, RECORDED),
        },
        data=RECORDED,
    ),
    "loops": Twin(
        [
            [blocks, passes, cosine, chosen]
            for blocks, passes in ((1, 1), (1, 64), (4, 16), (16, 3), (7, 31))
            for cosine in (0, 0.35, 1)
            for chosen in SCALES
        ],
        {
            "loopNumbers(x[0], x[1], x[2], x[3])": lambda x: loop_numbers(*x),
            "loopSentence(x[0], x[1], x[2], x[3])": lambda x: loop_sentence(*x),
        },
    ),
    "values": Twin(
        [
            {"rule": rule, "lam": lam, "even": even, "blocks": blocks}
            for rule in VALUE_RULES
            for lam, even, blocks in ((0, 0, 2), (0.5, 1, 8), (2, 0.3, 16), (5, 1, 3))
        ],
        {
            "valueNumbers(x.rule, x.lam, x.even, x.blocks)": lambda x: value_numbers(**x),
            "valueSentence(x)": lambda x: value_sentence(**x),
        },
        tiny=1e-15,
    ),
    "evidence": Twin(
        [
            x | {"alpha": 0.05, "baseline": base} | picked
            for x in dicts("test correction", TESTS, CORRECTIONS)
            for base, picked in BASELINES.items()
        ],
        {
            "verdictNumbers(data, x)": lambda x: verdict_numbers(VERDICTS_OF, x),
            "verdictSentence(data, x)": lambda x: verdict_sentence(VERDICTS_OF, x),
        },
        data=VERDICTS_OF,
        tiny=1e-12,
    ),
    "luck": Twin(
        dicts("rules seeds sd lead", (2, 30), (2, 20), (0.005, 0.05), (0, 0.035, 0.1)),
        {
            "luckNumbers(x)": lambda x: luck_numbers(*x.values()),
            "luckSentence(x)": lambda x: luck_sentence(*x.values()),
        },
    ),
    "floats": Twin(
        dicts("format power terms", FORMATS, (-8.5, 0.4, 4.5), (4, 9)),
        {
            "floatNumbers(x)": lambda x: float_numbers(**x),
            "floatSentence(x)": lambda x: float_sentence(**x),
        },
        tiny=1e-300,
    ),
    "roofline": Twin(
        dicts("rung path card share fusion", RUNGS, PATHS, CARDS, (10, 60, 100), FUSION),
        {
            "stepNumbers(data, x)": lambda x: step_numbers(STEPS, **x),
            "stepSentence(data, x)": lambda x: step_sentence(STEPS, **x),
        },
        data=STEPS,
    ),
    "running": Twin(
        dicts(
            "price between save every back",
            (0.1, 2.5),
            (0.5, 8, 48),
            (1, 120),
            (1, 30, 120),
            (0, 60),
        ),
        {
            "lostNumbers(x)": lambda x: lost_numbers(*x.values()),
            "lostSentence(x)": lambda x: lost_sentence(*x.values()),
        },
    ),
    "looking": Twin(
        pairs_of(
            sublayers=(4, 24), size=("1", "4", "all"), tilt=(0, 3.5, -6), seeded=(False, True)
        ),
        {
            "lookingNumbers(x[0], x[1], x[2], x[3])": lambda x: looking_numbers(*x),
            "lookingSentence(x[0], x[1], x[2], x[3])": lambda x: looking_sentence(*x),
        },
    ),
    "field": Twin(
        [
            {"rule": rule, "sublayers": n, "start": start, "bias": bias}
            for rule in TOY
            for n, start, bias in ((4, "unit", 0.5), (20, "own", -2.0))
        ],
        {
            "fieldNumbers(x)": lambda x: field_numbers(**x),
            "fieldSentence(x)": lambda x: field_sentence(**x),
        },
        tiny=1e-300,
        rel=1e-9,
    ),
    "strip": Twin(
        pairs_of(sublayer=(1, 4, 8), below=("saved", "loss")),
        {
            "stripNumbers(data, x[0], x[1])": lambda x: strip_numbers(STRIP, *x),
            "stripSentence(data, x[0], x[1])": lambda x: strip_sentence(STRIP, *x),
        },
        data=STRIP,
        rel=1e-6,
    ),
}


def same(found, expected, twin: Twin, at: str) -> None:
    """Equal words, numbers within the twin's tolerance, whatever they are nested in."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), at
        for key in expected:
            same(found[key], expected[key], twin, f"{at}.{key}")
    elif isinstance(expected, str | bool | None):
        assert found == expected, at
    elif hasattr(expected, "__len__"):
        assert len(found) == len(expected), at
        for i, (mine, its) in enumerate(zip(found, expected, strict=True)):
            same(mine, its, twin, f"{at}[{i}]")
    else:
        assert found == pytest.approx(expected, rel=twin.rel, abs=twin.tiny), at


@pytest.mark.parametrize("name", TWINS)
def test_script_and_python_find_the_same_numbers_and_words(show, name):
    twin, page = TWINS[name], show()
    scripts = dict.fromkeys(("kit.js", f"{name}.js"))
    source = "\n".join((HERE / script).read_text(encoding="utf-8") for script in scripts)
    for expression, python in twin.pairs.items():
        ask = f"([data, list]) => {{ {source}\n return list.map(x => {expression}); }}"
        found = page.evaluate(ask, [twin.data, twin.cases])
        for mine, x in zip(found, twin.cases, strict=True):
            same(mine, python(x), twin, f"{expression} of {x}")


STEP = {"rung": "320M", "path": "reference", "card": "H100", "fusion": "none"}
STARTS = {
    "held-back": (
        held_back(STORY, 2),
        strip_sentence(strip_data(STORY), 2, "saved"),
        strip_sentence(strip_data(STORY), 3, "saved"),
    ),
    "stream-share": (stream_share(), stream_sentence(16, "sum"), stream_sentence(17, "sum")),
    "gate-playground": (gate_playground(), None, None),
    "gated-write": (
        gated_write(),
        write_sentence(**START),
        write_sentence(**{**START, "r1": 0.95}),
    ),
    "depth-cliff": (
        depth_cliff(RECORDED),
        cliff_sentence(32, 0, RECORDED),
        cliff_sentence(34, 0, RECORDED),
    ),
    "verdict-table": (verdict_table(PUBLISHED), None, None),
    "depth-attention": (
        depth_attention(),
        looking_sentence(8, "2", 0, False),
        looking_sentence(8, "2", 0.5, False),
    ),
    "loop-growth": (
        loop_growth(),
        loop_sentence(4, 16, 0.8, "passes"),
        loop_sentence(4, 17, 0.8, "passes"),
    ),
    "rule-field": (
        rule_field(),
        field_sentence("review-convex", 32),
        field_sentence("review-convex", 36),
    ),
    "value-dilution": (
        value_dilution(),
        value_sentence(rule="constant", lam=2, even=1, blocks=8),
        value_sentence(rule="constant", lam=2.5, even=1, blocks=8),
    ),
    "float-formats": (
        float_formats(),
        float_sentence(0.4, "fp16", 8),
        float_sentence(0.5, "fp16", 8),
    ),
    "lost-work": (
        lost_work(),
        lost_sentence(2.5, 8, 10, 30, 5),
        lost_sentence(2.5, 8, 10, 31, 5),
    ),
    "size-or-training": (
        size_or_training(PUBLISHED),
        toy_sentence(LADDER, 1.1, 0.0, 0.3, 0.0, "steps", "ratio"),
        toy_sentence(LADDER, 1.11, 0.0, 0.3, 0.0, "steps", "ratio"),
    ),
    "step-roofline": (
        step_roofline(),
        step_sentence(step_data(), share=60, **STEP),
        step_sentence(step_data(), share=65, **STEP),
    ),
    "winners-luck": (
        winners_luck(),
        luck_sentence(30, 3, 0.02, 0.01),
        luck_sentence(31, 3, 0.02, 0.01),
    ),
}


@pytest.mark.parametrize("name", STARTS)
def test_arrow_key_changes_picture_and_words(show, name):
    made, before, after = STARTS[name]
    page = show(made)
    picture, said = page.locator("svg.rr-picture"), page.locator(".rr-said")
    drawn, words = picture.inner_html(), said.inner_text()
    assert before is None or words == before
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.type") == "range"
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"  # the focus can be seen
    page.keyboard.press("ArrowRight")
    assert picture.inner_html() != drawn and said.inner_text() != words
    assert after is None or said.inner_text() == after
    page.keyboard.press("ArrowLeft")
    assert picture.inner_html() == drawn and said.inner_text() == words


# Goes to control i, and says by which key it moves.
NEXT = """i => {
    const node = document.querySelectorAll("form input:not([type=radio]), form select")[i];
    node?.focus();
    return !node ? null : node.type === "checkbox" ? "Space" : node.value === node.min
        ? "ArrowRight" : node.value === "0" ? "ArrowLeft" : "ArrowDown" }"""


@pytest.mark.parametrize("name", STARTS)
def test_every_control_reached_by_tab_changes_the_words(show, name):
    page, i = show(STARTS[name][0]), 0
    words = "document.querySelector('.rr-said').innerText"
    while key := page.evaluate(NEXT, i):
        before, i = page.evaluate(words), i + 1
        page.keyboard.press(key)
        assert page.evaluate(words) != before, i
    assert i >= 2


def test_a_recorded_lab_walks_through_its_settings(show):
    import ipywidgets

    from rrbook import figures
    from rrbook.labs.recorded import record

    def draw(k, law):
        figure, ax = figures.canvas(height=2)
        ax.plot([0, 1], [0, k])
        ax.annotate(law, (0.5, 0.5))
        return figure, f"{law} by {k}"

    controls = {
        "k": ipywidgets.IntSlider(4, description="factor"),
        "law": ipywidgets.Dropdown(options=["up", "down"], description="law"),
    }
    html = record("mine", controls, draw, "Move it.", {"k": [1, 4, 9], "law": ["up", "down"]})
    page = show(Explorable("mine", html))
    said, picture = page.locator(".rr-said"), page.locator("svg.rr-picture")
    said.get_by_text("up by 4").wait_for()
    before, label = picture.inner_html(), page.locator("label b")
    assert label.inner_text() == "4" and "up" in picture.text_content()
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    assert said.inner_text() == "up by 9" and label.inner_text() == "9"
    assert picture.inner_html() != before
    page.locator("select").select_option(label="down")
    assert said.inner_text() == "down by 9" and "down" in picture.text_content()


def test_a_dragged_vector_moves_its_sliders_and_a_gate_stays_within_its_box(show):
    page = show(gated_write())

    def at(name):
        return float(page.locator(f"input[name={name}]").input_value())

    def drag(ring, right, down):
        box = page.locator("svg.rr-picture circle[style]").nth(ring).bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x + right, y + down, steps=3)
        page.mouse.up()

    drag(0, -50, 60)  # the tip of u
    moved = {"u1": at("u1"), "u2": at("u2")}
    assert moved["u1"] < START["u1"] and moved["u2"] < START["u2"]
    drag(1, 400, -300)  # the tip of r ⊙ u, far beyond that of u
    assert (at("r1"), at("r2")) == (1, 1) and moved == {"u1": at("u1"), "u2": at("u2")}
    assert page.locator(".rr-said").inner_text() == write_sentence(**moved, r1=1.0, r2=1.0)


def test_gate_rules_by_keyboard_disable_what_they_do_not_read(show):
    page = show(gate_playground())
    page.locator("input[type=radio]:checked").focus()
    disabled = {}
    for _ in range(4):
        page.keyboard.press("ArrowRight")
        chosen = page.locator("input[type=radio]:checked").input_value()
        disabled[chosen] = page.locator("input:disabled").evaluate_all("e => e.map(x => x.name)")
    assert disabled == {
        "standard": ["state", "update", "bias"],
        "constant": ["state", "update", "bias"],
        "state": ["update"],
        "review": [],
    }


def test_the_tip_of_the_update_can_be_dragged(show):
    """To the other side of h's tip, where u points the other way and is as long as before."""
    page = show(gate_playground())
    knob, size = page.locator(".rr-picture circle[style]"), page.locator("input[name=size]")

    def centre():
        box = knob.bounding_box()
        return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    tip, length = centre(), size.input_value()
    size.fill("0")
    middle = centre()  # u = 0: the tip of h
    size.fill(length)
    page.mouse.move(*tip)
    page.mouse.down()
    page.mouse.move(2 * middle[0] - tip[0], 2 * middle[1] - tip[1], steps=5)
    page.mouse.up()
    assert (page.locator("input[name=angle]").input_value(), size.input_value()) == ("-70", length)
    page.mouse.move(*tip)  # let go: it stays
    assert page.locator("input[name=angle]").input_value() == "-70"


def test_two_copies_on_one_page_live_apart(show):
    page = show(gate_playground(), stream_share(), gate_playground())
    said = page.locator(".rr-said")
    before = said.all_inner_texts()
    page.locator("figure").nth(2).locator("input[value=standard]").check()
    page.locator("figure").nth(1).locator("select").select_option("convex")
    after = said.all_inner_texts()
    assert after[0] == before[0] and after[1] != before[1] and after[2] != before[2]
    assert page.locator("figure").nth(0).locator("input[value=review]").is_checked()


def test_drawn_again_into_a_page_that_is_already_loaded(show):
    """As JupyterLab does: set innerHTML, then replace each script by a copy, which runs."""
    page = show(stream_share())
    page.evaluate(
        """html => { for (let i = 0; i < 2; i++) {
            const host = document.createElement("div");
            host.innerHTML = html;
            for (const old of host.querySelectorAll("script")) {
                const copy = document.createElement("script");
                copy.textContent = old.textContent;
                old.replaceWith(copy);
            }
            document.body.appendChild(host);
        } }""",
        stream_share().html,
    )
    assert page.locator("svg.rr-picture path").count() > 3
    said = page.locator(".rr-said").all_inner_texts()
    assert said == [stream_sentence(16, "sum")] * 3
    page.locator("input[type=range]").nth(1).press("ArrowRight")
    assert page.locator(".rr-said").nth(1).inner_text() == stream_sentence(17, "sum")
    assert page.locator(".rr-said").nth(2).inner_text() == stream_sentence(16, "sum")


@pytest.mark.parametrize("width", [360, 390, 1000])
def test_nothing_sticks_out(show, width):
    page = show(*(made for made, *_ in STARTS.values()), width=width)
    for rule in ("sum", "half", "convex"):
        page.locator("[data-explorable=stream-share] select").select_option(rule)
        page.locator("input[name=sublayers]").first.fill("64")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        outside = page.locator("figure").evaluate_all(
            """figures => figures.flatMap(f => { const box = f.getBoundingClientRect();
                return [...f.querySelectorAll("svg text")].filter(t => {
                    const b = t.getBoundingClientRect();
                    return b.left < box.left - 1 || b.right > box.right + 1; })
                .map(t => t.textContent); })"""
        )
        assert outside == []
    small = page.locator("svg text").evaluate_all(
        "list => Math.min(...list.map(t => t.getBoundingClientRect().height))"
    )
    assert small >= 12  # pixels of line height: letters stay readable on a phone


STORED = {
    drawings.name(data["text/html"]): data["text/html"]
    for path in sources()
    for data in drawings.explorables(read(path))
} | {drawings.name(html): html for html in map(drawings.on_page, drawings.PAGES)}


@pytest.mark.parametrize("name", STORED)
def test_without_scripts_the_stored_picture_shows(show, name):
    page = show(Explorable(name, STORED[name]), java_script_enabled=False)
    assert page.locator("noscript svg").is_visible() and not page.locator("form").is_visible()
    assert page.locator("noscript p").is_visible()


def test_stored_pictures_are_what_the_browser_draws(browser):
    """To a tenth of a pixel or two: browsers differ in the last digit of an exponential."""

    def parts(svg: str) -> tuple[list[float], str]:
        numbers = re.compile(r"-?\d+(?:\.\d+)?")
        return [float(x) for x in numbers.findall(svg)], numbers.sub("#", svg)

    for name, html in STORED.items():
        kept = drawings.PICTURE.search(html)[0]
        page = browser.new_page(viewport=drawings.VIEW)
        drawn = drawings.drawn(page, drawings.PICTURE.sub("", html))
        page.close()
        (new, frame), (old, stored) = parts(drawn), parts(kept)
        assert frame == stored, name
        assert new == pytest.approx(old, abs=0.21), name


def test_dark_theme_changes_the_colours(show):
    page = show(stream_share())
    card = "getComputedStyle(document.querySelector('figure')).backgroundColor"
    light = page.evaluate(card)
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    dark = page.evaluate(card)
    assert light == "rgb(255, 255, 255)" and dark != light


def claims():
    """Judged claims, a verdict of each kind by turns."""
    with (DATA / "published" / "claims.csv").open() as file:
        read = list(csv.DictReader(file))
    kinds = ([True] * 9, [True, False, None] * 3, [False] * 9, [None] * 9)
    parts = [claim["parts"].split(" | ") for claim in read]
    return audit_rows(
        read,
        {
            claim["id"]: ("shown", kinds[place % 4][: len(parts[place])])
            for place, claim in enumerate(read)
        },
    )


@pytest.mark.parametrize("table_first", [False, True])
def test_the_table_of_claims_follows_the_choice_by_keyboard(show, table_first):
    rows = claims()
    made = [claim_map(rows), audit_table(rows)]
    page = show(*(made[::-1] if table_first else made))
    line, values = page.locator("tr[data-claim]:visible"), {}

    def follows():
        ids = line.evaluate_all("rows => rows.map(row => row.dataset.claim)")
        assert ids == audit_shown(rows, values)
        assert page.locator(".rr-said").inner_text() == audit_sentence(rows, values)
        assert page.locator("svg.rr-picture text.b").count() == len(ids)

    for name, options in (
        ("paper", ["all", *PAPERS]),
        ("verdict", ["all", *VERDICTS]),
        ("order", ["paper", "verdict"]),
    ):
        values[name] = options[0]
        page.locator(f"select[name={name}]").focus()
        for option in options[1:]:
            page.keyboard.press("ArrowDown")
            values = {"paper": "all", "verdict": "all", "order": "paper"} | values
            values[name] = option
            follows()
    # from the last paper and verdict back to everything, now by verdict
    for name, options in (("paper", PAPERS), ("verdict", VERDICTS)):
        page.locator(f"select[name={name}]").focus()
        for _ in options:
            page.keyboard.press("ArrowUp")
        values[name] = "all"
        follows()
    assert line.count() == len(rows)


@pytest.mark.parametrize("width", [360, 1000])
def test_the_table_of_claims_fits_and_stands_without_scripts(show, width):
    rows = claims()
    page = show(claim_map(rows), audit_table(rows), width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    inside = page.locator("svg.rr-picture").evaluate(
        """svg => { const box = svg.getBoundingClientRect(), rows = {};
            for (const t of svg.querySelectorAll("text")) {
                const b = t.getBoundingClientRect();
                if (b.left < box.left - 1 || b.right > box.right + 1) return "outside";
                (rows[t.getAttribute("y")] ||= []).push(b);
            }
            return Object.values(rows).every(list => list.sort((a, b) => a.left - b.left)
                .every((b, i) => !i || list[i - 1].right < b.left)); }"""
    )
    assert inside is True  # no word lies on another
    still = show(claim_map(rows), audit_table(rows), width=width, java_script_enabled=False)
    assert still.locator("tr[data-claim]:visible").count() == len(rows)
    assert still.locator("noscript p").is_visible() and not still.locator("form").is_visible()


# -- buttons in the text --------------------------------------------------------------------------


def test_a_button_in_the_text_sets_an_explorable_and_reset_sets_it_back(show):
    settings = "sublayers=64&amp;rule=convex"
    button = (
        f'<button class="rr-preset" data-explorable="stream-share" data-set="{settings}">'
        "64 sublayers</button>"
    )
    script = (ROOT / "book" / "_static" / "presets.js").read_text(encoding="utf-8")
    parts = button, stream_share().html, f"<script>{script}</script>"
    page = show(Explorable("page", "".join(parts)))
    said = page.locator(".rr-said")
    page.get_by_role("button", name="64 sublayers").click()
    assert said.text_content() == stream_sentence(64, "convex")
    page.get_by_role("button", name="reset").click()
    says = "text => document.querySelector('.rr-said').textContent === text"
    page.wait_for_function(says, arg=stream_sentence(16, "sum"))  # a form resets after the click
