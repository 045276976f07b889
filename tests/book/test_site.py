"""The rendered files: every page is there, every internal link leads somewhere, one home."""

import json
from collections import defaultdict
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlparse

import pytest
import yaml
from bs4 import BeautifulSoup

import rr

from .conftest import ROOT, is_chapter, toc

BUILT_BY_SPHINX = {"genindex.html", "search.html"}


@pytest.fixture(scope="module")
def soups(site: Path) -> dict[Path, BeautifulSoup]:
    return {
        path: BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
        for path in sorted(site.rglob("*.html"))
    }


def test_every_page_of_the_book_is_there(site):
    missing = [page for page in toc() if not (site / f"{page}.html").exists()]
    assert not missing
    assert (site / "index.html").exists()


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


def test_no_page_has_an_unresolved_reference(soups):
    for path, soup in soups.items():
        assert not soup.select("main .problematic, main .system-message"), path.name


def test_chapters_open_in_colab_from_home(soups, site):
    owner = rr.HOME.removeprefix("https://github.com/")
    for page in filter(is_chapter, toc()):
        wanted = f"https://colab.research.google.com/github/{owner}/blob/main/{page}.ipynb"
        links = {link["href"] for link in soups[site / f"{page}.html"].find_all("a", href=True)}
        assert wanted in links, page


def test_figures_say_how_they_are_checked(soups, site):
    for page in filter(is_chapter, toc()):
        soup = soups[site / f"{page}.html"]
        for cell in soup.select("div.cell"):
            kinds = [c for c in cell["class"] if c.startswith("tag_check-")]
            badges = cell.select(".rr-check a")
            assert len(badges) == len(kinds), f"{page}: {kinds}"
            assert all("figure-checks" in badge["href"] for badge in badges)


def test_the_citation_names_home_and_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["repository-code"] == citation["url"] == rr.HOME
    assert citation["version"] == rr.__version__


def test_home_is_written_in_no_other_place():
    """What cannot derive from rr.HOME is the citation, checked above, and generated cells."""
    allowed = {"rr/__init__.py", "CITATION.cff"}
    suffixes = {".py", ".md", ".yml", ".toml", ".cff", ".txt", ".js", ".css"}
    skipped = {".venv", "_build", "runs", ".git", "node_modules"}
    found = set()
    for path in ROOT.rglob("*"):
        inside = path.relative_to(ROOT)
        if skipped & set(inside.parts) or path.suffix not in suffixes or not path.is_file():
            continue
        if rr.HOME in path.read_text(encoding="utf-8"):
            found.add(inside.as_posix())
    assert found == allowed


def test_the_changelog_starts_with_this_version():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    first = next(line for line in text.splitlines() if line.startswith("## "))
    assert first.split()[1] == rr.__version__
