"""Leases: which of several sweeps on one folder works on which cell.

A lease is a file, `OUT/.claims/<id>`, that its owner created and in which it keeps counting up.
(The folder keeps the name that the first sweeps gave it.) Another sweep that meets a lease watches
the count: after LOOKS looks without a change, BEAT seconds of the watcher's own monotonic clock
apart, the lease has expired and is taken over. No clocks of two machines are compared, nothing is
locked, and no content is trusted: a corrupt lease, in which nobody counts, expires like any other.

A lease only saves work from being done twice. What protects a run is the lock on its folder: an
owner that was taken for dead and comes back finds its lease gone, and does no harm.
"""

import contextlib
import os
import secrets
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..config import RRError

BEAT = 3.0  # seconds between two renewals, and between two looks at another's count
LOOKS = 10  # looks without a change after which a lease has expired


@dataclass
class _Watched:
    """Another sweep's lease as last seen; looks without a change, and when the last was."""

    content: bytes
    looks: int
    last: float


class Leases:
    """The leases of one sweep. who: the owner, for people; clock: in seconds."""

    def __init__(
        self,
        out: Path,
        who: str,
        say: Callable[[str], None],
        *,
        beat: float = BEAT,
        looks: int = LOOKS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder, self.who, self.say = out / ".claims", who, say
        self.beat, self.looks, self.clock = beat, looks, clock
        self.token = secrets.token_hex(8)
        self._watched: dict[str, _Watched] = {}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            probe = self.folder / f".{self.token}"
            probe.touch(exist_ok=False)
            probe.unlink()
        except OSError as error:
            why = error.strerror
            raise RRError(f"cannot write to {out} ({why}): choose a writable --out") from None

    def acquire(self, cell: str) -> "Lease | None":
        """The lease of a cell, or None while another sweep holds it."""
        path = self.folder / cell
        lease = self._create(path)
        if lease is None:
            content = _read(path)
            if (
                content is not None
                and self._expired(cell, content)
                and self.remove_expired(path, content)
            ):
                seconds = self.looks * self.beat
                self.say(f"{cell}: its lease was not renewed for {seconds:.0f} s; taken over")
                lease = self._create(path)
        if lease is not None:
            self._watched.pop(cell, None)
        return lease

    def _create(self, path: Path) -> "Lease | None":
        try:
            file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
        except FileExistsError:
            return None
        lease = Lease(path, file, self.token, self.who)
        if not lease.renew():
            path.unlink(missing_ok=True)
            os.close(file)
            raise RRError(f"cannot write {path}: choose an --out with space left")
        return lease

    def _expired(self, cell: str, content: bytes) -> bool:
        """Whether this look makes enough looks without a change.

        Looks are counted, not seconds: a watcher that was itself stopped has not looked.
        """
        now = self.clock()
        watched = self._watched.get(cell)
        if watched is None or watched.content != content:
            self._watched[cell] = watched = _Watched(content, 0, now)
        elif now - watched.last >= self.beat:
            watched.looks, watched.last = watched.looks + 1, now
        return watched.looks >= self.looks

    def remove_expired(self, path: Path, content: bytes) -> bool:
        """Move an expired lease out of the way; False where another sweep was faster.

        Of two sweeps that judged the same lease, one moves it. The other could only move the lease
        that the first has put in its place since: it sees that this is another, and puts it back.
        """
        removed = path.with_name(f".{path.name}.{self.token}")
        try:
            os.rename(path, removed)
        except OSError:
            return False
        if _read(removed) != content:
            with contextlib.suppress(OSError):
                os.rename(removed, path)
            return False
        if removed.is_dir():
            shutil.rmtree(removed, ignore_errors=True)
        else:
            removed.unlink(missing_ok=True)
        return True


class Lease:
    """A cell that is ours, for as long as `renew` says so."""

    def __init__(self, path: Path, file: int, token: str, who: str) -> None:
        self.path, self.file, self.token, self.who = path, file, token.encode(), who
        self.count = 0

    def renew(self) -> bool:
        """Show that the owner lives; False where the lease is not ours any more.

        The count goes into the file that was created, whatever is at its path by now: a lease that
        was taken over is never overwritten.
        """
        self.count += 1
        try:
            os.pwrite(self.file, b"%s %012d %s\n" % (self.token, self.count, self.who.encode()), 0)
            os.fsync(self.file)
        except OSError:
            return False
        return self._ours()

    def release(self) -> None:
        """Give the cell up: removes the file if it is still ours."""
        if self._ours():
            with contextlib.suppress(OSError):
                self.path.unlink()
        with contextlib.suppress(OSError):
            os.close(self.file)

    def _ours(self) -> bool:
        return (_read(self.path) or b"").startswith(self.token)


def _read(path: Path) -> bytes | None:
    """The content at a lease's path, of whatever kind; None where nothing is."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:  # a directory in its place, or a disk that cannot read it
        return f"unreadable: {error.errno}".encode()
