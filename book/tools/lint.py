"""Check the style of code, notebooks and prose; name each breach with its place.

`make lint` checks the types as well; `make test`, which runs this, does not.

python book/tools/lint.py            everything
python book/tools/lint.py 03         one notebook
"""

import subprocess
import sys
from pathlib import Path

from nbkit import ROOT, environment, sources
from prose import reference_links, typed_results, worded
from rules import problems

PAGES = ("book/*.md", "book/recipes/*.md")
# files that are held to the wordings of prose.py, as notebooks are
WORDED = ("*.md", *PAGES, "rr/**/*.py", "book/rrbook/**/*.py", "book/tools/*.py")


def notebooks(*picks: str) -> int:
    """Print the problems of the notebooks; how many there are."""
    count = 0
    for path in sources(*picks):
        for problem in problems(path):
            print(f"{path.relative_to(ROOT)}: {problem}")
            count += 1
        count += wordings(path)
    return count


def wordings(path: Path) -> int:
    """Print the wordings of a file that the book does not use; how many there are."""
    count = 0
    for place, text, advice in worded(path):
        print(f"{path.relative_to(ROOT)}:{place}: {text!r}: {advice}")
        count += 1
    return count


def pages() -> int:
    """The same for the prose pages of the book."""
    count = 0
    for path in sorted(path for pattern in PAGES for path in ROOT.glob(pattern)):
        prose = path.read_text(encoding="utf-8")
        for link in reference_links(prose):
            print(f"{path.relative_to(ROOT)}: write the link {link} with its target in ()")
            count += 1
        for line, kind, text in typed_results(prose):
            print(f"{path.relative_to(ROOT)}:{line}: {kind} is typed in prose ({text!r})")
            count += 1
    for path in sorted(path for pattern in WORDED for path in ROOT.glob(pattern)):
        count += wordings(path)
    return count


FORMATTED = ("rr", "rrstudy", "book", "tests")
# ruff: style and format; import-linter: the layers of rr. As pyproject.toml says
TOOLS = {
    "ruff": [sys.executable, "-m", "ruff", "check", "."],
    "ruff format": [sys.executable, "-m", "ruff", "format", "--check", *FORMATTED],
    "import-linter": [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"],
}


def main() -> int:
    if sys.argv[1:]:
        return 1 if notebooks(*sys.argv[1:]) else 0
    count = notebooks() + pages()
    failed = [name for name, command in TOOLS.items() if _fails(command)]
    tools = f"{', '.join(failed)} FAILED" if failed else f"{' and '.join(TOOLS)} passed"
    print(f"lint: {count} problems in notebooks and prose; {tools}")
    return 1 if failed or count else 0


def _fails(command: list[str]) -> bool:
    """Whether a tool finds a fault; what it printed is shown only then."""
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True)
    if done.returncode:
        print(done.stdout, done.stderr, sep="\n")
    return done.returncode != 0


if __name__ == "__main__":
    sys.exit(main())
