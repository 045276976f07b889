"""One home address: what is set, else origin's; buttons, first cells and citation follow it."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

import bootstrap
import home
import pytest
import yaml
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from nbkit import ROOT, read, write

import rr

FORK = "https://github.com/somebody/fork"


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=T", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
    done = subprocess.run(
        ["git", "-C", str(folder), *who, *words], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def commit(folder: Path) -> str:
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "x")
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def checkout(tmp_path):
    """A git checkout with the project's pyproject.toml and citation, and no remote."""
    root = tmp_path / "checkout"
    root.mkdir()
    for name in ("pyproject.toml", "CITATION.cff"):
        shutil.copy(ROOT / name, root)
    text = (root / "pyproject.toml").read_text()
    (root / "pyproject.toml").write_text(re.sub(r"^Repository = .*\n", "", text, flags=re.M))
    git(root, "init", "-q")
    commit(root)
    return root


# ---- the address -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("https://github.com/somebody/fork", FORK),
        ("https://github.com/somebody/fork.git", FORK),
        ("https://user:secret@github.com/somebody/fork.git", FORK),  # a token never reaches a page
        ("git@github.com:somebody/fork.git", FORK),
        ("ssh://git@github.com/somebody/fork.git", FORK),
        ("ssh://git@ssh.github.com:443/somebody/fork.git", FORK),
        ("git@gitlab.com:group/part/fork.git", "https://gitlab.com/group/part/fork"),
        ("/srv/git/fork.git", None),
        ("../fork", None),
        ("C:/git/fork", None),
        ("file:///srv/git/fork", None),
        ("git@intranet:somebody/fork.git", None),
        ("git@github.com-work:somebody/fork.git", None),  # an alias of ssh's own configuration
        ("http://localhost:3000/somebody/fork", None),
        ("http://192.168.0.7/somebody/fork", None),
        ("https://github.com/somebody", None),
        ("", None),
    ],
)
def test_the_address_of_a_remote(remote, address):
    assert home.web_address(remote) == address


def test_the_setting_comes_before_origin_and_origin_before_nothing(checkout):
    assert home.address(checkout) is None
    git(checkout, "remote", "add", "origin", "/srv/git/fork.git")
    assert home.address(checkout) is None
    git(checkout, "remote", "set-url", "origin", "git@github.com:somebody/fork.git")
    assert home.address(checkout) == FORK and home.setting(checkout) is None
    home.write("https://github.com/other/place", checkout)
    assert home.address(checkout) == "https://github.com/other/place"
    assert any(FORK in line for line in home.remarks(checkout))  # a fork that was not renamed


def test_another_project_around_an_unpacked_archive_is_not_its_origin(checkout):
    git(checkout, "remote", "add", "origin", FORK)
    inside = checkout / "vendored"
    inside.mkdir()
    shutil.copy(ROOT / "pyproject.toml", inside)
    assert home.origin(inside) is None and home.version(inside) is None


def test_the_version_is_the_release_tag_or_the_commit(checkout):
    head = git(checkout, "rev-parse", "HEAD")
    assert home.version(checkout) == head
    git(checkout, "tag", "other")
    assert home.version(checkout) == head
    git(checkout, "tag", home.release())
    assert home.version(checkout) == home.release() == f"v{rr.__version__}"
    (checkout / "more").touch()
    newest = commit(checkout)
    assert home.version(checkout) == newest
    assert any("already tagged" in line for line in home.remarks(checkout))


# ---- where it is written -----------------------------------------------------------------------


def test_writing_the_address_changes_two_files_and_writing_it_again_none(checkout):
    assert home.write(FORK, checkout) == ["pyproject.toml", "CITATION.cff"]
    commit(checkout)
    assert home.write(FORK, checkout) == []
    citation = yaml.safe_load((checkout / "CITATION.cff").read_text())
    assert citation["repository-code"] == citation["url"] == home.setting(checkout) == FORK
    home.write("https://github.com/other/place", checkout)
    added = git(checkout, "diff", "-U0", "--", ".").splitlines()
    assert sum(line.startswith("+") and "other/place" in line for line in added) == 3
    assert FORK not in (checkout / "CITATION.cff").read_text()


