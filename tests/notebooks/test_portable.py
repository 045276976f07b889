"""The matrix of `make portable` holds every setting, and nothing passes that did not run."""

import json
import subprocess
import sys
from itertools import repeat

import portable
import pytest
from nbkit import ROOT, environment, sources
from portable import (
    MATRIX,
    PLAIN,
    Column,
    chunks,
    interpreters,
    judge,
    notebooks,
    share,
    unit_modules,
)

SETTINGS = {
    ("ATEN_CPU_CAPABILITY", "default"),
    ("ONEDNN_MAX_CPU_ISA", "AVX2"),
    ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE"),
    ("MKL_CBWR", "COMPATIBLE"),
}


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


def test_everything_runs_twice_under_two_pythons_and_every_column_has_a_part():
    every = sorted([*unit_modules(), *notebooks()])
    assert len(every) > 70 and len(notebooks()) == len(sources())
    shares = share(MATRIX)
    assert sorted(shares[PLAIN]) == every
    others = {name: items for name, items in shares.items() if name != PLAIN}
    assert sorted(item for items in others.values() for item in items) == every
    assert MATRIX[PLAIN].python not in {MATRIX[name].python for name in others}
    for items in others.values():
        assert sum(map(str.endswith, items, repeat(".ipynb"))) >= len(notebooks()) // len(others)
    assert share(["mkl"]) == {"mkl": shares["mkl"]}  # one alone takes what it would take beside
    for name in MATRIX:
        assert [item for chunk in chunks(shares[name]) for item in chunk] == shares[name]


ITEMS = ["tests/unit/test_a.py", "tests/unit/test_b.py"]


@pytest.mark.parametrize(
    ("code", "text", "failed"),
    [
        (0, "2 passed", [[], []]),
        (1, "FAILED tests/unit/test_b.py::test_x - why", [[], ["FAILED"]]),
        (2, "no such file", [["no such file"], ["no such file"]]),
        (-9, "FAILED tests/unit/test_b.py::test_x - why", [["FAILED"], ["FAILED"]]),
    ],
)
def test_what_failed_is_told_from_what_passed(code, text, failed):
    """A process that ended before its time has passed nothing."""
    found = judge(code, text, ITEMS)
    assert list(found) == ITEMS
    for lines, words in zip(found.values(), failed, strict=True):
        assert len(lines) == len(words) and all(map(str.startswith, lines, words))


def test_a_result_of_other_code_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(portable, "RESULTS", tmp_path / "results.json")
    told = {"key": portable.key("tests/unit/test_ops.py"), "why": []}
    given = {
        "mkl tests/unit/test_ops.py": told,
        "mkl tests/unit/test_gone.py": told,
        "aten tests/unit/test_ops.py": {"key": "0", "why": []},
    }
    portable.RESULTS.write_text(json.dumps(given))
    assert portable.kept() == {"mkl tests/unit/test_ops.py": told}


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
    assert done.returncode == 1 and "make portable: FAILED" in done.stdout
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("plain")]
    assert row.count("not here") == 1 and "put python3.13 on PATH" in done.stdout
