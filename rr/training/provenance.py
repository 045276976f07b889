"""What produced a run's numbers: versions, device, git state."""

import contextlib
import json
import platform
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from ..config import Run
from .device import device_name


def curve_bytes(history: Sequence[dict]) -> bytes:
    """The lines of a metrics.jsonl."""
    return "".join(json.dumps(line) + "\n" for line in history).encode()


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

    path: how its steps are computed, as `rr.training.step` names it.
    """
    from .. import __version__

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
