"""A checkout of its own, for what asks git or changes the project's address."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def git():
    def call(folder: Path, *words: str) -> str:
        who = ["-c", "user.name=Tess", "-c", "user.email=t@example.org"]
        done = subprocess.run(
            ["git", "-C", str(folder), *who, *words], check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    return call


@pytest.fixture
def checkout(tmp_path, git):
    """A git checkout with the project's pyproject.toml and citation, no address and no remote."""
    root = tmp_path / "checkout"
    root.mkdir()
    for name in ("pyproject.toml", "CITATION.cff"):
        text = (ROOT / name).read_text(encoding="utf-8")
        text = re.sub(r"^(Repository =|repository-code:) .*\n", "", text, flags=re.M)
        (root / name).write_text(text, encoding="utf-8")
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "x")
    return root
