"""The built site as one file: `make site-zip` makes _build/review-residuals-site.zip.

It opens from a disk with the network off: a page that asks an address for a script, a style sheet
or a picture is refused.
"""

import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

from bs4 import BeautifulSoup
from nbkit import BUILD

SITE = BUILD / "site"
NAME = "review-residuals-site"
ZIP = BUILD / f"{NAME}.zip"
LOADED = "script[src], link[rel~=stylesheet], link[rel~=icon], img[src], iframe[src], source[src]"


def outside(site: Path) -> list[str]:
    """What the pages load from the network: page and address."""
    loaded = []
    for path in sorted(site.rglob("*.html")):
        soup = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
        for tag in soup.select(LOADED):
            place = str(tag.get("src") or tag.get("href") or "")
            if place.startswith(("http:", "https:", "//")):
                loaded.append(f"{path.relative_to(site)} loads {place}")
    return loaded


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


def main() -> int:
    if not (SITE / "index.html").exists():
        print("site_zip: nothing built yet; run `make book` first")
        return 1
    if loaded := outside(SITE):
        print("\n".join(loaded[:10]))
        print(
            f"site_zip: {len(loaded)} things come from the network; with npm at hand `make clean "
            "book` brings the page's own"
        )
        return 1
    zipped(SITE, ZIP)
    print(f"site_zip: {ZIP} ({ZIP.stat().st_size / 2**20:.0f} MiB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
