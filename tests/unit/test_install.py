"""How the project says it is installed: never by its name alone, which nobody owns on an index."""

import re
import subprocess
from pathlib import Path

import rrstudy.hub
from rr.errors import install

ROOT = Path(__file__).parents[2]
TEXT = {".py", ".md", ".ipynb", ".toml", ".yaml", ".yml", ".sh", ".sbatch", ".txt", ".js", ""}
BY_NAME = re.compile(
    r"pip3? install [^\n]*\breview-residuals(?:-book)?+(?:\[[\w,{}]*\])?+(?! @|[/.\w-])"
)


def test_no_line_installs_the_project_by_its_name():
    assert BY_NAME.search("pip install 'review-residuals[hub]'")
    assert BY_NAME.search("pip install -q review-residuals")
    assert not BY_NAME.search(install("hub", "https://example.org/a/b"))
    names = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    files = [ROOT / n for n in names if not n.startswith("data/") and n != "CHANGELOG.md"]
    files = [f for f in files if f.suffix in TEXT and f.is_file() and f != Path(__file__)]
    assert len(files) > 200
    found = [
        f"{file.relative_to(ROOT)}: {match[0]}"
        for file in files
        for match in BY_NAME.finditer(file.read_text(encoding="utf-8"))
    ]
    assert not found


def test_the_book_asks_no_index_for_the_package():
    assert (
        '"review-residuals'
        not in (ROOT / "book/pyproject.toml").read_text().partition("dependencies")[2]
    )


def test_a_model_card_installs_from_the_address_or_the_checkout():
    assert install("hub") == "pip install -e '.[hub]' in the checkout of rr"
    url = "https://example.org/a/b"
    assert install("hub", url) == f"pip install 'review-residuals[hub] @ git+{url}'"
    assert "import rrstudy  # {{ install }}" in rrstudy.hub.CARD
