"""Device, precision, threads and memory settings of a process."""

import contextlib
import ctypes
import functools
import gc
import os
import platform
from collections.abc import Iterator
from pathlib import Path

import torch

from ..errors import RRError, nearest, number_of

DEVICES = ("auto", "cpu", "cuda", "mps")
GPU_SHARE = "RR_GPU_SHARE"  # environment variable: share of a GPU's memory that a run may take
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def check_device(name: str) -> None:
    """Raise RRError unless a device of this name exists somewhere."""
    if name not in DEVICES:
        raise RRError(f"unknown device {name!r}: {nearest(name, DEVICES)}")


def check_threads(n: int) -> None:
    """Raise RRError unless torch can start as many threads."""
    # OpenMP aborts the process where it cannot start as many
    if type(n) is not int or not 1 <= n <= 1024:
        raise RRError(f"threads must be an integer from 1 to 1024, got {n!r}")


def pick_device(name: str | None = None) -> torch.device:
    """The device a run uses: "auto" takes cuda, else cpu. RRError if it is not available.

    mps, a Mac's GPU, is used only when named: no run on it has been measured or tested yet.
    """
    name = name or "auto"
    check_device(name)
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        name = "cuda" if available["cuda"] else "cpu"
    elif not available.get(name, True):
        usable = " or ".join(["cpu", *filter(available.get, available)])
        raise RRError(f"device {name!r} is not available here: use {usable}")
    return torch.device(name)


def device_name(device: torch.device) -> str:
    """The name that runs record: a GPU's model, else the kind of device. Results depend on it."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def cores(groups: Path = Path("/sys/fs/cgroup")) -> int:
    """The cores that this process may use: its affinity, and its container's quota of CPU time."""
    if hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
    else:
        allowed = os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        quota, period = _cpu_quota(groups)
        if quota > 0:  # version 1 says -1 where there is no limit
            return max(1, min(allowed, quota // period))
    return allowed


def _cpu_quota(groups: Path) -> tuple[int, int]:
    """Microseconds of CPU time per period of so many, of control groups of version 2 or 1.

    Raises ValueError where version 2 has no limit ("max"), OSError where neither is there.
    """
    if (groups / "cpu.max").exists():
        quota, period = (groups / "cpu.max").read_text().split()
    else:
        quota, period = [
            (groups / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period")
        ]
    return int(quota), int(period)


def set_threads(n: int | None) -> int:
    """Set the threads of torch's CPU kernels. Sums depend on it, so a resumed run keeps its number.

    n: None: OMP_NUM_THREADS where that is set, else all cores of this process. Returns the number.
    """
    # the variable may have an entry per level of nesting
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if n is None and first.isdecimal() and int(first):
        n = int(first)
    elif n is None:
        n = cores()
    check_threads(n)
    torch.set_num_threads(n)
    return n


def keep_freed() -> None:
    """Keep the memory that this process frees, for its next step to use; glibc only.

    glibc returns large blocks to the kernel at once, which hands them out again page by page, each
    of them cleared. That costs a step on a CPU more time than some of its products. The setting
    holds for the rest of the process; without glibc nothing changes.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(-4, 0)  # M_MMAP_MAX: no block is a mapping of its own
        libc.mallopt(-1, -1)  # M_TRIM_THRESHOLD: the heap never shrinks


@contextlib.contextmanager
def float32_products(precision: str) -> Iterator[None]:
    """The context in which float32 matrix products are TF32 (precision "tf32"), or float32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextlib.contextmanager
def autocast(device: torch.device, precision: str) -> Iterator[None]:
    """The context of a forward pass in a precision.

    bf16, fp16: matrix products in 16 bits; master weights, stream, softmax and loss in float32.
    tf32: float32 with TF32 matrix products where the device has them. fp32: float32 throughout.
    """
    with float32_products(precision):
        if precision in HALF:
            with torch.autocast(device.type, HALF[precision]):
                yield
        else:
            yield


def resolve_precision(device: torch.device, requested: str) -> str:
    """The precision to use on a device: the requested one, unless that is bf16 without hardware.

    Then fp16 on a GPU, and fp32 on a CPU, which would emulate products in bf16, up to forty times
    slower than in float32.
    """
    if requested == "bf16" and device.type == "cpu" and not _has_bf16():
        return "fp32"
    if requested == "bf16" and device.type == "cuda":
        if not torch.cuda.is_bf16_supported(including_emulation=False):
            return "fp16"
    if requested == "bf16" and device.type == "mps":
        if not torch.backends.mps.is_macos_or_newer(14, 0):
            return "fp16"
    return requested


@functools.cache
def _has_bf16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the CPU has instructions for bf16 that torch and oneDNN, its library, may use.

    Not known, and False, where it is not Linux. ONEDNN_MAX_CPU_ISA is oneDNN's own limit, and
    ATEN_CPU_CAPABILITY torch's: below AVX-512 its attention in bf16 fails on a CPU with AMX.
    """
    names = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
    limit = next(filter(None, map(os.environ.get, names)), "all").lower()
    if not any(word in limit for word in ("all", "bf16", "fp16", "amx", "avx10")):
        return False
    flags = set()
    with contextlib.suppress(OSError):
        flags |= set(cpuinfo.read_text().split())
    x86 = bool({"avx512_bf16", "amx_bf16"} & flags)
    arm = "bf16" in flags
    return arm or (x86 and torch.backends.cpu.get_cpu_capability().startswith("AVX512"))


def prepare_device(device: torch.device, threads: int | None) -> int:
    """Set threads, denormals to zero (10x slower CPU steps), and a GPU's workspace and share.

    Returns the number of threads. Kernels that add in no fixed order (the backward pass of
    attention on a GPU) are unaffected: only on a CPU are two runs the same bits.
    """
    torch.set_flush_denormal(True)
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # repeatable
        if GPU_SHARE in os.environ:  # other jobs of a sweep need the rest
            torch.cuda.set_per_process_memory_fraction(number_of(GPU_SHARE), device.index)
    return set_threads(threads)


def let_go(device: torch.device) -> None:
    """Free what nothing reaches: a trained model lies in cycles, and torch keeps a GPU's memory."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def out_of_memory(error: BaseException) -> bool:
    """Whether torch (which raises a plain RuntimeError on the CPU) or Python ran out of memory."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )
