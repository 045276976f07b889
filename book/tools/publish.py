"""The built site as one file, and on the branch that it is published from.

    python book/tools/publish.py zip           # `make site-zip`: _build/review-residuals-site.zip
    python book/tools/publish.py push          # `make publish`: force-pushes origin's gh-pages

The zip opens from a disk with the network off: a page that asks an address for a script, a style
sheet or a picture is refused. `push` makes the branch a single commit: the site is built from
sources that have a history of their own.
"""

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

import home
from bs4 import BeautifulSoup
from nbkit import BUILD, ROOT

SITE = BUILD / "site"
NAME = "review-residuals-site"
ZIP = BUILD / f"{NAME}.zip"
LOADED = "script[src], link[rel~=stylesheet], link[rel~=icon], img[src], iframe[src], source[src]"


def outside(site: Path) -> list[str]:
    """What the pages load from the network: page and address."""
    found = []
    for path in sorted(site.rglob("*.html")):
        soup = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
        for tag in soup.select(LOADED):
            place = str(tag.get("src") or tag.get("href") or "")
            if place.startswith(("http:", "https:", "//")):
                found.append(f"{path.relative_to(site)} loads {place}")
    return found


def packed(files: Iterable[tuple[str, bytes]], out: Path) -> None:
    """Pack named contents; equal contents make equal bytes."""
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as pack:
        for name, content in files:
            entry = zipfile.ZipInfo(name)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            pack.writestr(entry, content)


def zipped(site: Path, out: Path) -> None:
    """Pack the site below one folder."""
    files = sorted(path for path in site.rglob("*") if path.is_file())
    packed(((f"{NAME}/{path.relative_to(site).as_posix()}", path.read_bytes()) for path in files),
           out)  # fmt: skip


def push(site: Path, root: Path = ROOT) -> str:
    """Make the site the one commit of origin's branch for pages, and return the commit."""
    index = site.parent / f"{site.name}.index"
    index.unlink(missing_ok=True)
    (site / ".nojekyll").touch()  # else GitHub leaves out folders that begin with _

    def git(*words: str, **more: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(root), *words],
            capture_output=True,
            text=True,
            env={**os.environ, **more},
        )
        if done.returncode:
            raise SystemExit(f"publish: git {words[0]}: {done.stderr.strip()}")
        return done.stdout.strip()

    place = {
        "GIT_INDEX_FILE": str(index),
        "GIT_WORK_TREE": str(site),
        "GIT_DIR": git("rev-parse", "--absolute-git-dir"),
    }
    git("add", "--all", "--force", ".", **place)
    name, mail, head = git("log", "-1", "--format=%an%n%ae%n%H").splitlines()
    who = {
        f"GIT_{one}_{part}": value
        for one in ("AUTHOR", "COMMITTER")
        for part, value in (("NAME", name), ("EMAIL", mail))
    }
    commit = git("commit-tree", git("write-tree", **place), "-m", f"The site of {head}", **who)
    git("push", "--force", "origin", f"{commit}:refs/heads/{home.PAGES}")
    index.unlink()
    return commit


def main(words: list[str]) -> int:
    if not (SITE / "index.html").exists():
        print("publish: nothing built yet; run `make book` first")
        return 1
    if words == ["push"]:
        print(f"publish: {home.PAGES} of origin is {push(SITE)}")
        return 0
    if found := outside(SITE):
        print("\n".join(found[:10]))
        print(
            f"publish: {len(found)} things come from the network; with npm at hand `make clean "
            "book` brings the page's own"
        )
        return 1
    zipped(SITE, ZIP)
    print(f"publish: {ZIP} ({ZIP.stat().st_size / 2**20:.0f} MiB)")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
