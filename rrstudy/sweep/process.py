"""A cell's own process: it does not outlive the sweep, and is asked to stop so that it can save.

On Linux the kernel sends it SIGTERM when the sweep dies, even by SIGKILL: a run saves its
checkpoint and ends; a notebook's kernel ends with its papermill. Elsewhere it continues alone. In
both cases the lock on the run's folder keeps a successor waiting until it has ended.

It imports the same `rr` as the sweep, and nothing from the working folder (PYTHONSAFEPATH): a
file there that happens to be named like a module is not run. (In a notebook's kernel IPython itself
adds the working folder to the path, behind the standard library.)
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

GRACE = 600.0  # seconds between asking a process to save and ending it; 12 GB on a slow disk
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1


class Process:
    """`python argv…` in a session of its own, its output appended to `log`."""

    def __init__(self, argv: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        parent = os.getpid()

        def end_with_parent() -> None:
            assert _LIBC is not None
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:  # it died before we asked
                os.kill(os.getpid(), signal.SIGTERM)

        with open(log, "ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, *argv],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=variables(env),
                start_new_session=True,
                preexec_fn=end_with_parent if _LIBC else None,  # Windows knows neither
            )
        self.asked: float | None = None  # when it was asked to stop

    def poll(self) -> int | None:
        """The exit code, −signal if killed; None while it runs. Ends it when its grace is over."""
        if self.asked is not None and time.monotonic() - self.asked > GRACE:
            self.kill()
        return self.process.poll()

    def stop(self) -> None:
        """Ask it to save and end. A notebook's kernel is asked itself: papermill would kill it."""
        if self.asked is None and self.process.poll() is None:
            self.asked = time.monotonic()
            for pid in _kernels(self.process.pid) or [self.process.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)

    def kill(self) -> None:
        """End it now; the checkpoint that stands is the last one saved."""
        if sys.platform == "win32":
            self.process.kill()
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


def variables(env: Mapping[str, str]) -> dict[str, str]:
    """A process's environment: ours, `env`, and where Python imports from."""
    variables = {**os.environ, **env, "PYTHONSAFEPATH": "1"}
    # torchrun, asked to stop, would leave its processes 30 seconds
    variables["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = f"{GRACE - 5:.0f}"
    # a notebook's kernel is this interpreter, whatever `python3` is in the user's folder
    kernels = [os.path.join(sys.prefix, "share", "jupyter"), variables.get("JUPYTER_PATH", "")]
    variables["JUPYTER_PATH"] = os.pathsep.join(filter(None, kernels))
    checkout = Path(__file__).resolve().parents[2]
    if (checkout / "pyproject.toml").exists():  # it need not be installed
        paths = [str(checkout), variables.get("PYTHONPATH", "")]
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return variables


def _kernels(pid: int) -> list[int]:
    """Process ids of the Jupyter kernels below a process. psutil comes with every kernel."""
    try:
        import psutil
    except ModuleNotFoundError:
        return []
    found = []
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):  # it has ended since; the others have not
                if "ipykernel" in " ".join(child.cmdline()):
                    found.append(child.pid)
    return found
