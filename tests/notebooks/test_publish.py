"""The built site as a file and as a branch, and the workflow that asks for both."""

import re
import subprocess
import zipfile
from pathlib import Path

import publish
import pytest
import yaml
from nbkit import ROOT


@pytest.fixture
def site(tmp_path) -> Path:
    """A site of one page with a script of its own."""
    made = tmp_path / "checkout" / "_build" / "site"
    (made / "_static").mkdir(parents=True)
    (made / "index.html").write_text('<script src="_static/a.js"></script><a href="https://a.org">')
    (made / "_static" / "a.js").write_text("1")
    return made


def test_the_zip_holds_the_site_below_one_folder_and_is_the_same_again(site, tmp_path):
    first, second = tmp_path / "1.zip", tmp_path / "2.zip"
    publish.zipped(site, first)
    (site / "index.html").touch()
    publish.zipped(site, second)
    assert first.read_bytes() == second.read_bytes()
    with zipfile.ZipFile(first) as pack:
        assert pack.testzip() is None
        pack.extractall(tmp_path / "opened")
    opened = tmp_path / "opened" / publish.NAME
    assert (opened / "_static" / "a.js").read_text() == "1" and (opened / "index.html").exists()


@pytest.mark.parametrize(
    ("tag", "loads"),
    [
        ('<script src="https://cdn.org/a.js"></script>', True),
        ('<link rel="stylesheet" href="//cdn.org/a.css">', True),
        ('<img src="http://a.org/a.png">', True),
        ('<a href="https://a.org">read</a>', False),  # a reader's click
        ('<link rel="canonical" href="https://a.org">', False),
        ('<img src="data:image/png;base64,AA">', False),
    ],
)
def test_what_a_page_loads_from_the_network_is_named(site, tag, loads):
    assert publish.outside(site) == []
    (site / "page.html").write_text(tag)
    assert bool(publish.outside(site)) == loads


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=Tess", "-c", "user.email=t@example.org"]
    done = subprocess.run(
        ["git", "-C", str(folder), *who, *words], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_publishing_makes_the_site_the_only_commit_of_its_branch(site, tmp_path):
    far, root = tmp_path / "far.git", site.parents[1]
    git(tmp_path, "init", "-q", "--bare", str(far))
    git(root, "init", "-q")
    (root / ".gitignore").write_text("_build\n")
    git(root, "add", ".gitignore")
    git(root, "commit", "-qm", "source")
    git(root, "remote", "add", "origin", str(far))
    publish.push(site, root)
    (site / "second.html").write_text("2")
    commit = publish.push(site, root)
    assert git(far, "rev-parse", "gh-pages") == commit
    assert git(far, "rev-list", "--count", "gh-pages") == "1"
    files = git(far, "ls-tree", "-r", "--name-only", "gh-pages").splitlines()
    assert files == [".nojekyll", "_static/a.js", "index.html", "second.html"]
    assert git(far, "log", "-1", "--format=%an", "gh-pages") == "Tess"
    assert not git(root, "status", "--porcelain") and git(root, "ls-files") == ".gitignore"


def test_the_workflow_calls_nothing_but_targets_of_make():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "book.yml").read_text())
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([\w-]+):", makefile, re.M))
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    called = [step["run"].split() for step in steps if "run" in step]
    assert ["make", "test"] in called and ["make", "publish"] in called
    assert all(program == "make" and {*words} <= targets for program, *words in called)
