"""What the packages need: torch (with its filelock), numpy, tokenizers. (Layers: import-linter.)"""

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORE = (
    "rr",
    "rrstudy/perf",
    "rrstudy/sweep",
    "rrstudy/cli",
    "rrstudy/hub.py",
    "rrstudy/harness.py",
)
ALLOWED = {"rr", "rrstudy", "torch", "filelock", "numpy", "tokenizers"}
# modules that nothing imports until they are asked for, and the packages each needs beside
ONLY_WHEN_ASKED = {
    "rrstudy/harness.py": "lm_eval",
    "rrstudy/hub.py": "safetensors huggingface_hub",
}


def at_start(path: Path) -> set[str]:
    """Top-level names of what a file imports when it is imported itself."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("part", CORE)
def test_the_core_needs_few_packages(part):
    whole = ROOT / part
    for path in whole.rglob("*.py") if whole.is_dir() else [whole]:
        name = path.relative_to(ROOT).as_posix()
        known = ALLOWED | set(sys.stdlib_module_names) | set(ONLY_WHEN_ASKED.get(name, "").split())
        assert at_start(path) <= known, name


def alone(code: str, tmp_path: Path) -> str:
    """What Python prints where rr can be imported, and neither rrstudy nor the book."""
    (tmp_path / "rr").symlink_to(ROOT / "rr")
    absent = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('rrstudy', 'rrbook'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Absent)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", absent + code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


FILES, LINES = 54, 10_086  # that `rr train` imports, all rules included
TRAIN = """
from rr.cli import main
tiny = "nano:d_model=16,n_layer=1,n_head=1,d_ff=32,seq_len=16"
code = main(["train", "--rung", tiny, "--batch", "2", "--steps", "2", "--eval-batches", "1",
             "--threads", "1", "--device", "cpu", "--out", "runs"])
from pathlib import Path
files = {m.__file__ for n, m in sys.modules.items() if n.split(".")[0] == "rr"}
lines = sum(len(Path(f).read_text().splitlines()) for f in files)
print(code, len(files), lines)
"""


def test_rr_trains_without_what_stands_above_it(tmp_path):
    *_, last = alone(TRAIN, tmp_path).splitlines()
    code, files, lines = map(int, last.split())
    assert code == 0
    assert files <= FILES and lines <= LINES, (files, lines)


def test_what_the_pages_of_the_records_name_is_there():
    """`rrstudy.stats.read_records`: a module, and what it has."""
    pages = sorted((ROOT / "data" / "measured").glob("*.md"))
    names = {
        name
        for page in pages
        for name in re.findall(r"`((?:rr|rrstudy|rrbook)(?:\.\w+)+)`", page.read_text("utf-8"))
    }
    assert "rrstudy.stats.read_records" in names
    for name in names:
        module, _, last = name.rpartition(".")
        assert hasattr(import_module(module), last), name
