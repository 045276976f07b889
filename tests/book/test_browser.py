"""The page in a real browser: it opens, shows everything, works by keyboard, and asks nobody."""

import os
import re
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace

import pytest
from pdf import contents
from vendor import axe

from .conftest import ROOT, SITE, is_chapter

pytestmark = pytest.mark.browser

# console errors that are not ours, each with its reason
NOT_OURS = [
    "Got invalid theme mode",  # the theme, before a reader has ever chosen a mode
]
PATIENCE = 120_000  # milliseconds: ends what hangs, never what is slow
PAGES = [pytest.param(page, marks=pytest.mark.xdist_group(page)) for page in contents()]


@contextmanager
def visit(browser, address: str, **options):
    """A page in the system's light, once all is there, with what it asked for and its errors."""
    with browser.new_context(color_scheme="light", **options) as context:
        context.set_default_timeout(PATIENCE)
        context.add_init_script("localStorage.setItem('mode', 'auto')")
        tab, errors, requests = context.new_page(), [], []

        def keep_errors(message):
            if message.type == "error":
                errors.append(f"{message.text} ({message.location.get('url', '')})")

        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.on("console", keep_errors)
        tab.on("request", lambda request: requests.append(request.url))
        tab.goto(address)
        tab.evaluate("""async () => {
            await window.MathJax?.startup?.promise; await document.fonts.ready }""")
        tab.wait_for_function("""() => !document.querySelector(
            "figure.rr-lab:not([data-ready])")""")  # a recorded lab is unpacked first
        tab.wait_for_load_state("networkidle")
        yield SimpleNamespace(tab=tab, errors=errors, requests=requests)


@pytest.fixture
def tab_of(browser, server):
    """tab_of(page) -> the tab that shows it, until the test ends."""
    with ExitStack() as stack:
        yield (
            lambda page, **options: (
                stack.enter_context(visit(browser, f"{server}/{page}", **options)).tab
            )
        )


