"""Atomic checkpoints, when they are written, and the SHA-256 of a model's weights."""

import hashlib
import math
import os
import pickle
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ..errors import RRError, RunFailed
from ..io import checked_file, read_json, sync, write_json
from ..model.costs import count
from ..specs import Run

CHECKPOINT_BYTES = 12  # per parameter: weights and AdamW's two moments
WEIGHT_BYTES = 4  # per parameter: of the weights that stay when a run has ended
BETWEEN_FAILURES = 4 * 3600.0  # seconds, of a spot machine
LARGEST_SHARE = 0.05  # of a run's time that saving takes
FIRST_INTERVAL = 60.0  # seconds to the first save, which is timed; longer for large models
DISK_RATE = 200e6  # bytes per second that a disk is assumed to write until a save was timed
LOGGED_CHANGE = 1.25  # a change of the interval by this factor is logged


def weights_sha256(model: torch.nn.Module | dict[str, torch.Tensor]) -> str:
    """SHA-256 over names, dtypes and bytes of all weights, in the order of their names.

    Example:
        >>> import rr
        >>> from rr.training import weights_sha256
        >>> shape = rr.ModelConfig(64, n_layer=2, n_head=2, d_model=8, d_ff=16)
        >>> model = rr.Model(shape)
        >>> before = weights_sha256(model)
        >>> weights_sha256(rr.model.initialise(model, seed=0)) == before
        False
    """
    state = model if isinstance(model, dict) else model.state_dict()
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
        flat = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
        flat_bytes: Any = flat.numpy()  # numpy does not say that it has a buffer
        digest.update(memoryview(flat_bytes))
    return digest.hexdigest()


def disk_bytes(run: Run) -> int:
    """Bytes on disk that a run's checkpoints need at most while it trains.

    Two are kept while a third is written, and a run with several budgets keeps one more; each has
    the weights and AdamW's two moments in float32.
    """
    kept = 3 + bool(run.recipe.budgets)
    return kept * CHECKPOINT_BYTES * count(run.model)


