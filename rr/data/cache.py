"""Content-addressed cache on disk; entries are published atomically.

An entry (tokens, a tokenizer) is a folder named by the hash of what it is made from. It is written
under a temporary name, synced and renamed, so that no process sees a partial one; a lock makes sure
that it is made once; it records the size and SHA-256 of its files, so that a corrupt entry is
detected and made again. Deleting the cache costs time and nothing else.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout

from ..errors import RRError
from ..io import sync

CARD = "card.json"  # an entry's metadata; written last


def root(cache: str | Path | None = None) -> Path:
    """The cache's folder: `cache`, else `$RR_CACHE`, else ~/.cache/review-residuals."""
    chosen = cache or os.environ.get("RR_CACHE") or "~/.cache/review-residuals"
    try:
        return Path(chosen).expanduser()
    except RuntimeError:  # a container's user without an entry in passwd, and without HOME
        raise RRError(
            "this user has no home folder for the cache: set RR_CACHE to a writable folder"
        ) from None


def digest(path: str | Path) -> str:
    """SHA-256 of a file's bytes, as 64 hex digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def entry_path(kind: str, key: dict, cache: str | Path | None = None) -> Path:
    """Where the entry of `kind` for `key` is, or will be."""
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:24]
    return root(cache) / kind / name


def get_or_create(
    kind: str,
    key: dict,
    create: Callable[[Path], dict],
    cache: str | Path | None = None,
    log: Callable[[str], None] = print,
) -> tuple[Path, dict]:
    """The folder and metadata of the entry of `kind` for `key`, made if it is missing or corrupt.

    key: plain values that determine the content. create: writes its files into the empty folder
    that it is given, and returns further metadata. Raises RRError where the cache cannot be written
    (an OSError of `create` counts as this); whatever else it raises passes through.
    """
    folder = entry_path(kind, key, cache)
    card, _ = check_entry(folder)
    if card is not None:
        return folder, card
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder.with_name(f"{folder.name}.lock"))  # freed when its holder dies
        try:
            held = lock.acquire(timeout=1)
        except Timeout:
            log(f"cache: another process makes {folder}: waiting for it")
            held = lock.acquire()
        with held:
            card, problem = check_entry(folder)  # another process may have made it while we waited
            if card is not None:
                return folder, card
            if problem:
                log(f"cache: {folder} is corrupt ({problem}); making it again")
            # What a killed process left.
            for left in [folder, *folder.parent.glob(f"{folder.name}.aside-*")]:
                shutil.rmtree(left, ignore_errors=True)
            return folder, _create(folder, key, create)
    except OSError as error:
        raise RRError(
            f"cannot write the cache {root(cache)} ({error.strerror or error}): "
            "set RR_CACHE to a writable folder with enough space"
        ) from error


def _create(folder: Path, key: dict, create: Callable[[Path], dict]) -> dict:
    temporary = folder.with_name(f"{folder.name}.aside-{os.getpid()}")
    temporary.mkdir()
    try:
        card = create(temporary)
        files = sorted(temporary.iterdir())
        card["key"] = key
        card["files"] = {f.name: {"bytes": f.stat().st_size, "sha256": digest(f)} for f in files}
        (temporary / CARD).write_text(json.dumps(card, indent=1, sort_keys=True))
        for path in [*files, temporary / CARD, temporary]:
            sync(path)
        temporary.rename(folder)
        sync(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return card


def check_entry(folder: Path) -> tuple[dict | None, str]:
    """The metadata of a complete entry, or None and the problem ("" where there is no entry)."""
    try:
        card = json.loads((folder / CARD).read_text())
        for name, expected in card["files"].items():
            if (folder / name).stat().st_size != expected["bytes"]:
                return None, f"size mismatch of {name}"
            if digest(folder / name) != expected["sha256"]:
                return None, f"checksum mismatch of {name}"
        return card, ""
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return (
            None,
            f"{CARD} or a file unreadable: {type(error).__name__}" if folder.exists() else "",
        )
