"""What the package needs: torch (with its filelock), numpy, tokenizers. (Layers: import-linter.)"""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "rr"
CORE = ("config", "io", "ops", "data", "residual", "model", "training", "analysis", "perf", "sweep",
        "cli")  # fmt: skip
ALLOWED = {"rr", "torch", "filelock", "numpy", "tokenizers"}
# modules that nothing imports until they are asked for, and the packages each needs beside
ONLY_WHEN_ASKED = {
    "rr/training/harness.py": "lm_eval",
    "rr/training/hub.py": "safetensors huggingface_hub",
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
    for path in [*(ROOT / part).rglob("*.py"), *ROOT.glob(f"{part}.py")]:
        name = path.relative_to(ROOT.parent).as_posix()
        known = ALLOWED | set(sys.stdlib_module_names) | set(ONLY_WHEN_ASKED.get(name, "").split())
        assert at_start(path) <= known, name
