"""Checkpoints that are whole or absent, and the digest of a model's weights."""

import hashlib
import os
import pickle
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch.utils._pytree import tree_leaves

from ..config import RRError, RunFailed, checked_file
from ..io import read_json, sync, write_json


def weights_sha256(model: torch.nn.Module | dict[str, torch.Tensor]) -> str:
    """SHA-256 over names, dtypes and bytes of all weights, in the order of their names."""
    state = model if isinstance(model, dict) else model.state_dict()
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
        flat = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
        digest.update(memoryview(flat.numpy()))
    return digest.hexdigest()


class Checkpoints:
    """The checkpoints of one run: `checkpoint/<step>/` with state.pt and meta.json.

    A checkpoint is written aside, synced and renamed into place. meta.json holds the run's id, the
    step, and a SHA-256 over both and state.pt, so that a damaged one is told from a foreign one and
    neither is believed. The last two stay, and the one at `leaves` for as long as one of them lies
    on the branch from there to `end`: branches holds these pairs.
    """

    def __init__(self, folder: Path, run_id: str, branches: Sequence[tuple[int, int]] = ()) -> None:
        self.folder, self.run_id, self.branches = folder / "checkpoint", run_id, branches

    def steps(self) -> list[int]:
        """Steps that have a checkpoint, oldest first."""
        if not self.folder.is_dir():
            return []
        return sorted(int(p.name) for p in self.folder.iterdir() if p.name.isdecimal())

    def path(self, step: int) -> Path:
        """Where the checkpoint of a step lives."""
        return self.folder / f"{step:08d}"

    def save(self, step: int, state: dict) -> None:
        """Write the checkpoint of `step`, then drop all but the last two."""
        self.folder.mkdir(exist_ok=True)
        aside = self.folder / f".aside-{step:08d}"
        try:
            aside.mkdir()
            with open(aside / "state.pt", "wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
            meta = {"run": self.run_id, "step": step}
            meta["sha256"] = self._digest(meta, aside)
            write_json(aside / "meta.json", meta)
            os.replace(aside, self.path(step))
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        sync(self.folder)
        self._keep(self.steps()[-2:])

    def _keep(self, steps: list[int]) -> None:
        left = {
            leaves for leaves, end in self.branches if any(leaves < step <= end for step in steps)
        }
        for step in set(self.steps()) - set(steps) - left:
            shutil.rmtree(self.path(step))

    @staticmethod
    def _digest(meta: dict, where: Path) -> str:
        digest = hashlib.sha256(f"{meta.get('run')} {meta.get('step')} ".encode())
        with open(checked_file(where / "state.pt", sys.maxsize), "rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
        return digest.hexdigest()

    def read(self, step: int) -> dict:
        """The state at `step`. RunFailed if it is damaged, RRError if it is another run's."""
        where = self.path(step)
        meta = read_json(where / "meta.json")
        try:
            digest = self._digest(meta, where)
        except OSError as error:
            raise RunFailed(f"{where} is damaged and is not believed: {error}") from None
        if digest != meta.get("sha256"):
            raise RunFailed(f"{where} is damaged and is not believed: its checksum does not match")
        if meta.get("run") != self.run_id:
            raise RRError(
                f"{where} belongs to run {meta.get('run')}, not to {self.run_id}: "
                "a checkpoint of the same specification is accepted"
            )
        if meta.get("step") != step:
            of = meta.get("step")
            raise RunFailed(f"{where} is not believed: it is the checkpoint of step {of}")
        try:
            state = torch.load(where / "state.pt", map_location="cpu", mmap=True, weights_only=True)
            held = [value for value in tree_leaves(state) if isinstance(value, torch.Tensor)]
            size = (where / "state.pt").stat().st_size
            if not isinstance(state, dict) or sum(tensor.nbytes for tensor in held) > size:
                raise ValueError  # one number shown as many (stride 0) would be copied as many
            return state
        except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError, LookupError, TypeError,
                AttributeError):  # fmt: skip
            # Whoever makes a file can make its checksum: one that would run code is never loaded.
            raise RunFailed(f"{where} is not believed: state.pt is no file of tensors") from None

    def tidy(self, step: int | None) -> None:
        """Remove what a killed writer left, and later checkpoints than `step`: damaged ones.

        step: of the checkpoint that `newest` found; None where it found none.
        """
        for left in self.folder.glob(".aside-*"):
            shutil.rmtree(left)
        if step is not None:
            self._keep([s for s in self.steps() if s <= step][-2:])

    def newest(self, log: Callable[[str], None]) -> dict | None:
        """The newest whole checkpoint; damaged ones are named and passed over.

        None where there is none yet. RunFailed where there are some and all are damaged.
        """
        steps = self.steps()
        for step in reversed(steps):
            try:
                return self.read(step)
            except RunFailed as error:
                log(f"{error}; trying the one before")
        if steps:
            raise RunFailed(
                f"no checkpoint in {self.folder} is whole: remove the run's folder to start again"
            )
        return None
