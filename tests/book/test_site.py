"""The rendered files: every page is there, internal links and buttons lead somewhere."""

import json
from collections import defaultdict
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlparse

import figure_data
import home
import pytest
import reference
from bs4 import BeautifulSoup
from nbkit import code_cells, read
from pdf import contents

from .conftest import ROOT, is_chapter

pytestmark = pytest.mark.xdist_group("site")  # one process reads the pages
BUILT_BY_SPHINX = {"genindex.html", "search.html"}


@pytest.fixture(scope="module")
def soups(site: Path) -> dict[Path, BeautifulSoup]:
    return {
        path: BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
        for path in sorted(site.rglob("*.html"))
    }


def test_every_page_of_the_book_is_there(site, soups):
    missing = [page for page in contents() if not (site / f"{page}.html").exists()]
    assert not missing
    assert (site / "index.html").exists()
    rows = soups[site / "book" / "status.html"].select("main table tbody tr")
    chapters = [f"../{page}.html" for page in contents() if is_chapter(page)]
    assert [row.a["href"] for row in rows] == chapters


def test_chapters_have_the_numbers_of_their_files(site, soups):
    """On the page and in the sidebar, and the book goes through them in order."""
    chapters = [page.removeprefix("notebooks/") for page in contents() if is_chapter(page)]
    assert chapters == sorted(chapters)
    for chapter in chapters:
        soup = soups[site / "notebooks" / f"{chapter}.html"]
        number = f"{int(chapter[:2])}. "
        assert soup.select_one("main article h1").get_text().startswith(number)
        here = soup.select_one("nav.bd-links li.current")
        assert here.get_text().strip().startswith(number)


def test_every_public_name_is_in_the_reference(site, soups):
    for package in reference.PACKAGES:
        soup = soups[site / "book" / "api" / f"{package}.html"]
        anchors = {tag["id"] for tag in soup.find_all(id=True)}
        headings = {tag.get_text().removesuffix("#") for tag in soup.select("h1, h2, h3")}
        for name, value in reference.public(package):
            assert reference.label(name, value) in anchors, name
            assert name.rpartition(".")[2] in headings, name


def test_internal_links_lead_somewhere(site, soups):
    anchors = {
        path: {tag[key] for key in ("id", "name") for tag in soup.find_all(attrs={key: True})}
        for path, soup in soups.items()
    }
    broken = defaultdict(list)
    for path, soup in soups.items():
        if path.name in BUILT_BY_SPHINX:
            continue
        for link in soup.find_all("a", href=True):
            address, anchor = urldefrag(link["href"])
            if urlparse(link["href"]).scheme or link["href"] in ("#", "javascript:void(0)"):
                continue
            target = (path.parent / unquote(address)).resolve() if address else path.resolve()
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                broken[path.name].append(link["href"])
            elif anchor and target.suffix == ".html" and unquote(anchor) not in anchors[target]:
                broken[path.name].append(link["href"])
    assert not broken, json.dumps(broken, indent=1)


def test_every_page_is_whole(soups):
    for path, soup in soups.items():
        assert not soup.select("main .problematic, main .system-message"), path.name
        # sphinx-thebe, which Jupyter Book brings along, declared its constants twice a page
        parts = [str(tag) for tag in soup.select("script, link")]
        assert not [part for part in parts if "thebe" in part.lower()], path.name
        for figure in soup.select("figure.rr-explorable"):  # for a reader without scripts
            assert len(figure.select("noscript svg")) == 1, (path.name, figure["data-explorable"])


def test_buttons_lead_to_home_or_are_not_there(soups, site):
    place = home.address()
    opened = f"https://colab.research.google.com/{(place or '').removeprefix('https://')}"
    opened = opened.replace(".com/github.com/", ".com/github/")
    for page in filter(is_chapter, contents()):
        links = {link["href"] for link in soups[site / f"{page}.html"].find_all("a", href=True)}
        colab = {link for link in links if "colab.research.google.com/" in link}
        plain = f"colab/{page.removeprefix('notebooks/')}.ipynb"
        assert f"../{plain}" in links and (site / plain).exists(), page
        if place is None:
            assert not colab and not soups[site / f"{page}.html"].select(".dropdown-launch-buttons")
        elif place.startswith("https://github.com/"):
            assert f"{opened}/blob/{home.PAGES}/{plain}" in colab and place in links, page


def test_the_front_page_leads_to_every_chapter(soups, site):
    soup = soups[site / "book" / "intro.html"]
    cards = soup.select(".rr-map .sd-card")
    chapters = [page for page in contents() if is_chapter(page)]
    assert len(cards) == len(chapters)
    for card, page in zip(cards, chapters, strict=True):
        number, _, title = card.strong.get_text().partition(". ")
        heading = soups[site / f"{page}.html"].select_one("main article h1").get_text()
        assert heading.startswith(f"{number}. {title}") and int(number) == int(page[10:12])
        assert f"{page}.html" in card.select_one("a.sd-stretched-link")["href"]
        told = soups[site / f"{page}.html"].select_one(".rr-card")
        minutes, _, _ = card.select_one(".rr-soft").get_text().partition(" min")
        assert told is None or f"{minutes} minutes to read" in told.get_text()
    address = home.address() or ""
    buttons = soup.select("a.rr-button")
    assert len(buttons) == 2 + address.startswith("https://github.com/")


def test_references_and_numbers_say_what_they_are(soups, site):
    """A term its meaning, a citation its paper; a number carries no hint."""
    seen = {"term": 0, "citation": 0}
    for page in filter(is_chapter, contents()):
        soup = soups[site / f"{page}.html"]
        for kind, place in (("term", "glossary.html#term-"), ("citation", "bibliography.html#")):
            links = soup.select(f'main article a.internal[href*="{place}"]')
            assert all(len(link.get("title", "")) > 4 for link in links), page
            seen[kind] += len(links)
        assert not soup.select("main abbr"), page
    assert all(seen.values()), seen


def test_the_data_that_a_figure_holds_are_a_table_below_it(soups, site):
    for page in filter(is_chapter, contents()):
        outputs = [out for cell in code_cells(read(ROOT / f"{page}.ipynb")) for out in cell.outputs]
        drawn = [out.data.get("image/svg+xml", "") for out in outputs if "data" in out]
        soup = soups[site / f"{page}.html"]
        for cell in soup.select("div.cell"):  # each says how it is checked
            kinds = [c for c in cell["class"] if c.startswith("tag_check-")]
            assert len(cell.select(".rr-check a[href*=figure-checks]")) == len(kinds), page
        tables = soup.select("details.rr-about .rr-data")
        assert len(tables) == sum(bool(figure_data.taken(svg)[1]) for svg in drawn), page
        for one in tables:
            assert one.find_previous("svg", class_="rr-figure"), page
            for table in one.select("table"):
                width = len(table.select("thead th[scope=col]"))
                assert width > 1 and table.select("tbody th[scope=row]"), page
                assert all(len(row.select("td")) == width - 1 for row in table.select("tbody tr"))
