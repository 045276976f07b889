"""The page in a real browser: it opens, shows everything, works by keyboard, and asks nobody."""

import os
import re

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
ALL_WIDGETS = """() => [...document.querySelectorAll('main .cell_output')]
    .filter(cell => cell.querySelector("script[type*='widget-view']"))
    .every(cell => cell.querySelector('.jupyter-widgets'))"""
PAGES = [pytest.param(page, marks=pytest.mark.xdist_group(page)) for page in contents()]


class Visit:
    """One page, opened in the system's light, with everything that it said and asked for."""

    def __init__(self, browser, server: str, page: str):
        self.page = page
        self.context = browser.new_context(color_scheme="light")
        self.context.set_default_timeout(PATIENCE)
        self.context.add_init_script("localStorage.setItem('mode', 'auto')")
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.tab = self.context.new_page()
        self.tab.on("pageerror", lambda error: self.errors.append(str(error)))
        self.tab.on("console", self._console)
        self.tab.on("request", lambda request: self.requests.append(request.url))
        self.response = self.tab.goto(f"{server}/{page}.html", wait_until="load")
        self.tab.evaluate("""async () => {
            await window.MathJax?.startup?.promise; await document.fonts.ready }""")
        if vendored():
            self.tab.wait_for_function(ALL_WIDGETS)
        self.tab.wait_for_function("""() => !document.querySelector(
            "figure.rr-lab:not([data-ready])")""")  # a recorded lab is unpacked first
        self.tab.wait_for_load_state("networkidle")

    def _console(self, message) -> None:
        if message.type == "error":
            self.errors.append(f"{message.text} ({message.location.get('url', '')})")

    def __enter__(self):
        return self

    def __exit__(self, *exception) -> None:
        self.context.close()


@pytest.fixture(scope="module", params=PAGES)
def seen(browser, server, request):
    """Each page once, in light; the tests of one page follow each other, in one process."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        grouped = os.environ["PYTEST_CURRENT_TEST"].split(" ")[0].endswith(f"@{request.param}")
        assert grouped, (
            "a page's tests are not grouped: give --dist=loadgroup, which pytest 9.2 undoes"
        )
    with Visit(browser, server, request.param) as seen:
        yield seen


def vendored() -> bool:
    return (SITE / "vendor" / "tex-svg.js").exists()


def test_opens_without_errors_shows_everything_and_asks_nobody_else(seen, server):
    assert seen.response.status == 200
    ours = [e for e in seen.errors if not any(noise in e for noise in NOT_OURS)]
    if not vendored():
        ours = [e for e in ours if "ERR_" not in e]  # public scripts, perhaps out of reach
    assert not ours, "\n".join(ours)
    asked = [url for url in seen.requests if not url.startswith((server, "data:", "blob:"))]
    assert not asked or not vendored(), "\n".join(asked)
    assert seen.tab.locator("main article h1").count() == 1
    names = seen.tab.evaluate("""() => [...document.querySelectorAll('main [role=slider]')]
        .map(handle => handle.getAttribute('aria-label'))""")
    assert all(names) or not vendored()  # for screen readers; ipywidgets gives a handle none
    if vendored():
        _mathematics(seen.tab)
        _widgets(seen.tab)
    _images(seen.tab, least=40 if is_chapter(seen.page) else 1)


def _mathematics(tab) -> None:
    raw = tab.evaluate("""() => [...document.querySelectorAll('main .math')]
        .filter(node => !node.querySelector('mjx-container')).map(node => node.textContent)""")
    assert not raw, f"mathematics was not set: {raw[:3]}"
    wrong = tab.evaluate("""() => [...document.querySelectorAll('main [data-mjx-error]')]
        .map(node => node.getAttribute('data-mjx-error'))""")
    assert not wrong, f"mathematics with errors: {wrong[:3]}"


def _widgets(tab) -> None:
    assert tab.evaluate(ALL_WIDGETS), "a cell's widgets are not shown"
    assert tab.locator("main .jupyter-widgets-error-widget").count() == 0


def _images(tab, least: int) -> None:
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
            .filter(([found, wanted]) => found !== wanted).slice(0, 3),
        count: inside.length,
        back: inside.slice(1).filter(([node], i) => above(node, inside[i][0]))
            .map(([node]) => text(node)),
        unseen: inside.filter(([, shows]) => !shows).map(([node]) => text(node)),
        left: !document.activeElement.closest("main article"),
    } }"""


def tab_through(tab):
    """Tab stops at all that can be used, in reading order, is seen there, and leaves in the end."""
    tab.evaluate("document.querySelectorAll('main details').forEach(one => one.open = false)")
    count = tab.evaluate(STOPS)
    for _ in range(count + 1):
        tab.keyboard.press("Tab")
    found = tab.evaluate(STOPPED)
    assert found == {"other": [], "count": count, "back": [], "unseen": [], "left": True}


