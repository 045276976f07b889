"""Provenance of a run's numbers: versions, device, settings, git state."""

import contextlib
import datetime
import json
import platform
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from .device import device_name


def curve_bytes(history: Sequence[dict]) -> bytes:
    """The lines of a metrics.jsonl."""
    return "".join(json.dumps(line) + "\n" for line in history).encode()


def git_state() -> str | None:
    """Commit of the checkout that `rr` runs from, with "+" when it has changes; None outside."""
    folder = Path(__file__).parents[1]  # the whole package
    try:
        status = ["git", "-C", str(folder), "status", "--porcelain", "--", "."]
        changed = subprocess.run(status, capture_output=True, text=True, check=True).stdout
        revision = ["git", "-C", str(folder), "rev-parse", "HEAD"]
        head = subprocess.run(revision, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{head}+" if changed else head


def processor() -> str:
    """The processor's model as the system names it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def cpu() -> dict[str, str]:
    """What decides the last bits of sums on a CPU: its model, and which kernels torch takes."""
    kernels = torch.backends.cpu.get_cpu_capability()
    return {"processor": processor(), "cpu_kernels": kernels}


def versions() -> dict:
    """The versions of rr, and of the packages that compute with it."""
    from .. import __version__

    packages = {}
    for name in ("torch", "numpy", "tokenizers"):
        with contextlib.suppress(PackageNotFoundError):
            packages[name] = version(name)
    return {"rr": __version__, "packages": packages}


def provenance(device: torch.device) -> dict:
    """Versions and machine, for run.json; not part of the run's id, and without a path."""
    return {
        **versions(),
        "git": git_state(),
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": f"{sys.platform} {platform.machine()}",
        "device": device_name(device),
        **cpu(),
    }
