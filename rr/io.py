"""Files on disk: atomic writes, checksummed JSON records, locks."""

import contextlib
import errno
import hashlib
import json
import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, SoftFileLock, Timeout

from .errors import RRError, RunFailed

MIB = 1 << 20
LARGEST_JSON = 4 * MIB  # bytes read of a JSON file at most; those that rr writes are a few KiB


def checked_file(path: Path, limit: int) -> Path:
    """The path of an untrusted file, if it is a regular file of at most `limit` bytes.

    Raises OSError where it is no regular file (a pipe would never end), ValueError where larger.
    """
    status = path.stat()
    # opening a folder raises an OSError that says so
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    if status.st_size > limit:
        raise ValueError(f"{path.name} is larger than {limit // MIB} MiB")
    return path


def file_bytes(path: Path, limit: int = LARGEST_JSON) -> bytes:
    """The content of an untrusted file; raises as `checked_file` does."""
    return checked_file(path, limit).read_bytes()


def tell(text: str, end: str = "\n") -> None:
    """Print on stderr at once. A terminal or a pipe that has gone ends nothing."""
    with contextlib.suppress(OSError):
        print(text, end=end, file=sys.stderr, flush=True)


def canonical_json(value: Any) -> str:
    """Canonical JSON: equal values give equal text (sorted keys, no spaces, no NaN)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def sync(path: Path) -> None:
    """fsync a file's bytes, or the renames inside a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sealed(record: dict) -> dict:
    """The record and, last, a "seal": the SHA-256 of its canonical JSON.

    >>> unsealed(sealed({"loss": 1.5}))
    {'loss': 1.5}
    """
    return {**record, "seal": _seal(record)}


def _seal(record: dict) -> str:
    return hashlib.sha256(canonical_json(record).encode()).hexdigest()


def unsealed(record: dict) -> dict:
    """The record without its seal, its last entry. ValueError where the seal does not match."""
    content = {name: value for name, value in record.items() if name != "seal"}
    if record.get("seal") != _seal(content):
        raise ValueError("checksum mismatch" if "seal" in record else "it has no seal")
    return content


def write_atomic(path: Path, data: bytes) -> None:
    """Write a temporary file, sync, rename: readers see the old file or the new one, never a part.

    One writer at a time: the temporary file of a killed writer is overwritten by the next.
    """
    temporary = path.with_name(f".{path.name}.aside")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)


def write_json(path: Path, value: object) -> None:
    """`write_atomic` of indented JSON; floats keep all their digits."""
    write_atomic(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def write_record(path: Path, value: dict) -> None:
    """`write_json` with a seal, which `read_sealed` checks."""
    write_json(path, sealed(value))


def read_json(path: Path) -> dict:
    """The object in a JSON file that rr wrote. RunFailed if it is corrupt."""
    return _read(path, dict)


def read_sealed(path: Path) -> dict:
    """The object in a file of `write_record`, without its seal. RunFailed if it is corrupt."""
    return _read(path, unsealed)


def _read(path: Path, content: Callable[[dict], dict]) -> dict:
    try:
        value = json.loads(file_bytes(path))
        if not isinstance(value, dict):
            raise ValueError("not a JSON object")
        return content(value)
    except (ValueError, RecursionError) as error:
        raise RunFailed(f"{path} is corrupt ({error})") from None
    except OSError as error:
        raise RunFailed(f"{path} is corrupt ({error.strerror})") from None


def try_lock(path: Path) -> FileLock | None:
    """Hold the exclusive lock on the file `path`; None while another process holds it.

    The system frees it when its holder dies, however it dies. Raises RRError where the file cannot
    be written, and where locks do not lock, as on some network file systems: locked a second time
    it would have to refuse.
    """
    lock, second = (FileLock(path, thread_local=False) for _ in range(2))
    refused = f"cannot lock {path.parent} ({{}}): choose a local folder"
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    except OSError as error:
        raise RRError(refused.format(error.strerror)) from None
    works = False
    with contextlib.suppress(OSError):
        try:
            second.acquire(timeout=0)
            second.release()
        except Timeout:
            works = not isinstance(lock, SoftFileLock)  # a file that outlives a killed holder
    if not works:
        lock.release()
        raise RRError(refused.format("locks do not work there"))
    return lock


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the writer's lock on a run's folder; RunFailed when another process holds it.

    Folders created here that still contain nothing but the lock are removed at the end.
    """
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        open(folder / "lock", "a").close()
    except OSError as error:
        why = error.strerror
        raise RRError(f"cannot write to {folder} ({why}): choose a writable folder") from None
    lock = try_lock(folder / "lock")
    if lock is None:
        raise RunFailed(f"{folder} is being written by another process: wait until it ends")
    try:
        yield
    finally:
        if created and [path.name for path in folder.iterdir()] == ["lock"]:
            with contextlib.suppress(OSError):  # another run is in it by now
                (folder / "lock").unlink()
                for path in created:
                    path.rmdir()
        lock.release()
