"""The machine under a run: device, precision, threads, files that survive a crash, provenance."""

import contextlib
import ctypes
import fcntl
import hashlib
import json
import os
import pickle
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from .cache import sync
from .config import RRError, Run, RunFailed, nearest, sealed, unsealed

DEVICES = ("auto", "cpu", "cuda", "mps")
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def pick_device(name: str | None = None) -> torch.device:
    """The device a run uses: "auto" takes cuda, else cpu. RRError if it is not there.

    mps, a Mac's GPU, is used where it is asked for by name: nobody has measured or tested a run on
    it yet.
    """
    name = name or "auto"
    if name not in DEVICES:
        raise RRError(f"unknown device {name!r}: {nearest(name, DEVICES)}")
    here = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        name = "cuda" if here["cuda"] else "cpu"
    elif not here.get(name, True):
        usable = " or ".join(["cpu", *(other for other, there in here.items() if there)])
        raise RRError(f"device {name!r} is not available here: {usable} can be used")
    return torch.device(name)


def device_name(device: torch.device) -> str:
    """What the bits of a run depend on: a GPU's model, else the kind of device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def set_threads(n: int | None) -> int:
    """Threads of torch's CPU kernels; sums depend on it, so a resumed run keeps its number."""
    if n is None:
        n = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if not 1 <= n <= 1024:  # OpenMP aborts the process where it cannot have as many as it is told
        raise RRError(f"threads is {n}: a whole number from 1 to 1024 is accepted")
    torch.set_num_threads(n)
    return n


def keep_freed() -> None:
    """From here on this process keeps the memory that it frees, for its next step to use.

    glibc gives large blocks back to the kernel at once, which hands them out again page by page,
    each of them cleared. That costs a CPU's step more than some of its products; what it saves is
    memory. For the rest of the process, and on glibc alone: elsewhere nothing changes.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(-4, 0)  # M_MMAP_MAX: no block is a mapping of its own
        libc.mallopt(-1, -1)  # M_TRIM_THRESHOLD: the heap never shrinks


def autocast(device: torch.device, precision: str) -> contextlib.AbstractContextManager:
    """The context in which the model runs.

    bf16, fp16: matrix products in 16 bits; master weights, stream, softmax and loss in float32.
    tf32: float32 with TF32 matrix products where the device has them. fp32: float32 throughout.
    """
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    if precision in HALF:
        return torch.autocast(device.type, HALF[precision])
    return contextlib.nullcontext()


def resolve_precision(device: torch.device, asked: str) -> str:
    """The precision a run has on a device: what was asked, or fp16 where a GPU lacks bf16."""
    if asked == "bf16" and device.type == "cuda":
        if not torch.cuda.is_bf16_supported(including_emulation=False):
            return "fp16"
    if asked == "bf16" and device.type == "mps" and not torch.backends.mps.is_macos_or_newer(14, 0):
        return "fp16"
    return asked


def prepare(device: torch.device, threads: int | None) -> int:
    """Set threads, cuBLAS's repeatable workspace, and denormals to zero (10x slower CPU steps).

    Returns the number of threads. Kernels that add in no fixed order (the backward of attention on
    a GPU) stay as they are: two runs are the same bits on a CPU alone.
    """
    torch.set_flush_denormal(True)
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return set_threads(threads)


def out_of_memory(error: BaseException) -> bool:
    """Whether torch (which raises a plain RuntimeError on the CPU) or Python ran out of memory."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


# -- files ------------------------------------------------------------------------------------


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
        value = json.loads(path.read_bytes())
        if not isinstance(value, dict):
            raise ValueError("not a JSON object")
        return unsealed(value)
    except (ValueError, RecursionError) as error:
        raise RunFailed(f"{path} is damaged and is not believed: {error}") from None
    except OSError as error:
        raise RunFailed(f"{path} is damaged and is not believed: {error.strerror}") from None


def curve_bytes(history: Sequence[dict]) -> bytes:
    """The lines of a metrics.jsonl."""
    return "".join(json.dumps(line) + "\n" for line in history).encode()


def weights_sha256(model: torch.nn.Module | dict[str, torch.Tensor]) -> str:
    """SHA-256 over names, dtypes and bytes of all weights, in the order of their names."""
    state = model if isinstance(model, dict) else model.state_dict()
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
        flat = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
        digest.update(memoryview(flat.numpy()))
    return digest.hexdigest()


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


# -- checkpoints ------------------------------------------------------------------------------


class Checkpoints:
    """The checkpoints of one run: `checkpoint/<step>/` with state.pt and meta.json.

    A checkpoint is written aside, synced and renamed into place. meta.json holds the run's id, the
    step, and a SHA-256 over both and state.pt, so that a damaged one is told from a foreign one and
    neither is believed. The last two stay, and the one at `leaves` for as long as one of them lies
    on the branch from there to `end`: branches holds these pairs.
    """

    def __init__(
        self, folder: Path, run_id: str, branches: Sequence[tuple[int, int]] = ()
    ) -> None:
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
        with open(where / "state.pt", "rb") as file:
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
        if meta["run"] != self.run_id:
            raise RRError(
                f"{where} belongs to run {meta['run']}, not to {self.run_id}: "
                "a checkpoint of the same specification is accepted"
            )
        if meta["step"] != step:
            raise RunFailed(f"{where} is not believed: it is the checkpoint of step {meta['step']}")
        try:
            return torch.load(where / "state.pt", map_location="cpu", mmap=True, weights_only=True)
        except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError):
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


# -- provenance -------------------------------------------------------------------------------


def git_state() -> str | None:
    """Commit of the checkout that `rr` runs from, with "+" when it has changes; None outside."""
    here = Path(__file__).parent
    try:
        ask = ["git", "-C", str(here), "status", "--porcelain", "--", "."]
        changed = subprocess.run(ask, capture_output=True, text=True, check=True).stdout
        ask = ["git", "-C", str(here), "rev-parse", "HEAD"]
        head = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("+" if changed else "")


def provenance(run: Run, device: torch.device, threads: int, path: str = "eager") -> dict:
    """What produced a run's numbers, for run.json: never hashed, never a user's folder.

    path: how its steps are computed, as `rr.paths` names it.
    """
    from . import __version__

    packages = {}
    for name in ("torch", "numpy", "tokenizers"):
        with contextlib.suppress(PackageNotFoundError):
            packages[name] = version(name)
    return {
        "rr": __version__,
        "git": git_state(),
        "python": platform.python_version(),
        "platform": f"{sys.platform} {platform.machine()}",
        "packages": packages,
        "device": device_name(device),
        "threads": threads,
        "precision": run.recipe.precision,
        "micro_batch": run.recipe.batch,
        "code_path": path,
    }
