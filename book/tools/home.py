"""The project's address on the web, and which version of the project this checkout is.

The address is one setting: `Repository` below `[project.urls]` in pyproject.toml. Where it is not
set, the page's buttons follow the checkout's own `origin`. What is stored in git (notebooks and
CITATION.cff) follows the setting alone, because it must not depend on the machine.

    python book/tools/home.py          # `make home`: set the address to that of origin
    python book/tools/home.py URL      # `make home URL=…`: set it to this one
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

from nbkit import ROOT

import rr

SCP_FORM = re.compile(r"(?:[^@/\s]+@)?([^:/\s]+):([^/\s].*)")  # git@host:owner/name.git
HOST = re.compile(r"(?:[a-z0-9-]+\.)+[a-z]{2,}")  # a public name: no localhost, number or alias
PAGES = "gh-pages"  # the branch that the built site is published on
PLAIN = "colab"  # folder of the site with the notebooks' plain editions
PART = re.compile(r"[A-Za-z0-9_.~-]+")


def web_address(remote: str) -> str | None:
    """The https address of the page of a git remote; None where it is not on a public host.

    A user name or token in the remote is left out.
    """
    remote = remote.strip()
    if "://" in remote:
        try:
            parts = urlsplit(remote)
            host, path, port = parts.hostname or "", parts.path, parts.port
        except ValueError:
            return None
        web = parts.scheme in ("https", "http", "git", "ssh", "git+ssh")
        if not web or parts.scheme in ("https", "http") and port not in (None, 80, 443):
            return None
    elif match := SCP_FORM.fullmatch(remote):
        host, path = match[1].lower(), match[2]
    else:
        return None
    host = re.sub(r"^(alt)?ssh\.", "", host)  # ssh over the port of https, as GitHub names it
    names = path.strip("/").removesuffix(".git").split("/")
    if len(names) < 2 or not HOST.fullmatch(host) or not all(map(PART.fullmatch, names)):
        return None
    return f"https://{host}/{'/'.join(names)}"


def setting(root: Path = ROOT) -> str | None:
    """The address that pyproject.toml states, if it states one."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project.get("urls", {}).get("Repository")


def _git(root: Path, *words: str) -> str | None:
    """What git answers in the checkout at `root`; None where `root` is none, or git refuses."""
    try:
        top = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "--show-toplevel"], capture_output=True, text=True
        )
        if top.returncode or Path(top.stdout.strip()).resolve() != root.resolve():
            return None
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return None if done.returncode else done.stdout.strip()


def origin(root: Path = ROOT) -> str | None:
    """The web address of the checkout's own remote `origin`, if it is on a public host."""
    return web_address(_git(root, "remote", "get-url", "origin") or "")


def address(root: Path = ROOT) -> str | None:
    """Where the project lives: the setting, else origin, else None."""
    return setting(root) or origin(root)


def release() -> str:
    """The tag of the version that this checkout is or will be."""
    return f"v{rr.__version__}"


def version(root: Path = ROOT) -> str | None:
    """The checkout's release tag where HEAD carries it, else its commit; None without git."""
    tags = (_git(root, "tag", "--points-at", "HEAD") or "").splitlines()
    return release() if release() in tags else _git(root, "rev-parse", "HEAD")


def committed(root: Path = ROOT) -> str | None:
    """When HEAD was committed, in seconds since 1970; None without git."""
    return _git(root, "log", "-1", "--format=%ct")


def remarks(root: Path = ROOT) -> list[str]:
    """What the author of a page should know about its address, a line each."""
    said, own, here = [], setting(root), origin(root)
    if own is None and here is None:
        said.append(
            "no home address, so no repository and Colab buttons: `make home URL=https://…` sets it"
        )
    elif own is None:
        said.append(
            f"buttons lead to origin, {here}; `make home` writes it into the notebooks,"
            " which Colab needs"
        )
    elif here and here != own:
        said.append(
            f"buttons lead to {own} (pyproject.toml), origin is {here}: `make home` changes"
            " to origin"
        )
    head, tag = version(root), release()
    if head in (None, tag):
        return said
    if _git(root, "rev-parse", "-q", "--verify", tag):
        said.append(
            f"HEAD is not {tag}, which is already tagged: raise rr.__version__, or Colab"
            " installs the tagged code"
        )
    if (own or here) and not _git(root, "branch", "-r", "--contains", "HEAD"):
        said.append(f"{head[:12]} is on no branch of a remote: buttons work once it is pushed")
    return said


def write(url: str, root: Path = ROOT) -> list[str]:
    """Set the address in pyproject.toml and CITATION.cff; the names of the files that changed."""
    pyproject, citation = root / "pyproject.toml", root / "CITATION.cff"
    new = {}
    text = re.sub(r"^Repository = .*\n", "", pyproject.read_text(encoding="utf-8"), flags=re.M)
    table = "[project.urls]\n"
    new[pyproject] = text.replace(table, f'{table}Repository = "{url}"\n', 1)
    lines = citation.read_text(encoding="utf-8").splitlines(keepends=True)
    lines = [line for line in lines if not line.startswith(("repository-code:", "url:"))]
    place = next(i for i, line in enumerate(lines) if line.startswith("license:")) + 1
    lines[place:place] = [f'repository-code: "{url}"\n', f'url: "{url}"\n']
    new[citation] = "".join(lines)
    changed = [path for path in new if path.read_text(encoding="utf-8") != new[path]]
    for path in changed:
        path.write_text(new[path], encoding="utf-8")
    return [path.name for path in changed]


def main() -> int:
    given = sys.argv[1] if len(sys.argv) > 1 else ""
    url = web_address(given) if given else origin()
    if url is None:
        print(
            f"home: {given!r} is not the address of a repository on a public host, such as "
            "https://github.com/OWNER/NAME"
            if given
            else "home: origin is missing or not on a public host: `make home URL=https://…` names"
            " an address"
        )
        return 2
    changed = write(url)
    import bootstrap  # reads the setting

    changed += bootstrap.refresh_all()
    print(f"home: {url}; " + (f"changed: {', '.join(changed)}" if changed else "nothing to change"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
