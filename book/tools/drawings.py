"""The explorables' pictures for pages without scripts: drawn by a browser, kept in the notebooks.

An explorable's script is the one source of its picture and of the sentence below it. `make store`
opens each explorable that has changed in Chromium, and puts both into the `<noscript>` of the
stored output. A notebook that is executed anew takes them from the stored one, where the explorable
is the same to the letter; so a page can be built without a browser.
"""

import re
import shutil
from collections.abc import Iterable, Iterator

from nbformat import NotebookNode
from nbkit import ROOT, code_cells

PAGES = ("gated_write",)  # explorables of pages that are no notebooks: what they draw is a file
PLACE = ROOT / "book" / "tools"
FIGURE = '<figure class="rr-explorable"'
NAME = re.compile(r'data-explorable="([^"]+)"')
STILL = re.compile(r"<noscript>.*?</noscript>", re.DOTALL)
VIEW = {"width": 1280, "height": 900}  # wide enough for the full width of a picture
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# A tenth of a pixel is enough, and the same from one version of the browser to the next.
TAKE = """() => {
    const svg = document.querySelector("svg.rr-picture").cloneNode(true);
    svg.removeAttribute("class");
    const places = ["d", "x", "y", "x1", "y1", "x2", "y2", "cx", "cy", "r", "width", "height"];
    for (const node of [svg, ...svg.querySelectorAll("*")])
        for (const name of places.filter(name => node.hasAttribute(name)))
            node.setAttribute(name, node.getAttribute(name).replace(
                /-?\\d+\\.\\d+(e-?\\d+)?/g, x => String(Math.round(x * 10) / 10 + 0)));
    const sentence = document.createElement("p");
    sentence.textContent = document.querySelector(".rr-said").textContent;
    const tables = [...document.querySelectorAll(".rr-live table")].map(table => table.outerHTML);
    return "<noscript>" + [svg.outerHTML, sentence.outerHTML, ...tables].join("") + "</noscript>";
}"""


def chromium() -> str | None:
    """The browser that is installed, under any of its names."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for path in map(shutil.which, names) if path), None)


def explorables(notebook: NotebookNode) -> Iterator[NotebookNode]:
    """The outputs that are explorables; their HTML is in `data["text/html"]`."""
    for cell in code_cells(notebook):
        for output in cell.outputs:
            if output.get("data", {}).get("text/html", "").startswith(FIGURE):
                yield output.data


def bare(html: str) -> str:
    """An explorable without what a page without scripts shows of it."""
    return STILL.sub("", html)


def is_drawn(html: str) -> bool:
    """Whether a page without scripts has a picture to show."""
    return any("<svg" in still for still in STILL.findall(html))


def keep(notebook: NotebookNode, stored: NotebookNode) -> list[str]:
    """Give explorables without a picture that of the same one in `stored`; the HTML of the rest."""
    stills = [data["text/html"] for data in explorables(stored)]
    known = {bare(html): html for html in stills if is_drawn(html)}
    missing = []
    for data in explorables(notebook):
        if not is_drawn(data["text/html"]):
            data["text/html"] = known.get(bare(data["text/html"]), data["text/html"])
            if not is_drawn(data["text/html"]):
                missing.append(data["text/html"])
    return missing


def _html(made: str) -> str:
    from rrbook import explore  # not for the tests that only ask for the browser

    return getattr(explore, made)().html


def on_page(made: str) -> str:
    """The HTML of an explorable of PAGES, with what is kept for a page without scripts."""
    return with_still(_html(made), (PLACE / f"{made}.html").read_text(encoding="utf-8"))


def store_pages() -> None:
    """Draw the explorables of PAGES and keep what they draw and say."""
    for made, still in zip(PAGES, draw(map(_html, PAGES)), strict=True):
        (PLACE / f"{made}.html").write_text(still, encoding="utf-8")


def with_still(html: str, still: str) -> str:
    return STILL.sub(lambda _: still, html)


def name(html: str) -> str:
    """What an explorable is called."""
    return NAME.findall(html)[0]


def drawn(page, html: str) -> str:
    """`<noscript>` with what an explorable's script draws and says in its first state."""
    page.set_content(f"<!doctype html><meta charset=utf-8><body>{html}</body>")
    return page.evaluate(TAKE)


def draw(htmls: Iterable[str]) -> list[str]:
    """`drawn` of each explorable, by a browser that is opened for it."""
    from playwright.sync_api import ViewportSize, sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        page = browser.new_page(viewport=ViewportSize(**VIEW))
        stills = [drawn(page, html) for html in htmls]
        browser.close()
    return stills


def add(notebook: NotebookNode, htmls: list[str]) -> None:
    """Draw these explorables of a notebook and put what they draw and say into its outputs."""
    if htmls and chromium() is None:
        raise SystemExit(
            f"store: {', '.join(map(name, htmls))} changed, and Chromium has to draw it: "
            "install it (apt install chromium), then run this again"
        )
    stills = dict(zip(htmls, draw(htmls), strict=True)) if htmls else {}
    for data in explorables(notebook):
        if data["text/html"] in stills:
            data["text/html"] = with_still(data["text/html"], stills[data["text/html"]])
