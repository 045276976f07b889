"""The matrix of `make portable` holds every setting, and its table hides nothing."""

import subprocess
import sys

import pytest
from nbkit import ROOT, environment, sources
from portable import MATRIX, Column, commands, interpreters

SETTINGS = {("ATEN_CPU_CAPABILITY", "default"), ("ONEDNN_MAX_CPU_ISA", "AVX2"),
            ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE"), ("MKL_CBWR", "COMPATIBLE")}  # fmt: skip


def test_the_matrix_holds_every_setting():
    columns = MATRIX.values()
    assert {column.python for column in columns} == {"3.11", "3.12", "3.13"}
    assert {column.threads for column in columns} == {1, 3}
    assert {item for column in columns for item in column.kernels.items()} == SETTINGS


def test_a_columns_settings_reach_what_it_runs():
    column = Column("3.11", 3, {"ATEN_CPU_CAPABILITY": "default"})
    ask = (
        "import torch; from rr.training.device import set_threads; "
        "print(set_threads(None), torch.backends.cpu.get_cpu_capability())"
    )
    done = subprocess.run(
        [sys.executable, "-c", ask],
        env=column.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["3", "DEFAULT"]


@pytest.mark.parametrize(
    ("tests", "notebooks", "parts"),
    [
        ([], [], ["unit", "notebooks: outputs"]),
        ([], ["03"], ["notebooks: outputs"]),
        (["tests/unit/test_ops.py"], [], ["unit"]),
    ],
)
def test_parts_that_are_picked(tests, notebooks, parts):
    made = commands("python", tests, notebooks)
    assert list(made) == parts
    words = [word for command in made.values() for word in command]
    assert set(tests) <= set(words)
    picked = [word for word in words if word.endswith(".ipynb")]
    assert len(picked) == (0 if tests else len(sources(*notebooks)))


def test_a_python_that_is_missing_is_said_and_nothing_passes_for_run(tmp_path, monkeypatch):
    shim = tmp_path / "python3.13"  # as pyenv leaves one where its Python is not
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PYTHONS", f"{shim} {sys.executable}")
    assert interpreters() == {f"{sys.version_info.major}.{sys.version_info.minor}": sys.executable}
    done = subprocess.run(
        [sys.executable, "book/tools/portable.py", "--only", "plain", "03"],
        cwd=ROOT,
        env={**environment(), "PYTHONS": str(shim)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and "nothing ran" in done.stdout
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("plain")]
    assert row.count("not here") == 2 and "put python3.13 on PATH" in done.stdout