@pytest.mark.slow
def test_tab_goes_through_every_article_in_reading_order(seen):
    tab_through(seen.tab)


# of each kind of page one: a chapter with explorables and labs, the poster's filters, the map
@pytest.mark.parametrize("page", ["notebooks/04_field_guide", "book/rules", "book/intro"])
def test_tab_goes_through_the_article_in_reading_order(browser, server, page):
    with Visit(browser, server, page) as seen:
        tab_through(seen.tab)


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
    seen.tab.set_viewport_size({"width": 360, "height": 800})
    for figure in seen.tab.evaluate(shown):
        assert figure["shown"] == 1 and figure["height"] >= 11, figure
        if not figure["picture"]:  # the picture of a lab scrolls
            assert figure["phone"] and figure["wider"] <= 1 and not figure["cut"], figure
    assert seen.tab.evaluate("document.documentElement.scrollWidth") <= 360, _wide(seen.tab)
    seen.tab.set_viewport_size({"width": 1280, "height": 800})
    assert not any(figure["phone"] for figure in seen.tab.evaluate(shown))
    assert seen.tab.evaluate("document.documentElement.scrollWidth") <= 1280, _wide(seen.tab)


def test_the_poster_shows_the_rules_that_answer_its_questions(browser, server):
    with Visit(browser, server, "book/rules") as seen:
        shown = lambda: set(seen.tab.locator(".rr-rule:visible .rr-name").all_inner_texts())  # noqa: E731
        every = shown()
        seen.tab.get_by_label("it writes").select_option("gate")
        assert {"review", "highway", "gtrxl"} < shown() < every - {"standard", "constant"}
        seen.tab.get_by_label("it keeps").select_option("scaled")
        assert shown() == {"review-convex", "highway-carry", "gtrxl"}
        assert seen.tab.locator(".rr-poster [aria-live]").inner_text().startswith("3 of ")
        seen.tab.get_by_role("button", name="all rules").click()
        seen.tab.wait_for_function(
            "n => document.querySelectorAll('.rr-rule:not([hidden])').length >= n", arg=30
        )
        assert shown() == every


def test_questions_are_answered_on_the_page(browser, server):
    with Visit(browser, server, "notebooks/00_transformer") as seen:
        box, why = seen.tab.locator(".rr-choose").first, ".rr-choose >> nth=0 >> .rr-why"
        assert not seen.tab.locator(why).is_visible()
        box.get_by_text("only the next one").click()
        assert box.locator(".rr-verdict").inner_text() == "Not this one."
        assert not seen.tab.locator(why).is_visible()
        box.get_by_text("no", exact=True).press("Enter")
        assert box.locator(".rr-verdict").inner_text() == "Right."
        assert seen.tab.locator(why).is_visible()
        number = seen.tab.locator(".rr-number").first
        for given, said in (("x", "Write a number"), ("3", "it is more"), ("5", "it is less")):
            number.locator("input").fill(given)
            number.get_by_role("button").click()
            assert said in number.locator(".rr-verdict").inner_text()
        assert not number.locator(".rr-why").is_visible()
        number.locator("input").fill("4")
        number.locator("input").press("Enter")
        assert number.locator(".rr-why").is_visible()


def test_the_code_of_a_chapter_appears_by_one_switch(browser, server):
    with Visit(browser, server, "notebooks/02_gate_equation") as seen:
        folded = "main div.cell > details.hide"
        count = lambda: seen.tab.locator(f"{folded}:visible").count()  # noqa: E731
        assert count() == 0 < seen.tab.locator(folded).count()
        seen.tab.get_by_role("button", name="Show all code of this chapter").click()
        assert count() > 5 and seen.tab.locator(f"{folded}[open]:visible").count() == count()
        seen.tab.get_by_role("button", name="Hide all code of this chapter").click()
        assert count() == 0


@pytest.mark.parametrize("page", ["what_we_know", "what_failed"])
def test_what_we_know_is_one_screen_and_so_is_a_year_of_failures(page, browser, server):
    with browser.new_context(viewport={"width": 1920, "height": 1080}) as context:
        tab = context.new_page()
        tab.goto(f"{server}/book/{page}.html")
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
        assert not (found := seen.tab.evaluate(OUT_OF_REACH)), "\n".join(found)


