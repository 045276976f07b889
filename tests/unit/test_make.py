"""`make` installs only into an environment that it made itself, and once."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def checkout(tmp_path):
    """The Makefile with stand-ins: Pythons that write their words to a file named `said`."""
    (tmp_path / "book").mkdir()
    for name in ("Makefile", "constraints.txt", "pyproject.toml", "book/pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
        os.utime(tmp_path / name, (1, 1))
    said = f'echo "$0 $*" >> {tmp_path}/said'
    program(tmp_path / "other" / "bin" / "python", said)  # somebody's environment
    program(
        tmp_path / "python3",
        f"""{said}
if [ "$1 $2" = "-m venv" ]; then
    mkdir -p "$3/bin"; cp {tmp_path}/other/bin/python "$3/bin/python"
fi""",
    )
    return tmp_path


def make(checkout: Path, *words: str) -> tuple[int, str, list[str]]:
    """Exit code, output, and what each Python was called with."""
    said, command = checkout / "said", ["make", *words, f"PYTHON={checkout}/python3"]
    said.unlink(missing_ok=True)
    ours = {"VENV", "THREADS", "KERNELS", "MAKEFLAGS", "MFLAGS", "MAKELEVEL"}  # `make plain`
    env = {name: value for name, value in os.environ.items() if name not in ours}
    done = subprocess.run(command, cwd=checkout, text=True, capture_output=True, env=env)
    calls = said.read_text().splitlines() if said.exists() else []
    return done.returncode, done.stdout + done.stderr, calls


def installed(calls: list[str]) -> set[str]:
    """The Pythons that pip installed with."""
    return {call.split()[0] for call in calls if " -m pip install " in call}


def test_the_first_call_makes_an_environment_and_the_second_does_not(checkout):
    code, text, calls = make(checkout, "test")
    assert code == 0, text
    assert installed(calls) == {".venv/bin/python"}
    code, _, calls = make(checkout, "test")
    assert code == 0 and len(calls) == 3 and "book/tools/lint.py" in calls[0]
    assert calls[-1].startswith(".venv/bin/python -m pytest") and not installed(calls)
    os.utime(checkout / "pyproject.toml")  # newer needs: its own environment may be made again
    (checkout / ".venv" / "old").touch()
    code, text, calls = make(checkout, "lint")
    assert code == 0, text
    assert installed(calls) == {".venv/bin/python"} and not (checkout / ".venv" / "old").exists()
    assert make(checkout, "distclean")[0] == 0 and not (checkout / ".venv").exists()


def test_another_python_is_used_as_it_is(checkout):
    code, text, calls = make(checkout, "new-rule", "NAME=damped", "PY=other/bin/python")
    assert code == 0, text
    assert calls == ["other/bin/python book/tools/new_rule.py -- damped"]
    assert not (checkout / ".venv").exists()


@pytest.mark.parametrize(("target", "venv"), [("lint", "other"), ("distclean", ".venv")])
def test_an_environment_that_make_did_not_make_is_left_alone(checkout, target, venv):
    if venv == ".venv":
        shutil.copytree(checkout / "other", checkout / ".venv")
    code, text, calls = make(checkout, target, f"VENV={venv}")
    assert code != 0 and "make did not make" in text
    assert not installed(calls) and not any("-m venv" in call for call in calls)
    assert (checkout / venv / "bin" / "python").exists()


def test_an_installation_that_was_cut_off_is_made_again(checkout):
    program(
        checkout / "python3",
        f'mkdir -p "$3/bin"; cp {checkout}/python3 "$3/bin/python"; [ "$2" != pip ]',
    )
    assert make(checkout, "lint")[0] != 0
    program(
        checkout / "python3",
        '[ "$1" = -m ] || exit 0; mkdir -p "$3/bin"; '
        f'cp {checkout}/other/bin/python "$3/bin/python"',
    )
    code, text, calls = make(checkout, "lint")
    assert code == 0, text
    assert installed(calls) == {".venv/bin/python"}
