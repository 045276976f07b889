"""Who works on which cell, when several sweeps share a folder.

A claim is a file, `OUT/.claims/<id>`, that its owner made and in which it counts on. Whoever meets
a claim watches the count: one that stands still for LOOKS looks, BEAT seconds of the watcher's own
monotonic clock apart, is a dead owner's and is taken over. No clocks are compared, nothing is
locked, and no file is believed: a damaged one, which nobody counts on in, is taken over alike.

A claim only saves work from being done twice. What protects a run is the lock on its folder: an
owner that was taken for dead and comes back finds its claim gone, and harms nothing.
"""

import contextlib
import os
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from ..config import RRError

BEAT = 3.0  # seconds between two counts, and between two looks at another's count
LOOKS = 10  # looks without a change after which an owner is dead


class Claims:
    """The claims of one sweep. who: the owner, in words for people; clock: in seconds."""

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
        self._watched: dict[str, tuple[bytes, int, float]] = {}  # content, looks, last look
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            probe = self.folder / f".{self.token}"
            probe.touch(exist_ok=False)
            probe.unlink()
        except OSError as error:
            why = error.strerror
            raise RRError(f"cannot write to {out}: {why}: a writable --out is needed") from None

    def take(self, cell: str) -> "Claim | None":
        """The claim to a cell, or None while another sweep counts on in its own."""
        path = self.folder / cell
        claim = self._create(path)
        if claim is None and (seen := _read(path)) is not None and self._dead(cell, seen):
            if self._bury(path, seen):
                self.say(f"{cell}: its owner has not counted on for {self.looks * self.beat:.0f} s;"
                         " taken over")  # fmt: skip
                claim = self._create(path)
        if claim is not None:
            self._watched.pop(cell, None)
        return claim

    def _create(self, path: Path) -> "Claim | None":
        try:
            file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
        except FileExistsError:
            return None
        claim = Claim(path, file, self.token, self.who)
        if not claim.count_on():
            path.unlink(missing_ok=True)
            os.close(file)
            raise RRError(f"cannot write {path}: a folder with room is needed")
        return claim

    def _dead(self, cell: str, seen: bytes) -> bool:
        """Whether this look makes enough looks without a change.

        Looks are counted, not seconds: a watcher that was itself stopped has not looked.
        """
        now = self.clock()
        before, looks, last = self._watched.get(cell, (b"", 0, now))
        if seen != before:
            looks, last = 0, now
        elif now - last >= self.beat:
            looks, last = looks + 1, now
        self._watched[cell] = seen, looks, last
        return looks >= self.looks

    def _bury(self, path: Path, seen: bytes) -> bool:
        """Move a dead claim out of the way; False where another sweep was faster.

        Of two sweeps that judged the same claim, one moves it. The other could only move what the
        first has put in its place since: it sees that this is alive, and puts it back.
        """
        grave = path.with_name(f".{path.name}.{self.token}")
        try:
            os.rename(path, grave)
        except OSError:
            return False
        if _read(grave) != seen:
            with contextlib.suppress(OSError):
                os.rename(grave, path)
            return False
        if grave.is_dir():
            shutil.rmtree(grave, ignore_errors=True)
        else:
            grave.unlink(missing_ok=True)
        return True


class Claim:
    """One cell that is ours, for as long as `count_on` says so."""

    def __init__(self, path: Path, file: int, token: str, who: str) -> None:
        self.path, self.file, self.token, self.who = path, file, token.encode(), who
        self.count = 0

    def count_on(self) -> bool:
        """Show that the owner lives; False where the claim is not ours any more.

        The count goes into the file that was created, whatever stands at its path by now: a claim
        that was taken over is never overwritten.
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
    """What stands at a claim's path, whatever it is; None where nothing does."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:  # a directory in its place, or a disk that cannot read it
        return f"unreadable: {error.errno}".encode()