def test_tab_begins_with_the_way_past_the_bars_and_is_seen_in_them(browser, server):
    with browser.new_context() as context:
        tab = context.new_page()
        tab.goto(f"{server}/book/intro.html")
        stops = []
        while True:
            tab.keyboard.press("Tab")
            one = tab.evaluate("""() => { const node = document.activeElement;
                const look = getComputedStyle(node);
                return [node.getAttribute("href"), !!node.closest("main article"),
                        look.outlineStyle !== "none" || look.boxShadow !== "none"] }""")
            if one[1]:
                break
            stops.append(one)
        assert stops[0][0] == "#main-content" and len(stops) > 10
        assert all(shows for _, _, shows in stops), stops


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
    const found = await axe.run(
        {exclude: [["mjx-container"], ...code.map(node => [node])]},
        {resultTypes: ["violations"], preload: false, ...shown});
    left.forEach((node, i) => node.append(inside[i]));
    return found.violations.filter(one => ["serious", "critical"].includes(one.impact)).map(one =>
        one.id + ": " + one.nodes.length + ", first " + one.nodes[0].html.slice(0, 160));
}"""


def barriers(tab, theme: str) -> list[str]:
    """By axe-core; in the dark only what depends on colours."""
    script = axe()
    if script is None:
        pytest.skip("npm could not give axe-core")
    switch(tab, theme)
    tab.set_viewport_size({"width": 1280, "height": 900})
    tab.evaluate("code => { window.axe ?? (0, eval)(code) }", script.read_text())
    return tab.evaluate(BARRIERS, theme)


def test_no_serious_barrier(seen):
    assert not (found := barriers(seen.tab, "light")), "\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_page_has_no_serious_barrier_and_leaves_screenshots(seen, theme):
    """One of each size, for somebody to look at; folds closed: a JPEG ends at 65,535 rows."""
    assert not (found := barriers(seen.tab, theme)), "\n".join(found)
    seen.tab.evaluate("document.querySelectorAll('main details').forEach(one => one.open = false)")
    name = re.sub(r"\W+", "-", seen.page)
    for size, width, height in (("-phone", 390, 844), ("", 1280, 900)):
        seen.tab.set_viewport_size({"width": width, "height": height})
        path = ROOT / "_build" / "screens" / f"{name}{size}-{theme}.jpg"
        seen.tab.screenshot(path=path, full_page=True)
        assert path.stat().st_size


# of each kind of page one: their colours come from the same sheets
@pytest.mark.parametrize("page", ["notebooks/03_depth_stability", "book/glossary"])
def test_no_serious_barrier_in_the_dark_of_one_page(browser, server, page):
    with Visit(browser, server, page) as seen:
        assert not (found := barriers(seen.tab, "dark")), "\n".join(found)


FOUND = "() => /found/.test(document.querySelector('#search-results').innerText)"


@pytest.mark.parametrize(("query", "title", "anchor"), [
    ("on its first day it is one half", "On its first day it is one half",
     "02_gate_equation.html#on-its-first-day-it-is-one-half"),
    ("entropy floor", "Glossary", "book/glossary.html#term-entropy-floor"),
])  # fmt: skip
def test_search_finds_a_section_by_its_heading_and_a_term_at_its_home(
    browser, server, query, title, anchor
):
    with browser.new_context() as context:
        tab = context.new_page()
        tab.goto(f"{server}/search.html?q={query}")
        first = tab.locator("#search-results li a").first
        first.wait_for(timeout=PATIENCE)
        tab.wait_for_function(FOUND)
        assert first.inner_text().endswith(title) and anchor in first.get_attribute("href")


def test_search_shows_prose_below_each_result_from_a_disk_with_the_network_off(browser, site):
    with browser.new_context(offline=True) as context:
        tab = context.new_page()
        tab.goto(f"{(site / 'search.html').as_uri()}?q=entropy+floor")
        tab.wait_for_function(FOUND, timeout=PATIENCE)
        excerpts = tab.locator("#search-results li p.context").all_inner_texts()
        assert len(excerpts) > 3 and all(len(text) > 40 for text in excerpts), excerpts
        meaning = "lowest loss that any model can reach"  # of the term
        assert meaning in excerpts[0], excerpts[0]
        assert not [text for text in excerpts if "import " in text], excerpts


def test_a_reference_to_an_equation_shows_it(browser, server):
    with browser.new_context() as context:
        tab = context.new_page()
        tab.goto(f"{server}/notebooks/01_residual_stream.html")
        tab.evaluate("() => window.MathJax?.startup?.promise")
        link = tab.locator('main a.reference[href^="#equation-"]').first
        link.focus()
        box = tab.get_by_role("tooltip")
        assert box.locator("mjx-container svg").count() == 1
        tab.keyboard.press("Escape")
        assert box.count() == 0


def _wide(tab) -> str:
    return "wider than the screen: " + str(
        tab.evaluate("""() =>
        [...document.querySelectorAll('main *')]
        .filter(node => node.getBoundingClientRect().right > innerWidth + 1)
        .slice(0, 5).map(node => node.tagName + '.' + node.className)""")
    )


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
    found = page.locator("a.rr-opener").evaluate_all("links => links.map(a => a.href)")
    page.close()
    assert {*found} == ({address} if address else set())
