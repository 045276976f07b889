"""How options of a run are written and declared, and those of the machine.

An option is declared once, as a field of `Recipe` or `Request`: the command line, the axes of a
sweep, the parameters of a notebook and printed commands are all made from the declaration.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from .errors import RRError


def parse_spec(spec: str) -> tuple[str, dict[str, str]]:
    """`"review:rank=64,inputs=state"` -> `("review", {"rank": "64", "inputs": "state"})`.

    A reader's own class, `"my_rule.py:Name"` or `"my_rule.py:Name:option=1"`, keeps its path as
    part of the name.
    """
    if not isinstance(spec, str):
        raise RRError(f"a rung or a rule must be text, as in 'review:rank=64', got {spec!r}")
    head, _, rest = spec.partition(":")
    if head.endswith(".py"):
        name, _, rest = rest.partition(":")
        head = f"{head}:{name}"
    options = {}
    for item in filter(None, rest.split(",")):
        key, equals, value = item.partition("=")
        if not equals or not key or not value:
            raise RRError(f"cannot read {item!r} in {spec!r}: expected name:key=value,key=value")
        if key in options:
            raise RRError(f"option {key!r} is given twice in {spec!r}: give it once")
        options[key] = value
    return head, options


# Value rules whose older name is that of a residual rule, too: the name that is written -> the one
# that ids, records and tables have, which is accepted, too.
RECORDED_VALUES = {"constant-resformer": "constant"}
WRITTEN_VALUES = {old: new for new, old in RECORDED_VALUES.items()}


def recorded(spec: str, kind: str = "values") -> str:
    """A rule, with its options, under the name that ids and records have for it.

    >>> recorded("constant-resformer:lam=1"), recorded("constant:c=1", "residual")
    ('constant:lam=1', 'constant:c=1')
    """
    return _renamed(spec, RECORDED_VALUES) if kind == "values" else spec


def written(spec: str, kind: str = "values") -> str:
    """The same under the name that a reader writes and is shown.

    >>> written("constant:lam=1"), written("constant:c=1", "residual")
    ('constant-resformer:lam=1', 'constant:c=1')
    """
    return _renamed(spec, WRITTEN_VALUES) if kind == "values" else spec


def _renamed(spec: str, names: dict[str, str]) -> str:
    name, colon, rest = str(spec).partition(":")
    return f"{names.get(name, name)}{colon}{rest}"


@dataclass(frozen=True)
class RunOption:
    """What a caller may choose of a run or of the machine: an argument of the command line.

    Of a run it is also an axis of a sweep, a parameter of a notebook and a word of printed
    commands, all made from this declaration.

    help: one line. read: makes a value of a word; `bool`: a switch. default: None where the rung or
    the protocol decides.
    """

    help: str
    read: Callable[[str], Any] = str
    default: Any = None
    metavar: str | None = None


def option(help: str, read: Callable[[str], Any] = str, metavar: str | None = None, **more) -> Any:
    """A dataclass field that is an option of a run; `more` as for `dataclasses.field`."""
    return field(metadata={"option": RunOption(help, read, None, metavar)}, **more)


def options_of(declared: type) -> dict[str, RunOption]:
    """Name -> option, of the fields of a dataclass that were declared by `option`."""
    return {f.name: f.metadata["option"] for f in fields(declared) if "option" in f.metadata}


def budgets_of(words: str) -> list[int]:
    """`2000,4000` as numbers."""
    try:
        return [int(word) for word in words.split(",")]
    except ValueError:
        raise RRError(f"budgets must be integers, as in 2000,4000, got {words!r}") from None


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
        default=None,
    )
    keep_checkpoints: bool = option(
        "keep the last two checkpoints of a run that has ended, not its weights alone",
        bool,
        default=False,
    )
