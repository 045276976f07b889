"""The project's address on the web, and which version of the project this checkout is.

The address is one setting: `Repository` below `[project.urls]` in pyproject.toml. Where it is not
set, the page's buttons follow the checkout's own `origin`. What is stored in git (notebooks and
CITATION.cff) follows the setting alone, because it must not depend on the machine.

    python book/tools/home.py          # `make home`: set the address to that of origin
    python book/tools/home.py URL      # `make home URL=…`: set it to this one
"""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from nbkit import ROOT

import rr

PAGES = "gh-pages"  # the branch that the built site is published on
PLAIN = "colab"  # folder of the site with the notebooks' plain editions
REMOTE = re.compile(
    r"""(?:https://(?:[^@/]+@)?|ssh://[^@/]+@|\w+@)  # a user name or token is left out
    (?P<host>(?:[a-z0-9-]+\.)+[a-z]{2,})             # a public name: no localhost, number or alias
    (?:/|:(?!\d))                                    # no port
    (?P<path>[\w.~-]+(?:/[\w.~-]+)+)""",
    re.VERBOSE | re.ASCII,
)


def web_address(remote: str) -> str | None:
    """The https address of a git remote's page; None where it is not on a public host."""
    match = REMOTE.fullmatch(remote.rstrip("/").removesuffix(".git"))
    return f"https://{match['host']}/{match['path']}" if match else None


def setting(root: Path = ROOT) -> str | None:
    """The address that pyproject.toml states, if it states one."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project["urls"].get("Repository")


def git(root: Path, *words: str) -> str:
    """What git answers in the checkout at `root`; "" where `root` is none, or git refuses."""
    # the ceiling: a project around an unpacked archive is not this one
    ceiling = {**os.environ, "GIT_CEILING_DIRECTORIES": str(root.parent)}
    command = ["git", "-C", str(root), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=ceiling)
    except FileNotFoundError:
        return ""
    return "" if done.returncode else done.stdout.strip()


def address(root: Path = ROOT) -> str | None:
    """Where the project lives: the setting, else origin, else None."""
    return setting(root) or web_address(git(root, "remote", "get-url", "origin"))


def release() -> str:
    """The tag of the version that this checkout is or will be."""
    return f"v{rr.__version__}"


def version(root: Path = ROOT) -> str | None:
    """The checkout's release tag where HEAD carries it, else its commit; None without git."""
    tagged = release() in git(root, "tag", "--points-at", "HEAD").splitlines()
    return release() if tagged else git(root, "rev-parse", "HEAD") or None


def write(url: str, root: Path = ROOT) -> None:
    """Set the address in pyproject.toml and CITATION.cff."""
    for name, line, below in (
        ("pyproject.toml", f'Repository = "{url}"', "[project.urls]"),
        ("CITATION.cff", f'repository-code: "{url}"', "type: software"),
    ):
        path = root / name
        text = path.read_text(encoding="utf-8")
        text = re.sub(r"^(Repository =|repository-code:) .*\n", "", text, flags=re.MULTILINE)
        path.write_text(text.replace(f"{below}\n", f"{below}\n{line}\n"), encoding="utf-8")


def main() -> int:
    remote = sys.argv[1] if len(sys.argv) > 1 else git(ROOT, "remote", "get-url", "origin")
    url = web_address(remote)
    if url is None:
        print(
            f"home: {remote!r} is not the address of a repository on a public host: "
            "`make home URL=https://github.com/OWNER/NAME` names one"
        )
        return 2
    write(url)
    import bootstrap  # reads the setting

    bootstrap.refresh_all()
    print(f"home: {url}, in pyproject.toml, CITATION.cff and the notebooks: commit what changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