class Checkpoints:
    """The checkpoints of one run: `checkpoint/<step>/` with state.pt and meta.json.

    A checkpoint is written to a temporary folder, synced and renamed into place. meta.json holds
    the run's id, the step, and a SHA-256 over both and state.pt, which tells a corrupt checkpoint
    from one of another run; neither is loaded. The last two are kept; when the run has ended, its
    last weights alone (`write_weights`).

    folder: the run's, where `checkpoint/` lies. run_id: the run's id. branches: pairs (leaves, end)
    of steps; the checkpoint at `leaves` is kept while one of the last two lies on the branch from
    there to `end`.

    Example:
        >>> import tempfile, torch
        >>> from pathlib import Path
        >>> from rr.training import Checkpoints
        >>> with tempfile.TemporaryDirectory() as out:
        ...     checkpoints = Checkpoints(Path(out), "a run")
        ...     for step in (10, 20, 30):
        ...         checkpoints.save(step, {"weight": torch.ones(2)})
        ...     print(checkpoints.steps())
        [20, 30]
    """

    def __init__(self, folder: Path, run_id: str, branches: Sequence[tuple[int, int]] = ()) -> None:
        self.folder, self.run_id, self.branches = folder / "checkpoint", run_id, branches

    def steps(self) -> list[int]:
        """Steps that have a checkpoint, oldest first."""
        if not self.folder.is_dir():
            return []
        return sorted(int(p.name) for p in self.folder.iterdir() if p.name.isdecimal())

    def path(self, step: int) -> Path:
        """The folder of a step's checkpoint."""
        return self.folder / f"{step:08d}"

    def save(self, step: int, state: dict) -> None:
        """Write the checkpoint of `step`, then drop all but the last two."""
        self._write(self.path(step), step, state)
        self._keep(self.steps()[-2:])

    def _write(self, home: Path, step: int, state: dict) -> None:
        """Write a checkpoint's folder beside its place, sync, rename."""
        self.folder.mkdir(exist_ok=True)
        aside = self.folder / f".aside-{step:08d}"
        try:
            aside.mkdir()
            with open(aside / "state.pt", "wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
            meta = {"run": self.run_id, "step": step}
            meta["sha256"] = self.digest_of(meta, aside)
            write_json(aside / "meta.json", meta)
            os.replace(aside, home)
        except (OSError, RuntimeError) as error:  # torch's writer raises RuntimeError
            cause: BaseException = error
            while cause.__context__ is not None:  # torch's message hides the system's
                cause = cause.__context__
            why = getattr(cause, "strerror", None) or cause
            raise RunFailed(
                f"cannot save in {self.folder}: {why}; the last checkpoint remains"
            ) from None
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        sync(self.folder)

    def _keep(self, steps: list[int]) -> None:
        needed = {
            leaves for leaves, end in self.branches if any(leaves < step <= end for step in steps)
        }
        for step in set(self.steps()) - set(steps) - needed:
            shutil.rmtree(self.path(step))

    def write_weights(self) -> None:
        """Write the last weights alone to `checkpoint/weights/`, before a run's result is written.

        A run that is killed before it has its result resumes from its checkpoints, which stand.
        """
        last = self.steps()[-1]
        self._write(self.folder / "weights", last, {"model": self.read(last)["model"]})

    def drop_steps(self) -> None:
        """Drop the checkpoints of a run that has its result and its `weights`."""
        for step in self.steps():
            shutil.rmtree(self.path(step))

    def weights(self, log: Callable[[str], None]) -> dict[str, torch.Tensor] | None:
        """The last weights of a run, ended or not; None where there is no checkpoint yet.

        Raises RunFailed where they are corrupt.
        """
        home = self.folder / "weights"
        state = self._read(home) if home.is_dir() else self.newest(log)
        return None if state is None else state.get("model")

    @staticmethod
    def digest_of(meta: dict, folder: Path) -> str:
        digest = hashlib.sha256(f"{meta.get('run')} {meta.get('step')} ".encode())
        with open(checked_file(folder / "state.pt", sys.maxsize), "rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
        return digest.hexdigest()

    def read(self, step: int) -> dict:
        """The state at `step`.

        Raises RunFailed if it is corrupt, RRError if it is another run's.
        """
        return self._read(self.path(step), step)

    def _read(self, folder: Path, step: int | None = None) -> dict:
        meta = read_json(folder / "meta.json")
        try:
            digest = self.digest_of(meta, folder)
        except OSError as error:
            raise RunFailed(f"checkpoint {folder} is corrupt ({error})") from None
        if digest != meta.get("sha256"):
            raise RunFailed(f"checkpoint {folder} is corrupt (checksum mismatch)")
        if meta.get("run") != self.run_id:
            raise RRError(
                f"{folder} belongs to run {meta.get('run')}, expected run {self.run_id}: "
                "remove it, or put the right checkpoint there"
            )
        if step is not None and meta.get("step") != step:
            raise RunFailed(
                f"checkpoint {folder} is corrupt (it is that of step {meta.get('step')})"
            )
        path = folder / "state.pt"
        # torch maps a file by its name in UTF-8, which under LC_ALL=C a folder's name may not be
        mapped = not any("\ud800" <= letter <= "\udfff" for letter in str(path))
        try:
            with open(path, "rb") as file:
                given = path if mapped else file
                state = torch.load(given, map_location="cpu", mmap=mapped, weights_only=True)
            tensors = [value for value in tree_leaves(state) if isinstance(value, torch.Tensor)]
            size = path.stat().st_size
            if not isinstance(state, dict) or sum(tensor.nbytes for tensor in tensors) > size:
                raise ValueError  # a tensor of stride 0 would claim more memory than the file has
            return state
        except (
            pickle.UnpicklingError,
            RuntimeError,
            ValueError,
            EOFError,
            LookupError,
            TypeError,
            AttributeError,
        ):
            # Whoever makes a file can make its checksum, so a file that runs code is never loaded.
            raise RunFailed(
                f"checkpoint {folder} is corrupt (state.pt is no file of tensors)"
            ) from None

    def tidy(self, step: int | None) -> None:
        """Remove what a killed writer or an earlier end left, and corrupt checkpoints after `step`.

        step: of the checkpoint that `newest()` returned; None where it returned none.
        """
        for unfinished in [*self.folder.glob(".aside-*"), *self.folder.glob("weights")]:
            shutil.rmtree(unfinished)
        if step is not None:
            self._keep([s for s in self.steps() if s <= step][-2:])

    def newest(self, log: Callable[[str], None]) -> dict | None:
        """The newest checkpoint that is not corrupt; corrupt ones are logged with `log`.

        Returns None where there is none yet. Raises RunFailed where all are corrupt.
        """
        steps = self.steps()
        for i, step in enumerate(reversed(steps), 1):
            try:
                return self.read(step)
            except RunFailed as error:
                older = steps[:-i]
                log(f"{error}; falling back to step {older[-1]}" if older else str(error))
        if steps:
            raise RunFailed(
                f"every checkpoint in {self.folder} is corrupt: remove the run's folder to start "
                "again"
            )
        return None


def young(cost: float, between: float = BETWEEN_FAILURES) -> float:
    """Seconds T between two saves: T = max(√(2·cost·between), cost/s − cost), with s = 0.05.

    The first term loses about the least time where failures come at random; the second keeps the
    share of the time that saving takes, cost/(T + cost), at 5 % or less. Chapter 17 uses it.

    cost: seconds of a save. between: mean seconds between failures; the default, 14,400 s (four
    hours), is assumed: a value wrong by a factor of 4 makes T wrong by a factor of 2. Source: Young
    1974.

    Example:
        >>> from rr.training import young
        >>> young(2, between=14400)  # √(2·2·14400)
        240.0
    """
    return max(math.sqrt(2 * cost * between), cost / LARGEST_SHARE - cost)


class Interval:
    """Seconds of training between two checkpoints, `seconds`.

    every: a fixed interval; None: `young` of the mean save, and until one was timed the longer of
    `FIRST_INTERVAL` and what `LARGEST_SHARE` allows with a disk of `DISK_RATE`. params: of the
    model. No result depends on it.
    """

    def __init__(self, every: float | None, params: int, say: Callable[[str], None]) -> None:
        expected = CHECKPOINT_BYTES * params / DISK_RATE
        self.seconds = (
            max(FIRST_INTERVAL, expected / LARGEST_SHARE - expected) if every is None else every
        )
        self.every, self.say = every, say
        self.saves, self.spent, self.logged = 0, 0.0, 0.0

    def saved(self, cost: float) -> None:
        """Record that a save took `cost` seconds."""
        if self.every is not None:
            return
        self.saves, self.spent = self.saves + 1, self.spent + cost
        mean = self.spent / self.saves
        self.seconds = young(mean)
        if not self.logged / LOGGED_CHANGE <= self.seconds <= self.logged * LOGGED_CHANGE:
            self.logged = self.seconds
            self.say(
                f"a save takes {mean:.2g} s: the next in {self.seconds:,.0f} s (selected for a "
                f"failure every {BETWEEN_FAILURES / 3600:g} h and at most {LARGEST_SHARE:.0%} of "
                "the time; --save-every SECONDS sets it)"
            )