@pytest.fixture(scope="module", params=PAGES)
def seen(browser, server, request):
    """Each page once, in light; the tests of one page follow each other, in one process."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        grouped = os.environ["PYTEST_CURRENT_TEST"].split(" ")[0].endswith(f"@{request.param}")
        assert grouped, (
            "a page's tests are not grouped: give --dist=loadgroup, which pytest 9.2 undoes"
        )
    with visit(browser, f"{server}/{request.param}.html") as seen:
        seen.page = request.param
        yield seen


def vendored() -> bool:
    return (SITE / "vendor" / "tex-svg.js").exists()


def test_opens_without_errors_and_asks_nobody_else(seen, server):
    if not vendored():
        pytest.skip("npm could not give the scripts of the page")
    errors = [e for e in seen.errors if not any(noise in e for noise in NOT_OURS)]
    assert not errors, "\n".join(errors)
    asked = [url for url in seen.requests if not url.startswith((server, "data:", "blob:"))]
    assert not asked, "\n".join(asked)
    assert seen.tab.locator("main article h1").count() == 1
    unset = seen.tab.evaluate("""() => [...document.querySelectorAll('main .math')]
        .filter(node => !node.querySelector('mjx-container')).map(node => node.textContent)""")
    assert not unset, f"mathematics was not set: {unset[:3]}"
    assert seen.tab.locator("main [data-mjx-error]").all_inner_texts() == []


def test_shows_every_picture_and_says_in_words_what_it_shows(seen):
    tab, least = seen.tab, 40 if is_chapter(seen.page) else 1
    tab.evaluate("() => document.querySelectorAll('main img').forEach(i => i.loading = 'eager')")
    images = tab.evaluate("""async () => Promise.all(
        [...document.querySelectorAll('main article img')].map(async image => {
            try { await image.decode() } catch { return [image.src, '', 0] }
            return [image.src, image.alt, image.naturalWidth]
        }))""")
    for source, alt, width in images:
        assert width > 0, f"{source} does not show"
        assert len(alt) >= least, f"{source}: its alternative text is {alt!r}"
    words = tab.evaluate("""() => [...document.querySelectorAll('main svg.rr-figure')]
        .map(figure => figure.getAttribute('aria-label'))""")
    assert all(len(alt) >= least for alt in words), words
    twice = tab.evaluate("""() => { const ids = [...document.querySelectorAll('svg.rr-figure [id]')]
        .map(node => node.id); return ids.filter((id, i) => ids.indexOf(id) !== i) }""")
    assert not twice, f"figures share the ids {twice}"


# Where Tab should stop in the article, and, in `stops`, where it did and whether that is seen.
STOPS = """() => {
    const article = document.querySelector("main article"), group = node =>
        [...article.querySelectorAll("input[type=radio]")].filter(one => one.name === node.name
            && one.form === node.form);
    window.stops = [];
    document.addEventListener("focusin", event => {
        const look = getComputedStyle(event.target);
        stops.push([event.target, look.outlineStyle !== "none" || look.boxShadow !== "none"]);
    });
    window.expected = [...article.querySelectorAll(
        "a[href], button, input, select, textarea, summary, iframe, [tabindex], [contenteditable]"
    )].filter(node => (node.tabIndex >= 0 || node.isContentEditable) && !node.disabled
        && node.getClientRects().length && node.checkVisibility({visibilityProperty: true})
        && (node.type !== "radio" || node.checked
            || group(node)[0] === node && !group(node).some(one => one.checked)));
    article.tabIndex = -1;
    article.focus();
    stops.length = 0;
    return expected.length }"""
STOPPED = """() => {
    const inside = stops.filter(([node]) => node.closest("main article"));
    const text = node => node?.outerHTML.slice(0, 120);
    const above = (one, other) => {  // and not in the next column
        const [a, b] = [one.getBoundingClientRect(), other.getBoundingClientRect()];
        return a.bottom < b.top && a.left < b.right };
    return {
        other: inside.map(([node], i) => [text(node), text(expected[i])])
            .filter(([actual, wanted]) => actual !== wanted).slice(0, 3),
        count: inside.length,
        back: inside.slice(1).filter(([node], i) => above(node, inside[i][0]))
            .map(([node]) => text(node)),
        unseen: inside.filter(([, shows]) => !shows).map(([node]) => text(node)),
        left: !document.activeElement.closest("main article"),
    } }"""


def tab_through(tab):
    """Tab stops at all that can be used, in reading order, is seen there, and leaves in the end."""
    tab.evaluate("document.querySelectorAll('main details').forEach(one => one.open = false)")
    tab.wait_for_timeout(600)  # what overflows, and so can be focused, is found after a new layout
    count = tab.evaluate(STOPS)
    for _ in range(count + 1):
        tab.keyboard.press("Tab")
    stopped = tab.evaluate(STOPPED)
    assert stopped == {"other": [], "count": count, "back": [], "unseen": [], "left": True}


@pytest.mark.slow
def test_tab_goes_through_every_article_in_reading_order(seen):
    tab_through(seen.tab)


# of each kind of page one: a chapter with explorables and labs, the poster's filters, the map
@pytest.mark.parametrize("page", ["notebooks/04_field_guide", "book/rules", "book/intro"])
def test_tab_goes_through_the_article_in_reading_order(tab_of, page):
    tab_through(tab_of(f"{page}.html"))


def test_figures_are_read_on_a_phone(seen):
    """Each is shown once, laid out for it: whole, in letters of 11 pixels; none scrolls."""
    shown = """width => [...document.querySelectorAll(".rr-figure-box")].map(box => {
        const all = [...box.querySelectorAll("svg")].filter(svg => svg.getClientRects().length);
        const [svg] = all, edge = box.getBoundingClientRect();
        const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
        const words = [...svg.querySelectorAll("text")];
        return {shown: all.length, picture: svg.matches(".rr-picture"),
            phone: svg.matches(".rr-phone"), wider: box.scrollWidth - box.clientWidth,
            height: scale * Math.min(...words.map(t => parseFloat(getComputedStyle(t).fontSize))),
            cut: words.map(t => [t.getBoundingClientRect(), t.textContent]).filter(([at]) =>
                at.left < edge.left - 1 || at.right > edge.right + 1).map(([, text]) => text)}
        })"""
    for width in (360, 1280):
        seen.tab.set_viewport_size({"width": width, "height": 800})
        for figure in seen.tab.evaluate(shown):
            assert figure["shown"] == 1 and figure["height"] >= 11, figure
            if not figure["picture"]:  # the picture of a lab scrolls
                assert figure["phone"] == (width == 360), figure
                assert figure["wider"] <= 1 and not figure["cut"], figure
        assert seen.tab.evaluate("document.documentElement.scrollWidth") <= width


def test_the_poster_shows_the_rules_that_answer_its_questions(tab_of):
    tab = tab_of("book/rules.html")

    def shown():
        return {*tab.locator(".rr-rule:visible .rr-name").all_inner_texts()}

    every = shown()
    tab.get_by_label("it writes").select_option("gate")
    assert {"review", "highway", "gtrxl"} < shown() < every - {"standard", "constant"}
    assert tab.url.endswith("?writes=gate")
    tab.get_by_label("it keeps").select_option("scaled")
    assert shown() == {"review-convex", "highway-carry", "gtrxl"}
    assert tab.locator(".rr-poster [aria-live]").inner_text().startswith("3 of ")
    tab.get_by_role("button", name="all rules").click()
    tab.wait_for_function(
        "n => document.querySelectorAll('.rr-rule:not([hidden])').length >= n", arg=30
    )
    assert shown() == every and tab.url.endswith("rules.html")
    assert tab_of("book/rules.html?keeps=scaled&writes=gate").locator(
        ".rr-poster [aria-live]").inner_text().startswith("3 of ")  # fmt: skip


def test_questions_are_answered_on_the_page(tab_of):
    tab = tab_of("notebooks/00_transformer.html")
    box = tab.locator(".rr-choose", has_text="only the next one")
    number = tab.locator(".rr-number[data-right='256.0']")
    for click, verdict in (("only the next one", "Not this one."), ("no", "Right.")):
        assert not box.locator(".rr-why").is_visible()
        box.get_by_text(click, exact=True).press("Enter")
        assert box.locator(".rr-verdict").inner_text() == verdict
    assert box.locator(".rr-why").is_visible()
    box.get_by_text("only the next one", exact=True).press("Enter")
    assert not box.locator(".rr-why").is_visible()  # it explained another answer
    for given, verdict in (("x", "reads numbers: "), ("3", "it is more"), ("500", "it is less")):
        number.locator("input").fill(given)
        number.get_by_role("button").click()
        assert verdict in number.locator(".rr-verdict").inner_text()
    assert not number.locator(".rr-why").is_visible()
    number.locator("input").fill("2^8")
    number.locator("input").press("Enter")
    assert number.locator(".rr-why").is_visible()
    number.locator("input").fill("40")
    assert not number.locator(".rr-why").is_visible()


ANSWERED = [  # what a reader writes, the box's answer and unit
    ("9,5", 9.516, "per cent"),
    ("9.5 %", 9.516, "per cent"),
    ("64*65/2", 2080, ""),
    ("64 × 65 ÷ 2", 2080, ""),
    ("2,080", 2080, ""),
    ("2 080", 2080, ""),
    ("9,440,256", 9440256, ""),
    ("4·1536² ", None, ""),
    ("4*1536^2 + 2*1536", 9440256, ""),
    ("2**8", 256, ""),
    ("1/5", 0.2, ""),
    ("20%", 0.2, ""),
    ("0,125", 0.125, ""),
    ("−0,6931", -0.6931, ""),
    ("-(1/2)^2", -0.25, ""),
    ("√(4/64)", 0.25, ""),
    ("1e-3", 0.001, ""),
    ("", None, ""),
    ("a fifth", None, ""),
    ("1/0", None, ""),
    ("3 4", None, ""),
]


@pytest.mark.parametrize(("given", "right", "unit"), ANSWERED)
def test_a_box_reads_what_people_write(browser, given, right, unit):
    """Commas, products, fractions, powers, percent; of anything else it says what it reads."""
    script = (ROOT / "book" / "_static" / "answers.js").read_text(encoding="utf-8")
    wanted = 7 if right is None else right
    box = (
        f'<div class="rr-number" data-right="{wanted}" data-within="0.002" data-unit="{unit}">'
        '<div class="rr-why">Because.</div></div>'
    )
    page = browser.new_page()
    page.set_content(f"{box}<script>{script}</script>")
    page.locator("input").fill(given)
    page.get_by_role("button").click()
    said, shown = page.locator(".rr-verdict").inner_text(), page.locator(".rr-why").is_visible()
    page.locator("input").fill(f"{-2 * wanted - 1}")  # wrong: the explanation goes
    page.get_by_role("button").click()
    after = page.locator(".rr-why").is_visible()
    page.close()
    assert not after
    assert (said == "Right.", shown) == (right is not None,) * 2
    if right is None:
        assert said.startswith("This box reads numbers: 0.5 or 0,5")


def test_the_code_of_a_chapter_appears_by_one_switch(tab_of):
    tab, stays = tab_of("notebooks/02_gate_equation.html"), ".tag_small, .tag_hide-output"
    folded = f"main div.cell:not({stays}) > details.hide"
    lines = tab.locator(f"main div.cell:is({stays}) > details.hide:visible")
    assert lines.count() == 3  # two parts of the file and the whole of it, each a line to open
    assert tab.locator(f"{folded}:visible").count() == 0 < tab.locator(folded).count()
    tab.get_by_role("button", name="Show all code of this chapter").click()
    assert tab.locator(f"{folded}[open]:visible").count() > 5
    assert tab.locator(f"{folded}:not([open]):visible").count() == 0
    tab.get_by_role("button", name="Hide all code of this chapter").click()
    assert tab.locator(f"{folded}:visible").count() == 0


@pytest.mark.parametrize("page", ["what_we_know", "what_failed"])
def test_what_we_know_is_one_screen_and_so_is_a_year_of_failures(page, tab_of):
    tab = tab_of(f"book/{page}.html", viewport={"width": 1920, "height": 1080})
    ends = tab.evaluate("document.querySelector('table').getBoundingClientRect().bottom")
    assert 0 < ends < 1080, ends


# What is cut off at the screen's edge, or scrolls there and cannot be scrolled by keyboard.
OUT_OF_REACH = """async () => {
    const scrolls = node => ["auto", "scroll"].includes(getComputedStyle(node).overflowX)
        && node.scrollWidth > node.clientWidth + 2;
    const box = node => node && (scrolls(node) ? node : box(node.parentElement));
    const look = () => [...document.querySelectorAll("main article *")]
        .filter(node => node.getClientRects().length && !node.parentElement.closest("svg"))
        .filter(node => scrolls(node) ? node.tabIndex < 0
            : node.getBoundingClientRect().right > innerWidth + 2 && !box(node))
        .map(node => node.outerHTML.slice(0, 120));
    for (let i = 0; i < 50 && look().length; i++)  // the page notices a new width a moment later
        await new Promise(done => setTimeout(done, 100));
    return look() }"""


def test_wide_text_equations_and_tables_scroll_by_keyboard_on_a_phone(seen):
    seen.tab.set_viewport_size({"width": 360, "height": 800})
    for fold in (False, True):  # and so does what a fold holds
        seen.tab.evaluate(
            """open => document.querySelectorAll("main details")
            .forEach(one => one.open = open)""",
            fold,
        )
        assert not (nodes := seen.tab.evaluate(OUT_OF_REACH)), "\n".join(nodes)


def test_tab_begins_with_the_way_past_the_bars_and_is_seen_in_them(tab_of):
    tab, links, inside = tab_of("book/intro.html"), [], False
    while not inside:
        tab.keyboard.press("Tab")
        link, shows, inside = tab.evaluate("""() => { const node = document.activeElement;
            const look = getComputedStyle(node);
            return [node.getAttribute("href"), look.outlineStyle !== "none" ||
                    look.boxShadow !== "none", !!node.closest("main article")] }""")
        assert shows, link
        links.append(link)
    assert links[0] == "#main-content" and len(links) > 10


def switch(tab, theme: str) -> None:
    tab.emulate_media(color_scheme=theme)  # the page follows the system
    tab.wait_for_function("t => document.documentElement.dataset.theme === t", arg=theme)


def test_figures_keep_their_colours_in_the_dark(seen):
    switch(seen.tab, "dark")
    ink = "getComputedStyle(document.documentElement).getPropertyValue('--rr-fig-ink')"
    assert seen.tab.evaluate(ink) == "#e4e7ea"  # rrbook/figures/dark.css is on the page
    filters = seen.tab.evaluate("""() => [...document.querySelectorAll('img.dark-light')]
        .map(image => getComputedStyle(image).filter)""")
    assert all(value == "none" for value in filters), "dark mode shifts a figure's colours"


# What axe-core reads: not the inside of pictures that have a text of their own, and of code, whose
# colours are those of one palette for high contrast, one block alone. All that is taken out of the
# page meanwhile, because axe-core asks for the place and colours of what it is not to judge, too.
BARRIERS = """async theme => {
    // colours on their way to a theme, bars to their place; then what is wide is marked
    document.getAnimations().forEach(one => one.finish());
    for (let i = 0; i < 3; i++) await new Promise(requestAnimationFrame);
    const code = [...document.querySelectorAll("div.highlight")].slice(1);
    const left = [...document.querySelectorAll("mjx-container, svg.rr-figure, svg.rr-picture"),
                  ...code];
    const inside = left.map(node => {
        const kept = document.createDocumentFragment();
        kept.append(...node.childNodes);
        return kept });
    const shown = theme === "light" ? {rules: {region: {enabled: false}}} :  // moderate at most
        {runOnly: {type: "rule", values: ["color-contrast", "link-in-text-block"]}};
    const result = await axe.run(
        {exclude: [["mjx-container"], ...code.map(node => [node])]},
        {resultTypes: ["violations"], preload: false, ...shown});
    left.forEach((node, i) => node.append(inside[i]));
    return result.violations.filter(one => ["serious", "critical"].includes(one.impact)).map(one =>
        one.id + ": " + one.nodes.length + ", first " + one.nodes[0].html.slice(0, 160));
}"""


def has_no_barrier(tab, theme: str) -> None:
    """By axe-core; in the dark only what depends on colours."""
    script = axe()
    if script is None:
        pytest.skip("npm could not give axe-core")
    switch(tab, theme)
    tab.set_viewport_size({"width": 1280, "height": 900})
    tab.evaluate("code => { window.axe ?? (0, eval)(code) }", script.read_text())
    assert not (barriers := tab.evaluate(BARRIERS, theme)), "\n".join(barriers)


def test_no_serious_barrier(seen):
    has_no_barrier(seen.tab, "light")


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_page_has_no_serious_barrier_and_leaves_screenshots(seen, theme):
    """One of each size, for somebody to look at; folds closed: a JPEG ends at 65,535 rows."""
    has_no_barrier(seen.tab, theme)
    seen.tab.evaluate("document.querySelectorAll('main details').forEach(one => one.open = false)")
    name = re.sub(r"\W+", "-", seen.page)
    for size, width, height in (("-phone", 390, 844), ("", 1280, 900)):
        seen.tab.set_viewport_size({"width": width, "height": height})
        path = ROOT / "_build" / "screens" / f"{name}{size}-{theme}.jpg"
        seen.tab.screenshot(path=path, full_page=True)
        assert path.stat().st_size


# of each kind of page one: their colours come from the same sheets
@pytest.mark.parametrize("page", ["notebooks/03_depth_stability", "book/glossary"])
def test_no_serious_barrier_in_the_dark_of_one_page(tab_of, page):
    has_no_barrier(tab_of(f"{page}.html"), "dark")


SEARCHED = "() => /found/.test(document.querySelector('#search-results').innerText)"


@pytest.mark.parametrize(("query", "title", "anchor"), [
    ("on its first day it is one half", "On its first day it is one half",
     "02_gate_equation.html#on-its-first-day-it-is-one-half"),
    ("entropy floor", "Glossary", "book/glossary.html#term-entropy-floor"),
])  # fmt: skip
def test_search_finds_a_section_by_its_heading_and_a_term_at_its_home(tab_of, query, title, anchor):
    tab = tab_of(f"search.html?q={query}")
    tab.wait_for_function(SEARCHED)
    first = tab.locator("#search-results li a").first
    assert first.inner_text().endswith(title) and anchor in first.get_attribute("href")


def test_search_shows_prose_below_each_result_from_a_disk_with_the_network_off(browser, site):
    address = f"{(site / 'search.html').as_uri()}?q=entropy+floor"
    with visit(browser, address, offline=True) as seen:
        seen.tab.wait_for_function(SEARCHED)
        excerpts = seen.tab.locator("#search-results li p.context").all_inner_texts()
    assert len(excerpts) > 3 and all(len(text) > 40 for text in excerpts), excerpts
    assert "lowest loss that any model can reach" in excerpts[0]  # what the term means
    assert not [text for text in excerpts if "import " in text], excerpts


def test_a_search_for_a_word_begins_with_the_chapter_about_it(tab_of):
    tab = tab_of("search.html?q=gate")
    tab.wait_for_function(SEARCHED)
    first = tab.locator("#search-results li a").first.inner_text()
    assert "The gate equation" in first


def test_a_reference_to_an_equation_shows_it(tab_of):
    tab = tab_of("notebooks/01_residual_stream.html")
    tab.locator('main a.reference[href^="#equation-"]:visible').first.focus()
    box = tab.get_by_role("tooltip")
    assert box.locator("mjx-container svg").count() == 1
    tab.keyboard.press("Escape")
    assert box.count() == 0


def test_a_word_of_the_glossary_shows_its_meaning(tab_of):
    tab = tab_of("notebooks/01_residual_stream.html")
    link = tab.locator("main a[href*='glossary.html#term-sublayer']").first
    link.focus()
    said = tab.get_by_role("tooltip").inner_text()
    assert "attention or" in said and link.get_attribute("title") is None  # the browser's own
    tab.keyboard.press("Escape")
    assert tab.get_by_role("tooltip").count() == 0
    link.blur()
    link.focus()
    assert tab.get_by_role("tooltip").inner_text() == said


def test_the_sidebar_shows_where_one_is_after_many_pages(tab_of):
    tab = tab_of("book/intro.html")
    for page in ("notebooks/07_depth_attention", "notebooks/14_emergence", "book/glossary"):
        tab.evaluate("page => { location.href = '../' + page + '.html' }", page)
        tab.wait_for_url(f"**/{page}.html")
        tab.wait_for_load_state("networkidle")
        box = tab.locator("nav.bd-links li.current > a").last.bounding_box()
        assert 0 <= box["y"] and box["y"] + box["height"] <= tab.viewport_size["height"], page


def test_on_a_phone_the_picture_stays_above_its_sliders(tab_of):
    tab = tab_of("notebooks/02_gate_equation.html", viewport={"width": 390, "height": 844})
    figure = tab.locator("figure[data-explorable=live-network]")
    picture, slider = figure.locator("svg.rr-picture"), figure.locator("input[name=word]")
    assert picture.bounding_box()["y"] < slider.bounding_box()["y"]
    slider.evaluate("node => scrollBy(0, node.getBoundingClientRect().top - 600)")
    seen = picture.bounding_box()
    assert 0 <= seen["y"] and seen["y"] + seen["height"] <= slider.bounding_box()["y"] + 1


@pytest.mark.parametrize("address", ["https://colab.research.google.com/x.ipynb", ""])
def test_an_exercise_opens_where_it_runs(browser, address):
    """Without a home address the page has no Colab button, so none beside an exercise."""
    script = (ROOT / "book" / "_static" / "chapter.js").read_text(encoding="utf-8")
    opens = f'<a href="{address}">Colab</a>' if address else ""
    stub = '<div class="cell"><pre>half = None\nprint(check("ex-01-half", half))</pre></div>'
    other = '<div class="cell"><pre>print(1)</pre></div>'
    page = browser.new_page()
    page.set_content(f"<main>{opens}{other}{stub}</main><script>{script}</script>")
    page.evaluate("window.dispatchEvent(new Event('DOMContentLoaded'))")
    openers = page.locator("a.rr-opener").evaluate_all("links => links.map(a => a.href)")
    page.close()
    assert {*openers} == ({address} if address else set())
