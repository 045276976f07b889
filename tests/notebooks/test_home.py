"""One home address: what is set, else origin's; pages, first cells and citation follow it."""

import os
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import bootstrap
import home
import pytest
import rr_book
import yaml
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from nbkit import ROOT, read, write

import rr

FORK = "https://github.com/somebody/fork"


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("https://user:secret@github.com/somebody/fork.git", FORK),  # a token never reaches a page
        ("git@github.com:somebody/fork.git", FORK),
        ("ssh://git@github.com/somebody/fork.git", FORK),
        ("git@gitlab.com:group/part/fork.git", "https://gitlab.com/group/part/fork"),
        ("/srv/git/fork.git", None),
        ("git@github.com-work:somebody/fork.git", None),  # an alias of ssh's own configuration
        ("ssh://git@host.example.org:2222/somebody/fork", None),
        ("https://localhost:3000/somebody/fork", None),
        ("https://192.168.0.7/somebody/fork", None),
        ("", None),
    ],
)
def test_the_address_of_a_remote(remote, address):
    assert home.web_address(remote) == address


def test_the_setting_comes_before_origin_and_origin_before_nothing(checkout, git):
    assert home.address(checkout) is None
    git(checkout, "remote", "add", "origin", "git@github.com:somebody/fork.git")
    assert home.address(checkout) == FORK and home.setting(checkout) is None
    for url in (FORK, "https://github.com/other/place"):  # written again, it is replaced
        home.write(url, checkout)
        citation = yaml.safe_load((checkout / "CITATION.cff").read_text())
        assert citation["repository-code"] == home.setting(checkout) == url
        assert git(checkout, "diff", "--shortstat") == "2 files changed, 2 insertions(+)"
    git(checkout, "remote", "set-url", "origin", FORK)
    assert home.address(checkout) == "https://github.com/other/place"


def test_another_project_around_an_unpacked_archive_is_not_its_origin(checkout, git):
    git(checkout, "remote", "add", "origin", FORK)
    inside = checkout / "vendored"
    inside.mkdir()
    shutil.copy(checkout / "pyproject.toml", inside)
    assert home.address(inside) is None and home.version(inside) is None


def test_the_version_is_the_release_tag_or_the_commit(checkout, git):
    head = git(checkout, "rev-parse", "HEAD")
    git(checkout, "tag", "other")
    assert home.version(checkout) == head
    git(checkout, "tag", home.release())
    assert home.version(checkout) == home.release() == f"v{rr.__version__}"


def test_the_citation_agrees_with_version_and_changelog():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    version, date = re.search(r"^## (\S+) \((.+)\)$", text, re.MULTILINE).groups()
    assert citation["version"] == version == rr.__version__
    assert str(citation.get("date-released", "unreleased")) == date


# ---- the page ----------------------------------------------------------------------------------

BOOK = {
    "book/_toc.yml": "format: jb-book\nroot: book/intro\nchapters:\n- file: notebooks/01_one\n",
    "book/intro.md": "# Title\n",
    "book/references.bib": "",
    "constraints.txt": "",
    ".gitignore": "_build\n__pycache__\n",
}
COPIED = ("_config.yml", "LICENSE", "book/tools", "book/_static", "book/rrbook", "rr", "rrstudy")


def test_a_forks_page_leads_to_the_fork_at_its_version(checkout, git, tmp_path):
    """The real renderer, in a checkout of a book with one chapter."""
    for name in COPIED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, checkout / name)
    for name, text in BOOK.items():
        (checkout / name).write_text(text)
    one = new_notebook(cells=[new_markdown_cell("(one)=\n# One"), new_code_cell("x = 1")])
    one.metadata.kernelspec = {"name": "python3", "display_name": "3", "language": "python"}
    bootstrap.refresh(one)
    write(one, checkout / "notebooks" / "01_one.ipynb")
    git(checkout, "add", "-A")
    git(checkout, "commit", "-qm", "x")
    git(checkout, "remote", "add", "origin", "git@github.com:somebody/fork.git")
    # git but no npm: the page's own scripts are not what is looked at here
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").symlink_to(shutil.which("git"))
    command = [sys.executable, "book/tools/render.py", "--site", "_build/site"]
    env = {**os.environ, "PATH": str(tmp_path / "bin"), "PYTHONPATH": ""}
    done = subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"buttons lead to {FORK}" in done.stdout
    site = checkout / "_build" / "site"
    page = BeautifulSoup((site / "notebooks" / "01_one.html").read_bytes(), "html.parser")
    colab = "https://colab.research.google.com/github/somebody/fork/blob/gh-pages/"
    links = {link["href"] for link in page.find_all("a", href=True)}
    assert {f"{colab}colab/01_one.ipynb", FORK, "../colab/01_one.ipynb"} <= links
    # what the page offers for download installs the fork at this commit
    offered = read(site / "colab" / "01_one.ipynb")
    assert offered.cells[1].source == bootstrap.source(FORK, git(checkout, "rev-parse", "HEAD"))
    assert not git(checkout, "status", "--porcelain")  # what is stored is the same on every machine


@pytest.mark.parametrize(
    ("address", "buttons"),
    [
        (FORK, {"launch_buttons", "use_repository_button"}),
        ("https://gitlab.com/somebody/fork", {"use_repository_button"}),
        (None, set()),
    ],
)
def test_a_page_has_no_dead_buttons(monkeypatch, address, buttons):
    options = {"launch_buttons": {}}
    config = SimpleNamespace(html_theme_options=options, html_static_path=[], html_css_files=[])
    monkeypatch.setattr(home, "address", lambda: address)
    rr_book.configure(SimpleNamespace(srcdir="nowhere"), config)
    assert {"launch_buttons", "use_repository_button"} & {*options} == buttons
