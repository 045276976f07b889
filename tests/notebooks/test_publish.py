"""The built site as a file and as a branch, and the workflow that asks for both."""

import importlib.metadata
import re
import shutil
import subprocess
import sys
from pathlib import Path

import colab
import home
import pyarrow.parquet as parquet
import pytest
import release
import site_zip
import yaml
from nbkit import ROOT

import rr

ADDRESS = "https://github.com/somebody/fork"


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
    site_zip.zipped(site, first)
    (site / "index.html").touch()
    site_zip.zipped(site, second)
    assert first.read_bytes() == second.read_bytes()
    shutil.unpack_archive(first, tmp_path / "opened")
    opened = tmp_path / "opened" / site_zip.NAME
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
    assert site_zip.outside(site) == []
    (site / "page.html").write_text(tag)
    assert bool(site_zip.outside(site)) == loads


@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
def test_publishing_makes_the_site_the_only_commit_of_its_branch(site, git, tmp_path):
    far, root = tmp_path / "far.git", site.parents[1]
    git(tmp_path, "init", "-q", "--bare", str(far))
    git(root, "init", "-q", "-b", "main")
    shutil.copy(ROOT / "Makefile", root)
    (root / ".gitignore").write_text("_build\n")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "source")
    git(root, "remote", "add", "origin", str(far))
    for page in ("first", "second"):
        (site / f"{page}.html").write_text(page)
        subprocess.run(["make", "publish", f"PY={sys.executable}"], cwd=root, check=True)
    assert git(far, "rev-list", "--count", "gh-pages") == "1"
    files = git(far, "ls-tree", "-r", "--name-only", "gh-pages").splitlines()
    assert files == [".nojekyll", "_static/a.js", "first.html", "index.html", "second.html"]
    assert not git(root, "status", "--porcelain")


@pytest.mark.parametrize("name", ["book", "release", "weekly"])
def test_a_workflow_calls_nothing_but_targets_of_make(name):
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text())
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([\w-]+):", makefile, re.M))
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    called = [step["run"].split() for step in steps if "run" in step]
    assert called and all(program == "make" and {*words} <= targets for program, *words in called)


# ---- a release -----------------------------------------------------------------------------------


def test_the_records_are_one_data_set_with_a_card(tmp_path, monkeypatch):
    """Read from the zip by the library that readers use, one configuration for each table."""
    import datasets

    measured = ROOT / "data" / "measured"
    site_zip.packed(release.records(measured), tmp_path / "records.zip")
    shutil.unpack_archive(tmp_path / "records.zip", tmp_path / "records")
    front = yaml.safe_load((tmp_path / "records" / "README.md").read_text().split("---\n")[1])
    tables = {path.relative_to(measured).as_posix() for path in measured.glob("*/*.parquet")}
    assert {one["data_files"] for one in front["configs"]} == tables
    name = "02_gate_equation-runs"
    read = datasets.load_dataset(str(tmp_path / "records"), name, cache_dir=str(tmp_path / "c"))
    record = parquet.read_table(measured / "02_gate_equation" / "runs.parquet")
    assert read["train"].num_rows == record.num_rows > 0


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with `sdist` and, built from it, `wheel`; both unpacked.

    From a copy, because setuptools leaves its traces beside the sources.
    """
    out = tmp_path_factory.mktemp("built")
    for name in ("rr", "rrstudy", "book", "tests"):
        shutil.copytree(ROOT / name, out / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE", "CITATION.cff"):
        shutil.copy(ROOT / name, out)
    home.write(ADDRESS, out)
    command = [sys.executable, "-m", "build", "--no-isolation", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    shutil.unpack_archive(*(out / "dist").glob("*.tar.gz"), out / "sdist")
    shutil.unpack_archive(*(out / "dist").glob("*.whl"), out / "wheel", "zip")
    return out


def test_the_source_distribution_holds_no_tests_and_no_book(built):
    (folder,) = (built / "sdist").iterdir()
    names = {path.name for path in folder.iterdir()}
    assert {
        "rr",
        "rrstudy",
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "NOTICE",
        "PKG-INFO",
    } <= names
    assert not names & {"tests", "book", "notebooks", "data"}


def test_the_wheel_holds_the_package_and_says_what_the_project_is(built):
    wheel = built / "wheel"
    (info,) = wheel.glob("*.dist-info")
    assert {path.name for path in wheel.iterdir()} == {"rr", "rrstudy", info.name}
    for name in ("rr", "rrstudy"):
        held = {path.relative_to(wheel) for path in (wheel / name).rglob("*.py")}
        assert held == {path.relative_to(ROOT) for path in (ROOT / name).rglob("*.py")}
    package = importlib.metadata.PathDistribution(info)
    fields = package.metadata
    assert fields["Version"] == rr.__version__ and fields["License-Expression"] == "Apache-2.0"
    for name in ("LICENSE", "NOTICE"):
        assert (info / "licenses" / name).read_bytes() == (ROOT / name).read_bytes()
    assert fields.get_payload().strip() == (ROOT / "README.md").read_text(encoding="utf-8").strip()
    assert f"Repository, {ADDRESS}" in fields.get_all("Project-URL")
    needed = [line for line in fields.get_all("Requires-Dist") if "extra ==" not in line]
    names = {re.match(r"[\w-]+", line)[0] for line in needed}
    assert names == {"torch", "numpy", "tokenizers", "filelock"}
    (script,) = package.entry_points
    assert (script.group, script.name, script.value) == (
        "console_scripts",
        "rr",
        "rrstudy.cli:main",
    )


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
    wheel = "https://download.org/whl/cu118/torch-2.1.0%2Bcu118-cp310-cp310-linux_x86_64.whl"
    given = f"# comment\nJinja2==3.1.2\nodd @ file:///odd-1.0.tar.gz\ntorch @ {wheel}#sha256=a8\n"
    assert colab.listed(given) == {"jinja2": "3.1.2", "torch": "2.1.0"}
