"""How a run is computed: the options of the machine, which are no part of a run's id."""

from dataclasses import dataclass

from ..config import RRError, option


def seconds_of(word: str) -> float | None:
    """A number of seconds; None for "auto"."""
    try:
        return None if word == "auto" else float(word)
    except ValueError:
        raise RRError(f"save-every must be a number of seconds or auto, got {word!r}") from None


@dataclass(frozen=True)
class Request:
    """How the caller wants a run computed; none of it is part of the run's id.

    Its fields are the options of `rr train --help` under "the machine". Without `micro_batch` and
    `backend` the whole batch is computed at once with the device's default backend where that fits
    the memory; otherwise settings that fit are selected automatically and logged.

    Example:
        >>> import rr
        >>> rr.Request(device="cpu", threads=1).backend is None
        True
    """

    threads: int | None = option("CPU threads (default: OMP_NUM_THREADS or all)", int, default=None)
    device: str | None = option(
        "auto (cuda, else cpu), cpu, cuda or mps (default: auto)", default=None
    )
    backend: str | None = option(
        "how a step is computed: reference, eager or compiled, with options: "
        "eager:recompute=layer (default: compiled on a GPU, and on a CPU where the run is long "
        "enough to win the compilation back; else eager)",
        former="path",
        default=None,
    )
    micro_batch: int | None = option(
        "windows that a process takes at once; gradients are accumulated over the batch "
        "(default: the whole batch, halved until it fits the memory)",
        int,
        default=None,
    )
    save_every: float | None = option(
        "seconds between checkpoints (default: auto, from how long a save takes)",
        seconds_of,
        "SECONDS",
        0.0,
        default=None,
    )
    parallel: str | None = option(
        "under torchrun: ddp, every process holds the model, or fsdp, each holds a shard "
        "(default: ddp)",
        default=None,
    )
    charts: str | None = option(
        "also draw the curves in tensorboard, wandb (default: metrics.jsonl alone)",
        metavar="NAME,…",
        former="log",
        default=None,
    )
    keep_checkpoints: bool = option(
        "keep the last two checkpoints of a run that has ended, not its weights alone",
        bool,
        default=False,
    )
