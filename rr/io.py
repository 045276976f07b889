"""Files that are whole or absent: atomic writes, seals, locks."""

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from .config import RRError, RunFailed, canonical_json, file_bytes


def sync(path: Path) -> None:
    """Make a file's bytes, or the renames inside a folder, durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sealed(record: dict) -> dict:
    """The record and, last, a "seal", SHA-256 of its canonical JSON: a flipped digit shows."""
    return {**record, "seal": _seal(record)}


def _seal(record: dict) -> str:
    return hashlib.sha256(canonical_json(record).encode()).hexdigest()


def unsealed(record: dict) -> dict:
    """The record without its seal. ValueError where the seal is not its own.

    The first records have none, and are taken as they are. A seal whose name was damaged does not
    make a record one of these.
    """
    if not record:
        return record
    *rest, (name, last) = record.items()
    mine = _seal(dict(rest))
    if (name, last) == ("seal", mine):
        return dict(rest)
    if "seal" in record or last == mine:
        raise ValueError("its seal does not match what it says")
    return record


def write_atomic(path: Path, data: bytes) -> None:
    """Write aside, sync, rename: readers see the old file or the new one, never a part.

    One writer at a time: what a killed one left aside, the next one overwrites.
    """
    aside = path.with_name(f".{path.name}.aside")
    try:
        with open(aside, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    sync(path.parent)


def write_json(path: Path, value: object) -> None:
    """`write_atomic` of indented JSON; floats keep all their digits."""
    write_atomic(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def write_record(path: Path, value: dict) -> None:
    """`write_json` of what a run says of itself, sealed; `read_json` checks the seal."""
    write_json(path, sealed(value))


def read_json(path: Path) -> dict:
    """The object in a JSON file of ours, its seal off. RunFailed names a file that is damaged."""
    try:
        value = json.loads(file_bytes(path))
        if not isinstance(value, dict):
            raise ValueError("not a JSON object")
        return unsealed(value)
    except (ValueError, RecursionError) as error:
        raise RunFailed(f"{path} is corrupt ({error})") from None
    except OSError as error:
        raise RunFailed(f"{path} is corrupt ({error.strerror})") from None


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the writer's lock on a run's folder; RunFailed when another process holds it.

    Folders made here, in which nothing but the lock was made since, are removed again.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / "lock", "a")
    except OSError as error:
        why = error.strerror
        raise RRError(f"cannot write to {folder}: {why}: a writable --out is needed") from None
    busy = RunFailed(f"{folder} is being written by another process: wait for it")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise busy from None
        except OSError as error:
            raise RRError(f"cannot lock {folder}: {error.strerror}: choose a local --out") from None
        if not os.fstat(file.fileno()).st_nlink:  # removed by its holder while we asked
            raise busy
        try:
            yield
        finally:
            if made and [path.name for path in folder.iterdir()] == ["lock"]:
                (folder / "lock").unlink()
                with contextlib.suppress(OSError):  # another run has come into it
                    for path in made:
                        path.rmdir()
