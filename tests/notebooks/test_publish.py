"""The built site as a file and as a branch, and the workflow that asks for both."""

import re
import subprocess
import zipfile
from pathlib import Path

import colab
import publish
import pyarrow.parquet as parquet
import pytest
import release
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


WORKFLOWS = {
    "book": [["make", "test"], ["make", "publish"]],
    "release": [["make", "release"]],
    "weekly": [["make", "newest"], ["make", "links"], ["make", "colab-versions"]],
}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_calls_nothing_but_targets_of_make(name):
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text())
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([\w-]+):", makefile, re.M))
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    called = [step["run"].split() for step in steps if "run" in step]
    assert all(words in called for words in WORKFLOWS[name])
    assert all(program == "make" and {*words} <= targets for program, *words in called)


# ---- a release -----------------------------------------------------------------------------------


def test_the_records_are_one_data_set_with_a_card(tmp_path, monkeypatch):
    """Read from the zip by the library that readers use, one configuration for each table."""
    import datasets

    measured = ROOT / "data" / "measured"
    publish.packed(release.records(measured), tmp_path / "records.zip")
    with zipfile.ZipFile(tmp_path / "records.zip") as pack:
        pack.extractall(tmp_path / "records")
    front = yaml.safe_load((tmp_path / "records" / "README.md").read_text().split("---\n")[1])
    tables = sorted(measured.glob("*/*.parquet"))
    assert {one["data_files"] for one in front["configs"]} == {
        path.relative_to(measured).as_posix() for path in tables
    }
    name = "02_gate_equation-runs"
    read = datasets.load_dataset(str(tmp_path / "records"), name, cache_dir=str(tmp_path / "c"))
    (record,) = [path for path in tables if "02_gate" in str(path) and path.stem == "runs"]
    assert read["train"].num_rows == parquet.read_table(record).num_rows > 0


def test_the_sums_are_those_that_sha256sum_checks(tmp_path):
    (tmp_path / "a.whl").write_bytes(b"wheel")
    (tmp_path / "b.pdf").write_bytes(b"paper")
    (tmp_path / release.SUMS).write_text(release.sums(tmp_path))
    check = ["sha256sum", "--check", "--strict", release.SUMS]
    done = subprocess.run(check, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count(": OK") == 2
    (tmp_path / "a.whl").write_bytes(b"other")
    assert subprocess.run(check, cwd=tmp_path, capture_output=True).returncode == 1


def test_colabs_list_is_read_in_both_of_its_forms():
    listed = colab.listed(
        "# comment\nipython==7.34.0\nJinja2==3.1.2\nodd @ file:///dist/odd-1.0.tar.gz\ntorch @ "
        "https://download.org/whl/cu118/torch-2.1.0%2Bcu118-cp310-cp310-linux_x86_64.whl#sha256=a8\n"
        "torchvision==0.26.0+cu128\n"
    )
    assert listed == {"ipython": "7.34.0", "jinja2": "3.1.2", "torch": "2.1.0",
                      "torchvision": "0.26.0"}  # fmt: skip
