"""Explorables in a real browser: keyboard, dragging, phone, re-rendering, pages without scripts.

The pages are made here from `rrbook.explore`; that the built book carries them is tested elsewhere.
"""

import csv
import json
import re
from html import unescape

import drawings
import pytest
from nbkit import ROOT, read, sources

from rr import DATA
from rrbook.explorables.audit import PAPERS, VERDICTS
from rrbook.explorables.write import START
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


# name -> what makes the explorable; not made here, where each process reads this file
STARTS = {
    "held-back": lambda: held_back(STORY, 2),
    "stream-share": stream_share,
    "gate-playground": gate_playground,
    "gated-write": gated_write,
    "depth-cliff": lambda: depth_cliff(RECORDED),
    "verdict-table": lambda: verdict_table(PUBLISHED),
    "depth-attention": depth_attention,
    "loop-growth": loop_growth,
    "rule-field": rule_field,
    "value-dilution": value_dilution,
    "float-formats": float_formats,
    "lost-work": lost_work,
    "size-or-training": lambda: size_or_training(PUBLISHED),
    "step-roofline": step_roofline,
    "winners-luck": winners_luck,
}


# Goes to control i, and says by which key it moves.
NEXT = """i => {
    const node = document.querySelectorAll("form input:not([type=radio]), form select")[i];
    node?.focus();
    return !node ? null : node.type === "checkbox" ? "Space" : node.value === node.min
        ? "ArrowRight" : node.value === "0" ? "ArrowLeft" : "ArrowDown" }"""


@pytest.mark.parametrize("name", STARTS)
def test_every_control_reached_by_tab_changes_the_words(show, name):
    page, i = show(STARTS[name]()), 0
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
    assert "writes 100\u00a0% of its length" in page.locator(".rr-said").inner_text()


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
    said = page.locator(".rr-said")
    assert len(said.all_inner_texts()) == 3 and len({*said.all_inner_texts()}) == 1
    assert said.first.inner_text().startswith("After 16 sublayers under h + u ")
    page.locator("input[type=range]").nth(1).press("ArrowRight")
    assert said.nth(1).inner_text().startswith("After 17 sublayers under h + u ")
    assert said.nth(2).inner_text().startswith("After 16 sublayers under h + u ")


@pytest.mark.parametrize("width", [360, 390, 1000])
def test_nothing_sticks_out(show, width):
    page = show(*(make() for make in STARTS.values()), width=width)
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
        svg, numbers = unescape(svg), re.compile(r"-?\d+(?:\.\d+)?")
        return [float(x) for x in numbers.findall(svg)], numbers.sub("#", svg)

    for name, html in STORED.items():
        kept = drawings.STILL.search(html)[0]
        page = browser.new_page(viewport=drawings.VIEW)
        drawn = drawings.drawn(page, drawings.bare(html))
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
        kept = [
            row
            for row in rows
            if values["paper"] in ("all", row["paper"])
            and values["verdict"] in ("all", row["main_verdict"])
        ]
        if values["order"] == "verdict":
            kept.sort(key=lambda row: VERDICTS.index(row["main_verdict"]))
        assert ids == [row["id"] for row in kept]
        said = page.locator(".rr-said").inner_text()
        assert said.startswith(f"{len(kept)} of {len(rows)} claims, ")
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
    assert said.text_content().startswith("After 64 sublayers under (h + u)/2 ")
    page.get_by_role("button", name="reset").click()
    says = "text => document.querySelector('.rr-said').textContent.startsWith(text)"
    # a form resets after the click
    page.wait_for_function(says, arg="After 16 sublayers under h + u ")
