"""The page in a real browser: it opens, shows everything, works by keyboard, and asks nobody."""

import re

import pytest
from nbkit import is_report, read

from .conftest import ROOT, SITE, is_chapter, toc

pytestmark = pytest.mark.browser
SCREENS = ROOT / "_build" / "screens"

# console errors that are not ours, each with its reason
NOT_OURS = [
    "THEBE_JS_URL",  # sphinx-thebe, which Jupyter Book 1 always loads, declares it twice
    "Got invalid theme mode",  # the theme, before a reader has ever chosen a mode
]
MODES = {
    "light": ({"width": 1280, "height": 900}, "light"),
    "dark": ({"width": 1280, "height": 900}, "dark"),
    "phone": ({"width": 390, "height": 844}, "light"),
    "phone-dark": ({"width": 390, "height": 844}, "dark"),
}
PAGES = toc()


class Visit:
    """One page, opened in one mode, with everything that it said and asked for."""

    def __init__(self, browser, server: str, page: str, mode: str = "light", scripts: bool = True):
        viewport, theme = MODES[mode]
        self.context = browser.new_context(
            viewport=viewport, color_scheme=theme, java_script_enabled=scripts)
        self.context.add_init_script(
            f"localStorage.setItem('mode', '{theme}'); localStorage.setItem('theme', '{theme}')")
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.tab = self.context.new_page()
        self.tab.on("pageerror", lambda error: self.errors.append(str(error)))
        self.tab.on("console", self._console)
        self.tab.on("request", lambda request: self.requests.append(request.url))
        self.response = self.tab.goto(f"{server}/{page}.html", wait_until="load")
        if scripts:
            self.tab.evaluate("async () => { await window.MathJax?.startup?.promise }")
            self.tab.wait_for_load_state("networkidle")

    def _console(self, message) -> None:
        if message.type == "error":
            self.errors.append(f"{message.text} ({message.location.get('url', '')})")

    def __enter__(self):
        return self

    def __exit__(self, *exception) -> None:
        self.context.close()


@pytest.fixture
def visit(browser, server):
    def open_page(page: str, mode: str = "light", scripts: bool = True) -> Visit:
        return Visit(browser, server, page, mode, scripts)

    return open_page


@pytest.fixture(scope="module")
def opened(browser, server):
    """Each page once, in light: what it said and asked for while it opened."""
    visits: dict[str, Visit] = {}

    def look(page: str) -> Visit:
        return visits.get(page) or visits.setdefault(page, Visit(browser, server, page))

    yield look
    for seen in visits.values():
        seen.context.close()


def vendored() -> bool:
    return (SITE / "vendor" / "tex-svg.js").exists()


@pytest.mark.parametrize("page", PAGES)
def test_opens_without_errors_and_shows_everything(opened, page):
    seen = opened(page)
    assert seen.response.status == 200
    ours = [e for e in seen.errors if not any(noise in e for noise in NOT_OURS)]
    if not vendored():
        ours = [e for e in ours if "ERR_" not in e]  # public scripts, perhaps out of reach
    assert not ours, "\n".join(ours)
    assert seen.tab.locator("main article h1").count() == 1
    if vendored():
        _mathematics(seen.tab)
        _widgets(seen.tab)
    _images(seen.tab, least=40 if is_chapter(page) else 1)


def _mathematics(tab) -> None:
    raw = tab.evaluate("""() => [...document.querySelectorAll('main .math')]
        .filter(node => !node.querySelector('mjx-container')).map(node => node.textContent)""")
    assert not raw, f"mathematics was not set: {raw[:3]}"
    wrong = tab.evaluate("""() => [...document.querySelectorAll('main [data-mjx-error]')]
        .map(node => node.getAttribute('data-mjx-error'))""")
    assert not wrong, f"mathematics with errors: {wrong[:3]}"


def _widgets(tab) -> None:
    views = tab.locator("script[type*='widget-view']").count()
    if views:
        tab.wait_for_selector("main .jupyter-widgets", timeout=15_000)
        shown = tab.evaluate("""() => [...document.querySelectorAll('main .cell_output')]
            .filter(cell => cell.querySelector("script[type*='widget-view']"))
            .every(cell => cell.querySelector('.jupyter-widgets'))""")
        assert shown, "a cell's widgets are not shown"
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


@pytest.mark.parametrize("page", PAGES)
def test_asks_nobody_else(opened, server, page):
    if not vendored():
        pytest.skip("built without npm: mathematics and widgets come from public addresses")
    own = (server, "data:", "blob:")
    asked = [url for url in opened(page).requests if not url.startswith(own)]
    assert not asked, "\n".join(asked)


@pytest.mark.parametrize("page", [page for page in PAGES if is_chapter(page)])
def test_explorables_answer_the_keyboard(visit, page):
    with visit(page) as seen:
        figures = seen.tab.locator("figure.rr-explorable[data-explorable]")
        reports = is_report(read(ROOT / f"{page}.ipynb"))
        assert reports or figures.count() >= 1, "a chapter has at least one explorable"
        for i in range(figures.count()):
            _answers(figures.nth(i))


def _answers(figure) -> None:
    name = figure.get_attribute("data-explorable")
    nameless = figure.evaluate("""root => [...root.querySelectorAll('input, select, button')]
        .filter(node => !(node.labels?.length || node.getAttribute('aria-label')
                          || node.textContent.trim())).length""")
    assert nameless == 0, f"{name}: {nameless} controls have no label"
    live, svg = figure.locator("[aria-live]"), figure.locator("svg").first

    def state() -> tuple[str, list[str]]:
        return svg.evaluate("node => node.outerHTML"), live.all_inner_texts()

    before = state()
    control = figure.locator("input, select").first
    control.focus()
    control.press("ArrowRight")
    after = state()
    if before == after:  # it stands at its end: the other way
        control.press("ArrowLeft")
        control.press("ArrowLeft")
        after = state()
    assert before[0] != after[0], f"{name}: the picture does not change"
    assert before[1] != after[1], f"{name}: the sentence for screen readers does not change"


@pytest.mark.parametrize("page", [page for page in PAGES if is_chapter(page)])
def test_explorables_have_a_picture_without_scripts(visit, page):
    with visit(page, scripts=False) as seen:
        for figure in seen.tab.locator("figure.rr-explorable").all():
            fallback = figure.locator("noscript")
            assert fallback.count() == 1 and fallback.bounding_box()["height"] > 10


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("page", PAGES)
def test_looks(visit, page, mode):
    with visit(page, mode) as seen:
        assert seen.tab.evaluate("document.documentElement.dataset.theme") == MODES[mode][1]
        width = seen.tab.evaluate("document.documentElement.scrollWidth")
        assert width <= MODES[mode][0]["width"], _wide(seen.tab)
        if vendored() and seen.tab.locator("script[type*='widget-view']").count():
            seen.tab.wait_for_selector("main .jupyter-widgets", timeout=15_000)
        name = re.sub(r"\W+", "-", page)
        seen.tab.screenshot(path=SCREENS / f"{name}-{mode}.png", full_page=True)
        filters = seen.tab.evaluate("""() => [...document.querySelectorAll('img.dark-light')]
            .map(image => getComputedStyle(image).filter)""")
        assert all(value == "none" for value in filters), "dark mode shifts a figure's colours"


def _wide(tab) -> str:
    return "wider than the screen: " + str(tab.evaluate("""() =>
        [...document.querySelectorAll('main *')]
        .filter(node => node.getBoundingClientRect().right > innerWidth + 1)
        .slice(0, 5).map(node => node.tagName + '.' + node.className)"""))
