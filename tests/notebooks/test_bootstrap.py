"""The first cell of a notebook: nothing where rr is at hand, an installation elsewhere."""

import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

import bootstrap
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook


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
    monkeypatch.setattr("subprocess.run", None)
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


def test_the_first_cell_takes_its_own_version(elsewhere, checkout, git, monkeypatch, capsys):
    first = git(checkout, "rev-parse", "HEAD")
    (checkout / "later").touch()
    git(checkout, "add", "-A")
    git(checkout, "commit", "-qm", "later")
    newest = git(checkout, "rev-parse", "HEAD")
    here = Path("review-residuals").resolve()
    git(checkout, "tag", "v0.1.0", first)
    for version, wanted, told in (
        (first, first, ""),
        ("v0.1.0", first, ""),
        ("v0.2.0", newest, "has no v0.2.0"),
    ):
        execute(bootstrap.source(str(checkout), version))
        assert git(here, "rev-parse", "HEAD") == wanted
        said = capsys.readouterr().out
        assert told in said and bool(said) == bool(told)
        shutil.rmtree(here)
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
        (15.8e9, 'Tesla T4, 16 GB: device = "auto", where there is a device below'),
        (8e9, '"smoke" runs here'),
        (None, ""),
    ],
)
def test_on_a_gpu_the_first_cell_says_how_to_use_it(
    elsewhere, checkout, git, monkeypatch, capsys, memory, words
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
