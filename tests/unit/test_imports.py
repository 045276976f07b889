"""What the package needs: its core torch, numpy and tokenizers alone. (Layers: import-linter.)"""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rr.cli import sweep
from rr.sweep import notebook

ROOT = Path(__file__).parents[2] / "rr"
CORE = ("config", "io", "ops", "data", "residual", "model", "training", "analysis", "perf", "sweep",
        "cli")  # fmt: skip
ALLOWED = {"rr", "torch", "numpy", "tokenizers"}
# modules that nothing imports until they are asked for, and the packages each needs beside
ONLY_WHEN_ASKED = {
    "rr/ops/gated_write_triton.py": "triton",
    "rr/training/harness.py": "lm_eval",
    "rr/training/hub.py": "safetensors huggingface_hub",
    "rr/analysis/gates.py": "scipy",
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
def test_the_core_needs_three_packages(part):
    for path in [*(ROOT / part).rglob("*.py"), *ROOT.glob(f"{part}.py")]:
        name = path.relative_to(ROOT.parent).as_posix()
        known = ALLOWED | set(sys.stdlib_module_names) | set(ONLY_WHEN_ASKED.get(name, "").split())
        assert at_start(path) <= known, name


def test_the_top_of_the_package_is_what_a_reader_sees():
    entries = {path.name for path in ROOT.iterdir() if path.name != "__pycache__"}
    named = {f"{part}.py" if (ROOT / f"{part}.py").exists() else part for part in CORE}
    assert entries - {"py.typed"} == named | {"__init__.py", "stats"}


def verb(words: list[str], folder: Path, first: str = "") -> tuple[str, bool]:
    """What `rr WORDS` prints in a process of its own, and whether that has loaded torch."""
    code = (
        f"{first}import sys\nfrom rr import cli\n"
        f"try: cli.main({words})\nexcept SystemExit: pass\n"
        "print('torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=folder,
        env={"PYTHONPATH": str(ROOT.parent), "PATH": "", "RR_CACHE": str(folder / "cache")},
    )
    last = done.stderr.splitlines()[-1]
    assert last in ("True", "False"), done.stderr
    return done.stdout, last == "True"


DRY = ["sweep", "--dry-run", "--rung", "nano", "mini", "--seed", "0", "1", "--threads", "1",
       "--device", "cpu"]  # fmt: skip
RULES = ["--rule", "standard", "constant:c=0.3", "review", "hyper-connections:streams=2"]


@pytest.mark.parametrize(
    "words",
    [
        [*DRY, *RULES, "--values", "own", "svformer", "--flavour", "gpt2", "llama"],
        [*DRY, "--loops", "1", "2", "--runner", "direct", "--order", "longest"],
        ["sweep", "--dry-run", "--protocol", "paper"],
        ["rules"],
        ["rules", "--json"],
    ],
)
def test_a_first_dry_run_loads_no_torch(words, tmp_path):
    """With an empty cache; what is printed is what a process with torch prints."""
    printed, loaded = verb(words, tmp_path)
    assert printed and not loaded
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)
    assert verb(words, tmp_path, first="import torch\n") == (printed, True)


@pytest.mark.parametrize(
    "words",
    [["--help"], ["plan", "--help"], ["sweep", "--help"], ["table", "."], ["train", "--rung"]],
)
def test_small_verbs_load_no_torch(words, tmp_path):
    """Importing torch takes a second: help, a table and a mistyped word do without."""
    assert not verb(words, tmp_path)[1]


def test_a_dry_run_of_a_rule_in_a_file_loads_torch_once(tmp_path):
    """Listed again it comes from the cache, until a text or a rule is another."""
    (tmp_path / "mine.txt").write_text("one two three")
    rule = "from rr import Rule\nclass Mine(Rule):\n    pass\n"
    (tmp_path / "mine.py").write_text(rule)
    words = ["sweep", "--dry-run", "--rung", "nano", "--seed", "0", "1", "--rule", "mine.py:Mine",
             "--corpus", "file:mine.txt", "--tokenizer", "bpe:300"]  # fmt: skip
    first, loaded = verb(words, tmp_path)
    assert loaded and len(first.splitlines()) == 2
    assert verb(words, tmp_path) == (first, False)
    seen = {first}
    for name, content in (("mine.txt", "four five six"), ("mine.py", rule + "# another\n")):
        (tmp_path / name).write_text(content)
        then, loaded = verb(words, tmp_path)
        assert loaded and then not in seen  # other ids
        assert verb(words, tmp_path) == (then, False)
        seen.add(then)
    assert notebook.NAME == sweep.NOTEBOOK  # which is part of what a dry run depends on