def test_no_address_is_typed_anywhere_else():
    """Any address that ends in the project's name is the setting's, in the three places for it."""
    form = re.compile(r"https://[\w.]+/[\w.-]+/review-residuals\b")
    files = subprocess.run(["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True)
    if files.returncode:
        pytest.skip("not a git checkout")
    for name in files.stdout.splitlines():
        path = ROOT / name
        if path.suffix in {".py", ".md", ".yml", ".yaml", ".toml", ".cff", ".sh", ".ipynb", ".txt"}:
            for found in form.findall(path.read_text(encoding="utf-8")):
                told = name in ("pyproject.toml", "CITATION.cff") or name.startswith("notebooks/")
                assert told and found == home.setting(), name


def test_the_citation_agrees_with_setting_version_and_changelog():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation.get("repository-code") == citation.get("url") == home.setting()
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    version, date = re.search(r"^## (\S+) \((.+)\)$", text, re.MULTILINE).groups()
    assert citation["version"] == version == rr.__version__
    released = None if date == "unreleased" else date
    assert citation.get("date-released") == released
    assert released is None or re.fullmatch(r"\d{4}-\d\d-\d\d", released)


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with `sdist` and, built from it, `wheel`; both unpacked.

    From a copy, because setuptools leaves its traces beside the sources.
    """
    out = tmp_path_factory.mktemp("built")
    copy = out / "copy"
    for name in ("rr", "book", "tests"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, copy)
    for kind, form, source in (("sdist", "gztar", copy), ("wheel", "zip", None)):
        code = f"from setuptools import build_meta; print(build_meta.build_{kind}({str(out)!r}))"
        (source,) = (out / "sdist").iterdir() if source is None else (source,)
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=source, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        shutil.unpack_archive(out / done.stdout.split()[-1], out / kind, form)
    return out


def test_the_wheel_holds_the_package_and_nothing_else(built):
    names = {path.name for path in (built / "wheel").iterdir()}
    assert names == {"rr", f"review_residuals-{rr.__version__}.dist-info"}
    held = {
        path.relative_to(built / "wheel").as_posix() for path in (built / "wheel").rglob("*.py")
    }
    git = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "rr/*.py"], capture_output=True, text=True
    )
    if not git.returncode:
        assert held == set(git.stdout.split())
    for name in ("py.typed",):
        assert (built / "wheel" / "rr" / name).exists()


def test_the_source_distribution_holds_no_tests_and_no_book(built):
    (folder,) = (built / "sdist").iterdir()
    names = {path.name for path in folder.iterdir()}
    assert {"rr", "pyproject.toml", "README.md", "LICENSE", "NOTICE", "PKG-INFO"} <= names
    assert not names & {"tests", "book", "notebooks", "data"}


def test_the_wheel_says_what_the_project_is(built):
    (info,) = (built / "wheel").glob("*.dist-info")
    wheel = importlib.metadata.PathDistribution(info)
    told = wheel.metadata
    assert (told["Name"], told["Version"]) == ("review-residuals", rr.__version__)
    assert told["License-Expression"] == "Apache-2.0"
    assert set(told.get_all("License-File")) == {"LICENSE", "NOTICE"}
    for name in told.get_all("License-File"):
        assert (info / "licenses" / name).read_bytes() == (ROOT / name).read_bytes()
    assert told["Description-Content-Type"] == "text/markdown"
    assert told.get_payload().strip() == (ROOT / "README.md").read_text(encoding="utf-8").strip()
    assert told["Requires-Python"] == ">=3.11"
    # the project's own address comes from `make home` alone
    links = dict(line.split(", ", 1) for line in told.get_all("Project-URL"))
    assert links["Paper"].startswith("https://") and links.get("Repository") == home.setting()
    keywords = told["Keywords"].split(",")
    assert "residual connections" in keywords and keywords == sorted(keywords, key=str.lower)
    versions = [
        line.rpartition(" :: ")[2]
        for line in told.get_all("Classifier")
        if line.startswith("Programming Language :: Python :: 3.")
    ]
    assert versions == ["3.11", "3.12", "3.13"]  # those that `make` takes
    needed = [line for line in told.get_all("Requires-Dist") if "extra ==" not in line]
    assert {re.match(r"[\w-]+", line)[0] for line in needed} == {
        "torch",
        "numpy",
        "tokenizers",
        "filelock",
    }
    (script,) = wheel.entry_points
    assert (script.group, script.name, script.value) == ("console_scripts", "rr", "rr.cli:main")


# ---- the page ----------------------------------------------------------------------------------

BOOK = {
    "book/_toc.yml": "format: jb-book\nroot: book/intro\nparts:\n- caption: P\n  chapters:\n"
    "  - file: notebooks/01_one\n",
    "book/intro.md": "# Title\n",
    "book/references.bib": "",
    "constraints.txt": "",
    "LICENSE": "",
}


def rendered(checkout: Path) -> tuple[str, BeautifulSoup, Path]:
    """What the real renderer prints and makes of a book with one chapter."""
    for name, text in BOOK.items():
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text(text)
    shutil.copy(ROOT / "_config.yml", checkout)
    shutil.copytree(
        ROOT / "book" / "tools",
        checkout / "book" / "tools",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    shutil.copytree(ROOT / "book" / "_static", checkout / "book" / "_static")
    for package in ("rr", "book/rrbook"):
        shutil.copytree(
            ROOT / package, checkout / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    one = new_notebook(cells=[new_markdown_cell("(one)=\n# One"), new_code_cell("x = 1")])
    one.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    bootstrap.refresh(one)
    write(one, checkout / "notebooks" / "01_one.ipynb")
    (checkout / ".gitignore").write_text("_build\n__pycache__\n")
    commit(checkout)
    # git but no npm: the page's own scripts are not what is looked at here
    tools = checkout.parent / "bin"
    tools.mkdir()
    (tools / "git").symlink_to(shutil.which("git"))
    env = {**os.environ, "PATH": str(tools), "PYTHONPATH": ""}
    done = subprocess.run(
        [sys.executable, "book/tools/render.py", "--site", "_build/site"],
        cwd=checkout,
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    site = checkout / "_build" / "site"
    page = (site / "notebooks" / "01_one.html").read_text(encoding="utf-8")
    return done.stdout, BeautifulSoup(page, "html.parser"), site


def links(page: BeautifulSoup) -> list[str]:
    return [link["href"] for link in page.find_all("a", href=True)]


def test_a_forks_page_leads_to_the_fork_at_its_version(checkout):
    git(checkout, "remote", "add", "origin", "git@github.com:somebody/fork.git")
    said, page, site = rendered(checkout)
    head = git(checkout, "rev-parse", "HEAD")
    colab = "https://colab.research.google.com/github/somebody/fork/blob/gh-pages/"
    assert f"{colab}colab/01_one.ipynb" in links(page) and FORK in links(page)
    assert f"origin, {FORK}" in said and "is pushed" in said
    # what the page offers for download installs the fork at this commit
    assert "../colab/01_one.ipynb" in links(page)
    offered = read(site / "colab" / "01_one.ipynb")
    assert offered.cells[1].source == bootstrap.source(FORK, head)
    stored = read(checkout / "notebooks" / "01_one.ipynb")
    assert stored.cells[1].source == bootstrap.source()  # the same on every machine
    assert not git(checkout, "status", "--porcelain")


def test_a_page_without_an_address_has_no_dead_buttons(checkout):
    git(checkout, "remote", "add", "origin", "/srv/git/fork.git")
    said, page, site = rendered(checkout)
    assert "no home address" in said and (site / "colab" / "01_one.ipynb").exists()
    assert "../colab/01_one.ipynb" in links(page)
    outside = [link for link in links(page) if link.startswith("http")]
    assert not [link for link in outside if "colab" in link or "/blob/" in link], outside
    assert not page.select(".dropdown-launch-buttons, .btn-source-repository-button")
    assert page.select(".dropdown-download-buttons")  # the theme still names its buttons so


# ---- the first cell ----------------------------------------------------------------------------


def test_the_first_cell_is_inserted_once_and_refreshed():
    made = new_notebook(cells=[new_markdown_cell("# Title"), new_code_cell("x = 1", id="x")])
    for _ in range(2):
        bootstrap.refresh(made)
        assert [cell.get("id") for cell in made.cells][1:] == [bootstrap.CELL_ID, "x"]
    made.cells[1].source, made.cells[1].execution_count = "old", 1
    bootstrap.refresh(made)
    assert made.cells[1].source == bootstrap.source() and made.cells[1].execution_count == 1


def execute(source: str) -> None:
    exec(compile(source, "bootstrap", "exec"), {})


def test_the_first_cell_does_nothing_where_rr_can_be_imported(monkeypatch, capsys):
    def refuse(*args, **kwargs):
        raise AssertionError("something was run")

    monkeypatch.setattr("subprocess.run", refuse)
    execute(bootstrap.source())
    assert capsys.readouterr().out == ""


@pytest.fixture
def elsewhere(monkeypatch, tmp_path):
    """A machine without rr: pip is only written down, git is real, and torch sees no GPU."""
    installed, real = [], subprocess.run

    def run(command, **options):
        if "pip" in command:
            installed.append(command)
            return types.SimpleNamespace(returncode=0, stderr="")
        return real(command, **options)

    (tmp_path / "content").mkdir()
    monkeypatch.chdir(tmp_path / "content")
    monkeypatch.setattr("subprocess.run", run)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("sys.path", [])
    seen(monkeypatch, None)
    return installed


def seen(monkeypatch, memory: float | None, name: str = "Tesla T4") -> None:
    card = types.SimpleNamespace(name=name, total_memory=memory)
    cuda = types.SimpleNamespace(
        is_available=lambda: memory is not None, get_device_properties=lambda index: card
    )
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))


def test_the_first_cell_takes_its_own_version(elsewhere, checkout, monkeypatch, capsys):
    first = git(checkout, "rev-parse", "HEAD")
    (checkout / "later").touch()
    newest = commit(checkout)
    here = Path("review-residuals").resolve()
    for version, wanted, told in ((first, first, ""), ("v0.1.0", newest, "has no v0.1.0")):
        execute(bootstrap.source(str(checkout), version))
        assert git(here, "rev-parse", "HEAD") == wanted
        assert told in capsys.readouterr().out
        shutil.rmtree(here)
    git(checkout, "tag", "v0.1.0", first)
    execute(bootstrap.source(str(checkout), "v0.1.0"))
    assert git(here, "rev-parse", "HEAD") == first and capsys.readouterr().out == ""
    # with lower bounds, so that what the machine has stays
    parts = ("-e", f"{here}[notebooks,hub]", "-e", f"{here}/book")
    assert all(words[-4:] == parts for words in elsewhere)
    assert len(elsewhere) == 3 and not any("==" in word for words in elsewhere for word in words)
    assert sys.path[:2] == [str(here), f"{here}/book"]


def test_in_a_checkout_the_first_cell_installs_that_checkout(elsewhere, checkout, monkeypatch):
    for folder in ("rr", "notebooks"):
        (checkout / folder).mkdir()
    (checkout / "rr" / "__init__.py").touch()
    monkeypatch.chdir(checkout / "notebooks")
    execute(bootstrap.source("https://example.invalid/none", "v0"))
    parts = ("-e", f"{checkout}[notebooks,hub]", "-e", f"{checkout}/book")
    assert [words[-4:] for words in elsewhere] == [parts]


def test_a_first_cell_that_cannot_install_says_why(elsewhere, tmp_path):
    unset = re.sub(r"^home = .*$", 'home = ""', bootstrap.source(), flags=re.M)
    with pytest.raises(RuntimeError, match="set `home` to the address"):
        execute(unset)
    assert not elsewhere
    with pytest.raises(RuntimeError, match="nowhere"):  # git's own words
        execute(bootstrap.source(str(tmp_path / "nowhere"), "v0"))


@pytest.mark.parametrize(
    ("memory", "words"),
    [
        (15.8e9, 'Tesla T4, 16 GB: set tier = "colab"'),
        (8e9, '"smoke" runs here'),
        (None, ""),
    ],
)
def test_on_a_gpu_the_first_cell_proposes_the_tier(
    elsewhere, checkout, monkeypatch, capsys, memory, words
):
    commit_id = git(checkout, "rev-parse", "HEAD")
    seen(monkeypatch, memory)
    execute(bootstrap.source(str(checkout), commit_id))
    out = capsys.readouterr().out
    assert words in out and out.count("\n") == bool(words)
    # again on Colab, where rr is there by now
    monkeypatch.setattr("importlib.util.find_spec", lambda name: True)
    monkeypatch.setitem(sys.modules, "google.colab", types.ModuleType("google.colab"))
    execute(bootstrap.source(str(checkout), commit_id))
    assert capsys.readouterr().out == out
