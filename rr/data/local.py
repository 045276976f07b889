"""Corpora in files and folders: their documents, and an identity made of the files' bytes."""

import hashlib
import json
import stat
import time
from collections import Counter
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from ..errors import RRError
from .cache import digest
from .documents import Source
from .files import KINDS, PACKED, file_format, read_all

STEP = 2_000_000_000  # ns, of the times of change on FAT, the coarsest


def local_source(path: Path) -> Source:
    if path.is_dir():
        parts = {part: _files_of(path, part) for part in ("train", "valid")}
        _refuse_twins([file for part in parts.values() for file in part])
        files = {file: _fingerprint(file) for part in parts.values() for file in part}
        named = [[file.name, known.identity] for file, known in files.items()]
        sha = hashlib.sha256(json.dumps(named).encode()).hexdigest()
        changes: dict[str, Counter[str]] = {}
        train, valid = (partial(read_all, parts[part], changes) for part in ("train", "valid"))
        name, identity = path.resolve().name, f"folder {sha}"
        return Source(name, identity, train, valid, changes, partial(_check_unchanged, files))
    if not path.exists():
        raise RRError(f"no file or folder {path}: expected {KINDS}")
    known, changes = _fingerprint(path), {}
    return Source(
        path.name,
        f"file {known.identity}",
        partial(read_all, [path], changes),
        changes=changes,
        check=partial(_check_unchanged, {path: known}),
    )


def _files_of(folder: Path, part: str) -> list[Path]:
    """The files of a folder whose names begin with `part`, in the order of their names."""
    inside = sorted(folder.iterdir(), key=lambda path: path.name)
    # on every system alike, whether or not its file names have case
    paths = [path for path in inside if path.name.lower().startswith(part)]
    if not paths:
        names = [path.name for path in inside][:6]
        content = f"it has {', '.join(names)}" if names else "it is empty"
        raise RRError(
            f"the folder {folder} has no {part}* file ({content}): expected train* and "
            "valid* files, several of each are read in sorted order"
        )
    return paths


def _refuse_twins(paths: list[Path]) -> None:
    """Raise RRError for a file beside its own compressed form, and for two of the same bytes."""
    seen: dict[object, Path] = {}
    for path in paths:
        plain = path.with_suffix("") if path.suffix.lower() in PACKED else path
        for key in (plain, _digest(path, *_regular(path))):
            if (twin := seen.setdefault(key, path)) is not path:
                why = "are the same bytes" if key != plain else "are one text, compressed and not"
                raise RRError(f"{twin} and {path.name} {why}: it would be read twice; keep one")


@dataclass(frozen=True)
class _Fingerprint:
    """A file's format and the hash of its bytes, which together determine its documents."""

    identity: str
    sha256: str
    version: tuple[int, int]  # size in bytes, time of the last change in ns


def _fingerprint(path: Path) -> _Fingerprint:
    version = _regular(path)
    sha256 = _digest(path, *version)
    return _Fingerprint(f"{'.'.join(file_format(path))} {sha256}", sha256, version)


def _regular(path: Path) -> tuple[int, int]:
    """Size and time of the last change of a file; RRError where it is none."""
    status = path.stat()
    if stat.S_ISREG(status.st_mode):
        return status.st_size, status.st_mtime_ns
    if stat.S_ISDIR(status.st_mode):
        raise RRError(f"{path} is a folder: expected train* and valid* files beside each other")
    raise RRError(
        f"{path} is a pipe or a device, which can be read only once, and a corpus is read several "
        "times: write it to a file first"
    )


def _check_unchanged(files: dict[Path, _Fingerprint]) -> None:
    """Raise RRError unless the files have been what they were hashed as, all the time."""
    for path, known in files.items():
        try:
            same = _regular(path) == known.version and digest(path) == known.sha256
        except OSError:
            same = False
        if not same:
            raise RRError(
                f"{path} changed while it was read: start again when nothing writes to it"
            )


def _digest(path: Path, size: int, changed: int) -> str:
    """The hash of a file's bytes, computed once per process for each version of the file.

    Of a file that has just changed each time: it may change again before its time of change does,
    which advances in steps of up to two seconds.
    """
    just_now = abs(time.time_ns() - changed) < STEP
    return digest(path) if just_now else _remembered(path, size, changed)


@cache
def _remembered(path: Path, size: int, changed: int) -> str:
    return digest(path)
