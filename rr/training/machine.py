"""What a run may be told of its machine: device, threads, processes. Checked without torch."""

from ..config import RRError, nearest

DEVICES = ("auto", "cpu", "cuda", "mps")
STRATEGIES = ("ddp", "fsdp")


def check_device(name: str) -> None:
    """Raise RRError unless a device of this name exists somewhere."""
    if name not in DEVICES:
        raise RRError(f"unknown device {name!r}: {nearest(name, DEVICES)}")


def check_strategy(name: str) -> None:
    """Raise RRError unless it is a way to train in several processes."""
    if name not in STRATEGIES:
        raise RRError(f"unknown parallel strategy {name!r}: {nearest(name, STRATEGIES)}")


def check_threads(n: int) -> None:
    """Raise RRError unless torch can start as many threads."""
    # OpenMP aborts the process where it cannot start as many
    if type(n) is not int or not 1 <= n <= 1024:
        raise RRError(f"threads must be an integer from 1 to 1024, got {n!r}")
