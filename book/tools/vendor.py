"""Fetch the page's own copy of MathJax, with npm, into _build/vendor/, and what the tests read the
page with into _build/vendor-tests/.

A page built with them asks nobody for anything. The packages are pinned by version and by the
hash of their content; npm's own configuration says where they come from. Without npm the page
keeps the public script link of its theme, and the build says so.
"""

import contextlib
import json
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from nbkit import BUILD, ROOT

VENDOR = BUILD / "vendor"
VENDOR_TESTS = BUILD / "vendor-tests"

# package: (content hash, licence, {file in the package: its name on the page})
PACKAGES = {
    "mathjax@3.2.2": (
        "sha512-Bt+SSVU8eBG27zChVewOicYs7Xsdt40qm4+UpHyX7k0/O9NliPc+x77k1/FEsPsjKPZGJvtRZM1vO+geW0OhGw==",
        "Apache-2.0",
        {"es5/tex-svg.js": "tex-svg.js", "LICENSE": "mathjax.LICENSE.txt"},
    ),
}
# of the tests alone: no page holds it
TESTS = {
    "axe-core@4.14.1": (
        "sha512-FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ==",
        "MPL-2.0",
        {"axe.min.js": "axe.min.js"},
    ),
}
Packages = dict[str, tuple[str, str, dict[str, str]]]


def _complete(packages: Packages, folder: Path) -> bool:
    return all(
        (folder / name).exists() for _, _, files in packages.values() for name in files.values()
    )


def fetch() -> Path | None:
    """The folder with the page's own scripts; None, and why, where npm cannot give them."""
    if why := _fetched(PACKAGES, VENDOR):
        print(f"vendor: {why}, so mathematics loads from a public address")
        return None
    shutil.copy(ROOT / "NOTICE", VENDOR / "NOTICE.txt")
    return VENDOR


def axe() -> Path | None:
    """The script of axe-core, which looks for barriers on a page; None where npm cannot give it."""
    return None if _fetched(TESTS, VENDOR_TESTS) else VENDOR_TESTS / "axe.min.js"


def _fetched(packages: Packages, out: Path) -> str:
    """Fetch packages into a folder, unless they are there; why they could not be, or ""."""
    if _complete(packages, out):
        return ""
    npm = shutil.which("npm")
    if npm is None:
        return "no npm here"
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        command = [npm, "pack", "--json", "--ignore-scripts", *packages]
        asked = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if asked.returncode:
            why = (asked.stderr.strip().splitlines() or ["no reason given"])[-1]
            return f"npm could not fetch ({why})"
        made = Path(folder, "made")
        made.mkdir()
        for entry in json.loads(asked.stdout):
            _unpack(entry, packages, Path(folder), made)
        if not _complete(packages, out):  # a process beside this one may have been faster
            shutil.rmtree(out, ignore_errors=True)
            with contextlib.suppress(OSError):  # or be so just now: what counts is what is there
                made.rename(out)
    return "" if _complete(packages, out) else f"{out} could not be written"


def _unpack(entry: dict, packages: Packages, folder: Path, out: Path) -> None:
    name = f"{entry['name']}@{entry['version']}"
    integrity, _, files = packages[name]
    if entry["integrity"] != integrity:
        raise SystemExit(f"vendor: {name} is not what it was pinned to: {entry['integrity']}")
    with tarfile.open(folder / entry["filename"].replace("@", "").replace("/", "-")) as tar:
        for inside, name in files.items():
            packed = tar.extractfile(f"package/{inside}")
            assert packed is not None  # a file, as the hash of the content has shown
            (out / name).write_bytes(packed.read())


if __name__ == "__main__":
    print(fetch() or "")
