# For:     training on Colab so that a lost machine costs minutes: paste the whole file into a cell.
#          Runs lie on the machine's own disk; curves and the newest checkpoint are copied to Drive
#          every 12 minutes. Started again, on another day or machine, the cell fetches them and
#          goes on.
# Change:  command, and where on Drive; `rr` is there once a chapter's first cell has been run. What
#          this machine can do is said by `!rr doctor`, which a sweep on a GPU begins with.
# Checked: run with stand-ins for Drive and for Colab's module on a real tiny run, twice; what is
#          deleted was emptied before (tests/unit/test_ready_files.py). Not on Colab.
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

from google.colab import drive

MINUTES = 12.0  # between two copies to Drive
KEPT = Path("/content/drive/MyDrive/rr-runs")
RUNS = Path("/content/runs")
COMMAND = ["train", "--rung", "60M", "--rule", "review", "--corpus", "tinystories", "--seed", "0"]
# A decay branch goes back to an older checkpoint.
NEWEST = not any(word.startswith("--budgets") for word in COMMAND)


def whole(runs: Path, newest: bool) -> set[Path]:
    """The whole checkpoints below `runs`, or each run's newest; paths relative to `runs`.

    Of a run that has ended its weights alone are left, which are the newest.
    """
    checkpoints: set[Path] = set()
    for home in runs.glob("*/checkpoint"):
        steps = sorted(
            path.parent.relative_to(runs)
            for path in home.glob("*/meta.json")
            if not path.parent.name.startswith(".")
        )
        checkpoints.update(steps[-1:] if newest else steps)
    return checkpoints


def mirror(source: Path, target: Path, newest: bool) -> None:
    """Copy what is new; of a checkpoint state.pt before meta.json, so that no half is believed."""
    chosen = whole(source, newest)
    paths = [
        p
        for p in source.rglob("*")
        if p.is_file()
        and ".aside" not in str(p)
        and (p.parts[-3] != "checkpoint" or p.parent.relative_to(source) in chosen)
    ]
    for path in sorted(paths, key=lambda p: (p.name in ("meta.json", "result.json"), p)):
        copy = target / path.relative_to(source)
        try:
            new = path.stat()
            if copy.exists() and copy.stat().st_mtime >= new.st_mtime:
                continue  # what is here may be newer than the copy that came back
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, aside := copy.with_name(copy.name + ".aside"))
            os.utime(aside, ns=(new.st_atime_ns, new.st_mtime_ns))  # as it was before the copy
            os.replace(aside, copy)  # a copy that was cut off never looks new
        except FileNotFoundError:
            continue  # an old checkpoint, dropped by the run meanwhile


def tidy() -> None:
    """Drop the checkpoints on Drive that a newer one replaces.

    Each file is emptied first: what is deleted goes to Drive's trash, which counts as used.
    """
    needed = whole(KEPT, newest=True) | (set() if NEWEST else whole(RUNS, newest=False))
    for folder in [p for p in KEPT.glob("*/checkpoint/*") if p.relative_to(KEPT) not in needed]:
        for path in sorted(folder.iterdir()):  # meta.json first: a half is not believed
            path.write_bytes(b"")
            path.unlink()
        folder.rmdir()


def attempt(work, *args) -> bool:
    """Do it, say how full the Drive is, and say what went wrong: the next turn tries again."""
    done = False
    try:
        work(*args)
        done = True
    except OSError as error:
        again = "" if ended.is_set() else f"; the next try is in {MINUTES:g} minutes"
        print(f"Drive: {error}{again}", flush=True)
    try:
        total, taken, _ = shutil.disk_usage(KEPT)
        ours = sum(path.stat().st_size for path in KEPT.rglob("*") if path.is_file())
    except OSError:  # it is gone for now, or changed meanwhile
        return done
    print(
        f"Drive: {taken / 1e9:.1f} of {total / 1e9:.1f} GB used, {ours / 1e9:.1f} GB by these runs",
        flush=True,
    )
    return done


drive.mount("/content/drive")
KEPT.mkdir(parents=True, exist_ok=True)
mirror(KEPT, RUNS, newest=False)
run = subprocess.Popen([sys.executable, "-m", "rrstudy.cli", *COMMAND, "--out", str(RUNS)])
ended = threading.Event()


def keep() -> None:
    """Copy, and drop what was replaced half a turn later: Drive uploads behind our back."""
    while not ended.wait(30 * MINUTES):
        attempt(mirror, RUNS, KEPT, NEWEST)
        if not ended.wait(30 * MINUTES):
            attempt(tidy)


copying = threading.Thread(target=keep, daemon=True)
copying.start()
try:
    code = run.wait()
except KeyboardInterrupt:  # the cell's stop button: the run saves, then the copy is made
    run.terminate()
    code = run.wait()
ended.set()
copying.join()
if attempt(mirror, RUNS, KEPT, NEWEST):
    attempt(tidy)
    print(f"rr ended with code {code}; its runs are in {KEPT}")
else:
    print(
        f"rr ended with code {code}; not all of its runs are on Drive: copy {RUNS} before the "
        "machine goes"
    )
