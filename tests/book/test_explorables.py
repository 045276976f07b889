"""Explorables in a real browser: keyboard, dragging, phone, re-rendering, pages without scripts.

The pages are made here from `rrbook.explore`; that the built book carries them is tested elsewhere.
"""

import re
from html import unescape

import drawings
import pytest
from nbkit import ROOT, read, sources

from rrbook.explorables.audit import PAPERS, VERDICTS
from rrbook.explorables.kit import Explorable
from rrbook.explorables.write import START
from rrbook.explore import (
    audit_rows,
    audit_table,
    claim_map,
    gate_playground,
    gated_write,
    stream_share,
)
from tests.explorables import CLAIMS, STARTS

pytestmark = pytest.mark.browser


@pytest.fixture
def show(browser):
    """show(*explorables, width=…) -> page; fails at the end if the page raised an error."""
    pages, errors = [], []

    def make(*shown, width=800, **options):
        page = browser.new_page(viewport={"width": width, "height": 900}, **options)
        pages.append(page)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: errors.append(f"asked for {request.url}"))
        body = "".join(one.html for one in shown)
        page.set_content(f"<!doctype html><meta charset=utf-8><body>{body}</body>")
        return page

    yield make
    for page in pages:
        page.close()
    assert errors == []


def drag(page, knob, right: float, down: float) -> None:
    box = knob.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + right, y + down, steps=5)
    page.mouse.up()


# Goes to control i, and says by which key it moves.
NEXT = """i => {
    const node = document.querySelectorAll("form input:not([type=radio]), form select")[i];
    node?.focus();
    return !node ? null : node.type === "checkbox" ? "Space"
        : node.type === "text" ? "x" : node.value === node.min
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
    sentence, picture = page.locator(".rr-said"), page.locator("svg.rr-picture")
    sentence.get_by_text("up by 4").wait_for()
    before, label = picture.inner_html(), page.locator("label b")
    assert label.inner_text() == "4" and "up" in picture.text_content()
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    assert sentence.inner_text() == "up by 9" and label.inner_text() == "9"
    assert picture.inner_html() != before
    page.locator("select").select_option(label="down")
    assert sentence.inner_text() == "down by 9" and "down" in picture.text_content()


def test_a_dragged_vector_moves_its_sliders_and_a_gate_stays_within_its_box(show):
    page = show(gated_write())
    tip_of_u, tip_of_gated = page.locator("svg.rr-picture circle[style]").all()

    def at(*names):
        return [float(page.locator(f"input[name={name}]").input_value()) for name in names]

    drag(page, tip_of_u, -50, 60)
    u1, u2 = at("u1", "u2")
    assert u1 < START["u1"] and u2 < START["u2"]
    drag(page, tip_of_gated, 400, -300)  # far beyond the tip of u
    assert at("r1", "r2", "u1", "u2") == [1, 1, u1, u2]
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
    tip, length = knob.bounding_box(), size.input_value()
    size.fill("0")
    middle = knob.bounding_box()  # u = 0: the tip of h
    size.fill(length)
    drag(page, knob, 2 * (middle["x"] - tip["x"]), 2 * (middle["y"] - tip["y"]))
    page.mouse.move(tip["x"], tip["y"])  # let go: it stays
    assert (page.locator("input[name=angle]").input_value(), size.input_value()) == ("-70", length)


def test_two_copies_on_one_page_live_apart(show):
    page = show(gate_playground(), stream_share(), gate_playground())
    sentences = page.locator(".rr-said")
    before = sentences.all_inner_texts()
    page.locator("figure").nth(2).locator("input[value=standard]").check()
    page.locator("figure").nth(1).locator("select").select_option("convex")
    after = sentences.all_inner_texts()
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
    page.locator("input[type=range]").nth(1).press("ArrowRight")
    for sentence, sublayers in zip(page.locator(".rr-said").all(), (16, 17, 16), strict=True):
        assert sentence.inner_text().startswith(f"After {sublayers} sublayers under h + u ")


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
    kinds, judged = ([True] * 9, [True, False, None] * 3, [False] * 9, [None] * 9), {}
    for place, claim in enumerate(CLAIMS):
        parts = claim["parts"].split(" | ")
        judged[claim["id"]] = "shown", kinds[place % 4][: len(parts)]
    return audit_rows(CLAIMS, judged)


@pytest.mark.parametrize("table_first", [False, True])
def test_the_table_of_claims_follows_the_choice_by_keyboard(show, table_first):
    rows = claims()
    made = [claim_map(rows), audit_table(rows)]
    page = show(*(made[::-1] if table_first else made))
    line, chosen = page.locator("tr[data-claim]:visible"), {"paper": "all", "verdict": "all"}

    def choose(name, key, options):
        """By one key after the other; each time the table and the picture follow."""
        page.locator(f"select[name={name}]").focus()
        for option in options:
            page.keyboard.press(key)
            chosen[name] = option
            kept = [
                row
                for row in rows
                if chosen["paper"] in ("all", row["paper"])
                and chosen["verdict"] in ("all", row["main_verdict"])
            ]
            if chosen.get("order") == "verdict":
                kept.sort(key=lambda row: VERDICTS.index(row["main_verdict"]))
            ids = line.evaluate_all("rows => rows.map(row => row.dataset.claim)")
            assert ids == [row["id"] for row in kept]
            sentence = page.locator(".rr-said").inner_text()
            assert sentence.startswith(f"{len(kept)} of {len(rows)} claims, ")
            assert page.locator("svg.rr-picture text.b").count() == len(ids)

    choose("paper", "ArrowDown", PAPERS)
    choose("verdict", "ArrowDown", VERDICTS)
    choose("order", "ArrowDown", ["verdict"])
    # from the last paper and verdict back to everything, now by verdict
    choose("paper", "ArrowUp", [*reversed([*PAPERS][:-1]), "all"])
    choose("verdict", "ArrowUp", [*reversed([*VERDICTS][:-1]), "all"])
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
    button = (
        '<button class="rr-preset" data-explorable="stream-share"'
        ' data-set="sublayers=64&amp;rule=convex">64 sublayers</button>'
    )
    script = (ROOT / "book" / "_static" / "presets.js").read_text(encoding="utf-8")
    page = show(Explorable("page", f"{button}{stream_share().html}<script>{script}</script>"))
    sentence = page.locator(".rr-said")
    page.get_by_role("button", name="64 sublayers").click()
    sentence.get_by_text("After 64 sublayers under (h + u)/2 ").wait_for()
    page.get_by_role("button", name="reset").click()
    sentence.get_by_text("After 16 sublayers under h + u ").wait_for()  # a moment after the click
