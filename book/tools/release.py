"""The files of a release, below _build/release/, with their checksums.

    python book/tools/release.py        # `make release`, after `make book`

The site as a zip, the PDF, wheel and source distribution of `rr`, and the measured records as one
data set with its card. Where the site cannot be opened without a network, nothing is released.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import home
import pdf
import site_zip
import yaml
from nbkit import BUILD, ROOT

OUT = BUILD / "release"
MEASURED = ROOT / "data" / "measured"
SUMS = "SHA256SUMS"


def card(measured: Path) -> str:
    """The records' card: a configuration for each table of each campaign, then what they hold."""
    configs = [
        {"config_name": f"{table.parent.name}-{table.stem}",
         "data_files": table.relative_to(measured).as_posix()}
        for table in sorted(measured.glob("*/*.parquet"))
    ]  # fmt: skip
    front = {"license": "apache-2.0", "pretty_name": "Review Residuals: measured records",
             "configs": configs}  # fmt: skip
    text = (measured / "README.md").read_text(encoding="utf-8")
    return f"---\n{yaml.safe_dump(front, sort_keys=False)}---\n\n{text}"


def records(measured: Path) -> list[tuple[str, bytes]]:
    """The files of the data set: all that the records' folder holds, under the card."""
    files = [path for path in sorted(measured.rglob("*")) if path.is_file()]
    return [
        (path.relative_to(measured).as_posix(),
         card(measured).encode() if path == measured / "README.md" else path.read_bytes())
        for path in files if "__pycache__" not in path.parts
    ]  # fmt: skip


def distributions(out: Path) -> None:
    """Wheel and source distribution of `rr`, dated as the commit that they are built from."""
    when = home.git(ROOT, "log", "-1", "--format=%ct") or "0"
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True,
                          env={**os.environ, "SOURCE_DATE_EPOCH": when})  # fmt: skip
    if done.returncode:
        why = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1]
        raise SystemExit(f"release: the package does not build: {why}")


def sums(folder: Path) -> str:
    """A line for each file, as `sha256sum --check` reads it."""
    return "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(folder.iterdir())
        if path.name != SUMS
    )


def main() -> int:
    if code := site_zip.main():
        return code
    if code := pdf.main():
        return code
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    name = f"review-residuals-{home.release()}"
    shutil.copy(site_zip.ZIP, OUT / f"{name}-site.zip")
    shutil.copy(pdf.OUT, OUT / f"{name}.pdf")
    site_zip.packed(records(MEASURED), OUT / f"{name}-records.zip")
    distributions(OUT)
    (OUT / SUMS).write_text(sums(OUT))
    for path in sorted(OUT.iterdir()):
        print(f"release: {path} ({path.stat().st_size / 2**20:.1f} MiB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
