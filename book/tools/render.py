"""Render the book: stage prose and notebooks under _build/, build with warnings as errors.

    python book/tools/render.py --site _build/site --notebooks _build/notebooks
    python book/tools/render.py --site _build/test-site                 # from the stored outputs
    python book/tools/render.py --only 03                               # a look at one chapter
    python book/tools/render.py --links                                 # `make links`

The notebooks' plain editions (rrbook.plain) lie beside the pages, in colab/.

The site is replaced only by a build that succeeded, and is left alone when nothing it is made of
has changed. `--only` renders the prose and the picked chapters into _build/preview and reports
warnings without stopping, because links to the other chapters cannot be right there. `--links`
renders nothing, and follows every link that leads out of the book by Sphinx's own check (network).
"""

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import bootstrap
import drawings
import folding
import home
import labs
import reference
import status
import versions
import yaml
from nbkit import BUILD, NOTEBOOKS, ROOT, environment, graft, read, sources, tags, write
from vendor import fetch

from rrbook import plain

TOOLS = ROOT / "book" / "tools"
READY = ROOT / "book" / "ready"  # files that a page offers for download
PASTE = ROOT / "book" / "recipes" / "paste"  # modules that the recipes show
WRITTEN = {".md", ".yml", ".bib", ".css", ".js", ".svg", ".png"}
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def stage(folder: Path, executed: Path | None, picks: list[str]) -> None:
    """Lay out what Sphinx reads: the repository's paths, with the outputs that are to be shown."""
    shutil.rmtree(folder, ignore_errors=True)
    for path in sorted((ROOT / "book").rglob("*")):
        offered = path.is_file() and not {READY, PASTE}.isdisjoint(path.parents)
        if offered or path.suffix in WRITTEN and TOOLS not in path.parents:
            target = folder / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    small = folder / "rr" / "small.py"  # chapters 0 to 2 build it: chapter 2 offers it whole
    small.parent.mkdir(parents=True)
    shutil.copy(ROOT / "rr" / "small.py", small)
    place, shown = home.address(), {}
    for path in sources(*picks):
        notebook = read(path)
        if executed is not None:
            stored, notebook = notebook, graft(notebook, read(executed / path.name))
            for html in drawings.keep(notebook, stored):
                print(
                    f"render: {path.stem}: {drawings.name(html)} has changed since it was drawn; "
                    "without scripts the page shows its sentence alone"
                )
        if place is not None:  # what the page offers for download installs this very version
            for cell in notebook.cells:
                if "bootstrap" in tags(cell):
                    cell.source = bootstrap.source(place, home.version())
        write(plain.convert(notebook, path.stem), folder / home.PLAIN / path.name)
        shown[path.stem] = notebook
        folding.fold(notebook)
        labs.show(notebook)
        write(notebook, folder / "notebooks" / path.name)
    (folder / "book" / "status.md").write_text(status.page(shown, executed), encoding="utf-8")
    (folder / "book" / "tested_with.md").write_text(versions.page(), encoding="utf-8")
    listed = (ROOT / "book" / "_toc.yml").read_text(encoding="utf-8")
    reference.write_pages(folder / "book" / "api", re.findall(r"file: book/api/(\S+)", listed))
    toc = yaml.safe_load(listed)
    if picks:
        for part in toc["parts"]:
            part["chapters"] = [
                chapter
                for chapter in part["chapters"]
                if not chapter["file"].startswith(NOTEBOOKS.name)
                or (folder / f"{chapter['file']}.ipynb").exists()
            ]
        toc["parts"] = [part for part in toc["parts"] if part["chapters"]]
    (folder / "_toc.yml").write_text(yaml.safe_dump(toc, sort_keys=False), encoding="utf-8")
    vendor = fetch()
    if vendor is not None:
        shutil.copytree(vendor, folder / "_extra" / "vendor")


def fingerprint(folder: Path) -> str:
    """Hash of everything the site is made of."""
    made_of = [p for p in folder.rglob("*") if p.is_file()]
    made_of += [*TOOLS.iterdir(), ROOT / "_config.yml", ROOT / "constraints.txt"]
    digest = hashlib.sha256(repr((home.address(), home.version())).encode())
    for path in sorted(p for p in made_of if p.is_file()):
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def build(folder: Path, out: Path, strict: bool, builder: str = "html") -> tuple[bool, list[str]]:
    """Run Jupyter Book with a builder of Sphinx; whether it succeeded, and its warnings."""
    shutil.rmtree(out, ignore_errors=True)
    command = [
        str(Path(sys.executable).parent / "jupyter-book"),
        "build",
        "--config",
        str(ROOT / "_config.yml"),
        "--toc",
        str(folder / "_toc.yml"),
        "--path-output",
        str(out),
        "-n",
        "--keep-going",
        *(["--builder", "custom", "--custom-builder", builder] if builder != "html" else []),
        *(["-W"] if strict else []),
        str(folder),
    ]
    result = subprocess.run(
        command,
        cwd=ROOT,
        env=environment(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    text = ANSI.sub("", result.stdout)
    out.mkdir(parents=True, exist_ok=True)
    (out / "build.log").write_text(text, encoding="utf-8")
    warnings = [line for line in text.splitlines() if re.search(r"\b(WARNING|ERROR)\b", line)]
    if result.returncode and not warnings:
        warnings = text.splitlines()[-15:]
    return result.returncode == 0, warnings


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--site", type=Path, default=BUILD / "preview")
    parser.add_argument("--notebooks", type=Path, help="executed copies; else the stored")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="a look at these")
    parser.add_argument("--links", action="store_true", help="follow the links that lead out")
    args = parser.parse_args()
    site = args.site if args.site.is_absolute() else ROOT / args.site
    began = time.monotonic()

    place = home.address()
    print(
        f"render: buttons lead to {place}"
        if place
        else "render: no home address, so no repository and Colab buttons: `make home` sets it"
    )
    folder, out = BUILD / "stage" / site.name, BUILD / "render" / site.name
    executed = args.notebooks and ROOT / args.notebooks
    if executed and not all((executed / f"{p.stem}.json").exists() for p in sources(*args.only)):
        raise SystemExit(
            f"render: {args.notebooks} lacks NAME.json of some chapter, which `make book` writes: "
            "without --notebooks the stored outputs are shown"
        )
    stage(folder, executed, args.only)
    if args.links:
        build(folder, out, strict=False, builder="linkcheck")
        report = (out / "_build" / "linkcheck" / "output.txt").read_text(encoding="utf-8")
        broken = [line for line in report.splitlines() if "[broken]" in line]
        print("\n".join([*broken, f"render: {len(broken)} links are broken"]))
        return 1 if broken else 0
    mark, made_of = site / ".made-of", fingerprint(folder)
    index = site / "index.html"
    if mark.exists() and mark.read_text() == made_of:
        print(f"render: nothing changed\n\nThe book: {index}")
        return 0
    succeeded, warnings = build(folder, out, strict=not args.only)
    for line in warnings:
        print(f"  {line.replace(str(folder) + '/', '')}")
    if not succeeded:
        print(f"render: FAILED with {len(warnings)} warnings; the whole log: {out / 'build.log'}")
        return 1
    shutil.rmtree(site, ignore_errors=True)
    shutil.move(out / "_build" / "html", site)
    shutil.copytree(folder / home.PLAIN, site / home.PLAIN)
    mark.write_text(made_of)
    pages = len([*site.glob("book/**/*.html"), *site.glob("notebooks/*.html")])
    print(f"render: {pages} pages ({time.monotonic() - began:.0f} s)\n\nThe book: {index}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
