"""A folder of made things that is either whole or absent, however many processes use it.

A made thing (tokens, a tokenizer) is a folder named by the hash of what it was made from. It is
written aside, synced and renamed, so that nobody sees half of one; whoever needs a missing one
takes its lock, so that it is made once; and it carries the size and SHA-256 of its files, so that
damage is found and the thing made again. Deleting the cache loses time and nothing else.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..config import RRError
from ..io import sync

CARD = "card.json"  # what a made folder says of itself; written last


def root(cache: str | Path | None = None) -> Path:
    """`cache`, else `$RR_CACHE`, else ~/.cache/review-residuals."""
    chosen = cache or os.environ.get("RR_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "review-residuals"


def digest(path: str | Path) -> str:
    """SHA-256 of a file's bytes, as 64 hex digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remembered_digest(path: Path, cache: str | Path | None = None) -> str:
    """`digest`, remembered by path, size and time of change, so that planning stays cheap."""
    path = path.resolve()
    stat = path.stat()
    seen = [str(path), stat.st_size, stat.st_mtime_ns, stat.st_ino]
    return remembered("digests", str(path), seen, lambda: digest(path), cache)


def remembered(
    kind: str, name: str, seen: object, make: Callable[[], Any], cache: str | Path | None = None
) -> Any:
    """`make()`, a plain value, from a note that was made of the same `seen`: plain values as well.

    There is one note for each kind and name; another `seen` replaces it.
    """
    file = hashlib.sha256(name.encode()).hexdigest()[:24]
    note = root(cache) / kind / f"{file}.json"
    try:
        known = json.loads(note.read_text())
        if known["seen"] == seen:
            return known["value"]
    except (OSError, ValueError, KeyError, TypeError):
        pass  # no note, or a damaged one: it is made again
    value = make()
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        aside = note.with_suffix(f".{os.getpid()}")
        aside.write_text(json.dumps({"seen": seen, "value": value}))
        aside.replace(note)
    except OSError:
        pass  # a cache that cannot be written costs planning time, not correctness
    return value


def place(kind: str, key: dict, cache: str | Path | None = None) -> Path:
    """Where the made thing of `kind` for `key` is, or will be."""
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:24]
    return root(cache) / kind / name


def made(
    kind: str,
    key: dict,
    make: Callable[[Path], dict],
    cache: str | Path | None = None,
    log: Callable[[str], None] = print,
) -> tuple[Path, dict]:
    """The cache's folder of `kind` for `key`, and its card: `make(folder)` fills a missing one.

    `key`: plain values that determine the content. `make` writes its files into the empty folder
    it is given and returns what the card shall say besides. Raises RRError where the cache cannot
    be written; whatever `make` raises passes through and leaves nothing behind.
    """
    home = place(kind, key, cache)
    card, _ = _check(home)
    if card is not None:
        return home, card
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        with _locked(home.with_name(f"{home.name}.lock"), log):
            card, damage = _check(home)  # another process may have made it while this one waited
            if card is not None:
                return home, card
            if damage:
                log(f"cache: {damage} in {home}; making it again")
            # What is left of a process that died.
            for left in [home, *home.parent.glob(f"{home.name}.aside-*")]:
                shutil.rmtree(left, ignore_errors=True)
            return home, _make(home, key, make)
    except OSError as error:
        raise RRError(
            f"cannot write the cache {root(cache)} ({error.strerror or error}): "
            "set RR_CACHE to a folder that can be written and has room"
        ) from error


def _make(home: Path, key: dict, make: Callable[[Path], dict]) -> dict:
    aside = home.with_name(f"{home.name}.aside-{os.getpid()}")
    aside.mkdir()
    try:
        card = make(aside)
        files = sorted(aside.iterdir())
        card["key"] = key
        card["files"] = {f.name: {"bytes": f.stat().st_size, "sha256": digest(f)} for f in files}
        (aside / CARD).write_text(json.dumps(card, indent=1, sort_keys=True))
        for path in [*files, aside / CARD, aside]:
            sync(path)
        aside.rename(home)
        sync(home.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return card


def _check(home: Path) -> tuple[dict | None, str]:
    """The card of a whole folder, or None and what is wrong ("" where there is none)."""
    try:
        card = json.loads((home / CARD).read_text())
        for name, told in card["files"].items():
            if (home / name).stat().st_size != told["bytes"]:
                return None, f"{name} has another size"
            if digest(home / name) != told["sha256"]:
                return None, f"{name} has other bytes"
        return card, ""
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return None, f"a damaged entry ({type(error).__name__})" if home.exists() else ""


@contextmanager
def _locked(path: Path, log: Callable[[str], None]) -> Iterator[None]:
    """Hold the one lock of this path; the system frees it when its holder dies."""
    with open(path, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log(f"cache: waiting for another process that makes {path.stem}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
