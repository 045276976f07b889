# For:     training on Colab so that a lost machine costs minutes: paste the whole file into a cell.
#          Runs lie on the machine's own disk and are copied to Drive every few minutes; started
#          again, on another day or machine, the cell fetches them and goes on.
# Change:  command, and where on Drive; `rr` is there once a chapter's first cell has been run.
# Checked: run with stand-ins for Drive and for Colab's module on a real tiny run, twice
#          (tests/unit/test_ready_files.py). Not on Colab.
import shutil
import subprocess
import sys
import threading
from pathlib import Path

from google.colab import drive

MINUTES = 2.0  # between two copies to Drive
KEPT = Path("/content/drive/MyDrive/rr-runs")
RUNS = Path("/content/runs")
COMMAND = ["train", "--rung", "60M", "--rule", "review", "--corpus", "tinystories", "--seed", "0"]


def mirror(source: Path, target: Path) -> None:
    """Make `target` what `source` is; state.pt before meta.json, so that no half is believed."""
    paths = [p for p in source.rglob("*") if p.is_file() and ".aside" not in str(p)]
    for path in sorted(paths, key=lambda p: (p.name in ("meta.json", "result.json"), p)):
        copy = target / path.relative_to(source)
        try:
            new = path.stat()
            if not copy.exists() or (copy.stat().st_size, copy.stat().st_mtime) != (
                    new.st_size, new.st_mtime):  # fmt: skip
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, copy)
        except FileNotFoundError:
            continue  # an old checkpoint, dropped by the run meanwhile
    for old in [p for p in target.rglob("checkpoint/*") if p.is_dir()]:
        if not (source / old.relative_to(target)).exists():
            shutil.rmtree(old)


drive.mount("/content/drive")
KEPT.mkdir(parents=True, exist_ok=True)
mirror(KEPT, RUNS)
run = subprocess.Popen([sys.executable, "-m", "rr.cli", *COMMAND, "--out", str(RUNS)])
ended = threading.Event()


def keep() -> None:
    while not ended.wait(60 * MINUTES):
        mirror(RUNS, KEPT)


copying = threading.Thread(target=keep, daemon=True)
copying.start()
try:
    code = run.wait()
except KeyboardInterrupt:  # the cell's stop button: the run saves, then the copy is made
    run.terminate()
    code = run.wait()
ended.set()
copying.join()
mirror(RUNS, KEPT)
print(f"rr ended with code {code}; its runs are in {KEPT}")
