"""The explorables' pictures for pages without scripts: drawn by a browser, kept in the notebooks.

An explorable's script is the one source of its picture. `make store` opens each explorable that has
changed in Chromium, and puts what the script drew into the `<noscript>` of the stored output. A
notebook that is executed anew takes its pictures from the stored one, where the explorable is the
same to the letter; so a page can be built without a browser.
"""

import re
import shutil
from collections.abc import Iterable, Iterator

from nbformat import NotebookNode
from nbkit import ROOT, code_cells

PAGES = ("gated_write",)  # explorables of pages that are no notebooks: their pictures are files
STATIC = ROOT / "book" / "_static"
FIGURE = '<figure class="rr-explorable"'
NAME = re.compile(r'data-explorable="([^"]+)"')
PICTURE = re.compile(r"(?<=<noscript>)<svg.*?</svg>", re.DOTALL)
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
    return svg.outerHTML;
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


def keep(notebook: NotebookNode, stored: NotebookNode) -> list[str]:
    """Give explorables without a picture that of the same one in `stored`; the HTML of the rest."""
    known = {}
    for data in explorables(stored):
        html = data["text/html"]
        if PICTURE.search(html):
            known[PICTURE.sub("", html)] = html
    missing = []
    for data in explorables(notebook):
        if not PICTURE.search(data["text/html"]):
            data["text/html"] = known.get(data["text/html"], data["text/html"])
            if not PICTURE.search(data["text/html"]):
                missing.append(data["text/html"])
    return missing


def _html(made: str) -> str:
    from rrbook import explore  # not for the tests that only ask for the browser

    return getattr(explore, made)().html


def on_page(made: str) -> str:
    """The HTML of an explorable of PAGES, with its kept picture."""
    picture = (STATIC / f"{made}.svg").read_text(encoding="utf-8")
    return _html(made).replace("<noscript>", f"<noscript>{picture}", 1)


def store_pages() -> None:
    """Draw the explorables of PAGES and keep their pictures."""
    for made, picture in zip(PAGES, draw(map(_html, PAGES)), strict=True):
        (STATIC / f"{made}.svg").write_text(picture, encoding="utf-8")


def name(html: str) -> str:
    """What an explorable is called."""
    return NAME.findall(html)[0]


def drawn(page, html: str) -> str:
    """The SVG that an explorable's script draws in a page of the browser, in its first state."""
    page.set_content(f"<!doctype html><meta charset=utf-8><body>{html}</body>")
    return page.evaluate(TAKE)


def draw(htmls: Iterable[str]) -> list[str]:
    """The picture of each explorable, by a browser that is opened for it."""
    from playwright.sync_api import ViewportSize, sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        page = browser.new_page(viewport=ViewportSize(**VIEW))
        pictures = [drawn(page, html) for html in htmls]
        browser.close()
    return pictures


def add(notebook: NotebookNode, htmls: list[str]) -> None:
    """Draw these explorables of a notebook and put the pictures into its outputs."""
    if htmls and chromium() is None:
        raise SystemExit(
            f"store: {', '.join(map(name, htmls))} changed, and Chromium has to draw it: "
            "install it (apt install chromium), then run this again"
        )
    pictures = dict(zip(htmls, draw(htmls), strict=True)) if htmls else {}
    for data in explorables(notebook):
        if data["text/html"] in pictures:
            svg = pictures[data["text/html"]]
            data["text/html"] = data["text/html"].replace("<noscript>", f"<noscript>{svg}", 1)
