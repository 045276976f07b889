"""The built site as one PDF: every page in the order of the contents, printed by Chromium.

    python book/tools/pdf.py            # `make pdf`: _build/review-residuals.pdf

Each page is opened with its scripts, so that mathematics is set and explorables are drawn, and its
article is taken as it stands. The articles become one document, printed at once: bookmarks, links
between chapters and the tags that screen readers use are thus those of one book.
"""

import re
import sys
import time
from pathlib import Path
from urllib.parse import urldefrag, urljoin

import home
import yaml
from drawings import FLAGS, chromium
from nbkit import BUILD, ROOT

from rrbook import plain

SITE = BUILD / "site"
OUT = BUILD / "review-residuals.pdf"
# A4 less its margins, in CSS pixels: how wide the text is
UPRIGHT, SIDES = "18mm", "17mm"
WIDTH = 665
FOOTER = (
    '<div style="width: 100%; font: 8px sans-serif; text-align: center">'
    'Review Residuals VERSION · <span class="pageNumber"></span></div>'
)
READY = """async () => {
    await window.MathJax?.startup?.promise;
    await document.fonts.ready;
}"""
TAKE = """() => {
    const article = document.querySelector("article.bd-article");
    for (const image of article.querySelectorAll("img")) image.src = image.src;
    for (const fold of article.querySelectorAll("details")) fold.open = true;
    for (const fold of article.querySelectorAll(".toggle-hidden"))
        fold.classList.remove("toggle-hidden");
    const gone = "script, noscript, button:not(.rr-preset), form, .headerlink";
    for (const node of article.querySelectorAll(gone)) node.remove();
    const styles = [...document.querySelectorAll("head style, main style")];
    return {
        html: article.innerHTML,
        sheets: [...document.querySelectorAll("link[rel=stylesheet]")].map(link => link.href),
        styles: styles.map(style => style.textContent),
    };
}"""
# what is wider than the paper is made smaller; nothing is cut off
FIT = """width => {
    const wide = "table, mjx-container[display=true] > svg, svg.rr-picture, img";
    for (const node of document.querySelectorAll(wide)) {
        const room = node.parentElement.getBoundingClientRect().width;
        const own = Math.max(node.scrollWidth || 0, node.getBoundingClientRect().width);
        if (own > room + 1 && room > 0) node.style.zoom = room / own;
    }
    return [...document.querySelectorAll("article *")]
        .filter(node => node.getBoundingClientRect().right > width + 2)
        .map(node => node.closest("section.rr-page").id + ": " + node.tagName + "." +
                     (node.getAttribute("class") ?? ""));
}"""


def contents() -> list[str]:
    """The pages in the order of the book, as paths without suffix."""
    book = yaml.safe_load((ROOT / "book" / "_toc.yml").read_text(encoding="utf-8"))
    pages = [page for part in book["parts"] for page in part["chapters"]]
    files = [one["file"] for page in pages for one in (page, *page.get("sections", ()))]
    return [book["root"], *files]


def rebased(html: str, page: str, prefixes: dict[str, str], published: str | None) -> str:
    """The article of a page for the one document: its names are its own, its links lead within."""
    prefix = prefixes[page]

    def link(match: re.Match) -> str:
        href = match["href"]
        if re.match(r"[a-z]+:", href):
            return match[0]
        address, anchor = urldefrag(href)
        target = urljoin(f"{page}.html", address) if address else f"{page}.html"
        known = prefixes.get(target.removesuffix(".html"))
        if known:
            return f'href="#{known}-{anchor}"' if anchor else f'href="#{known}"'
        return f'href="{published}/{target}"' if published else ""

    html = re.sub(r'(?<=\s)(?P<name>id|for|aria-labelledby|aria-describedby|aria-controls)="'
                  r'(?P<id>[^"]+)"', rf'\g<name>="{prefix}-\g<id>"', html)  # fmt: skip
    html = re.sub(r"url\((&quot;)?#", rf"url(\g<1>#{prefix}-", html).replace("url(None#", "url(#")
    html = re.sub(r'xlink:href="#', f'xlink:href="#{prefix}-', html)
    html = re.sub(r'(<use\b[^>]*?\s)href="#', rf'\g<1>href="#{prefix}-', html)
    return re.sub(r'(?<=<a )(?P<rest>[^>]*?)(?<=\s)?href="(?P<href>[^"]*)"',
                  lambda m: m["rest"] + link(m), html)  # fmt: skip


def document(page, site: Path) -> str:
    """The whole book as one HTML page."""
    published = plain.site(home.address())
    pages = contents()
    prefixes = {path: f"p{number}" for number, path in enumerate(pages)}
    sheets: dict[str, None] = {}
    styles: dict[str, None] = {}
    parts = []
    failed: list[str] = []
    page.on("requestfailed", lambda request: failed.append(request.url))
    for path in pages:
        page.goto((site / f"{path}.html").as_uri())
        page.evaluate(READY)
        taken = page.evaluate(TAKE)
        sheets |= dict.fromkeys(taken["sheets"])
        styles |= dict.fromkeys(taken["styles"])
        article = rebased(taken["html"], path, prefixes, published)
        parts.append(f'<section class="rr-page" id="{prefixes[path]}">{article}</section>')
    links = "".join(f'<link rel="stylesheet" href="{sheet}">' for sheet in sheets)
    if failed:
        raise SystemExit(f"pdf: with the network off a page lacks {failed[0]}")
    return (
        '<!doctype html><html lang="en" data-theme="light" data-mode="light"><head>'
        f'<meta charset="utf-8"><title>Review Residuals</title>{links}'
        f"<style>{' '.join(styles)}</style></head>"
        '<body class="bd-content"><article class="bd-article">'
        f"{''.join(parts)}</article></body></html>"
    )


def make(site: Path, out: Path) -> list[str]:
    """Print the site into `out`; what does not fit the paper, a line each."""
    from playwright.sync_api import PdfMargins, sync_playwright

    margins = PdfMargins(top=UPRIGHT, bottom=UPRIGHT, left=SIDES, right=SIDES)
    whole = out.with_suffix(".html")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        context = browser.new_context(
            viewport={"width": 1280, "height": 900}, color_scheme="light", offline=True
        )
        context.set_default_timeout(600_000)
        page = context.new_page()
        whole.write_text(document(page, site), encoding="utf-8")
        page.close()
        page = context.new_page()
        page.set_viewport_size({"width": WIDTH, "height": 1000})
        page.emulate_media(media="print", color_scheme="light")
        page.goto(whole.as_uri())
        cut = page.evaluate(FIT, WIDTH)
        page.pdf(path=out, format="A4", margin=margins, print_background=True, outline=True,
                 tagged=True, display_header_footer=True, header_template="<span></span>",
                 footer_template=FOOTER.replace("VERSION", home.release()))  # fmt: skip
        browser.close()
    return cut


def main() -> int:
    if not (SITE / "index.html").exists():
        print("pdf: nothing built yet; run `make book` first")
        return 1
    if chromium() is None:
        print("pdf: no Chromium is installed, which prints the pages (apt install chromium)")
        return 1
    began = time.monotonic()
    cut = make(SITE, OUT)
    if cut:
        print("\n".join(dict.fromkeys(cut)))
        print(f"pdf: {len(cut)} things are wider than the paper")
        return 1
    print(f"pdf: {OUT} ({OUT.stat().st_size / 2**20:.0f} MiB, {time.monotonic() - began:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
