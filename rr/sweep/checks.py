"""What a sweep refuses before it starts anything."""

from collections.abc import Mapping
from typing import Any

from ..config import RRError, nearest, positive
from ..training.backend import parse_backend
from ..training.device import check_device, check_threads, pick_device
from ..training.distributed import check_strategy
from ..training.loggers import check_loggers, named
from ..training.save_interval import check_interval

ENGINES = ("local", "ray")


def check(machine: Mapping[str, Any], engine: str, ray: Mapping[str, object], here: bool) -> None:
    """Raise RRError for options that the engine does not take, or that every cell would refuse.

    machine: threads, device, path, micro_batch, save_every, parallel and log, as far as given, as
    `sweep()` takes them. engine: "local" or "ray". ray: address, gpu_fraction and cpus_per_cell,
    which only the engine ray takes; None: not given. here: the cells run on this machine, whose
    device and loggers have to exist.
    """
    if engine not in ENGINES:
        raise RRError(f"unknown engine {engine!r}: {nearest(engine, ENGINES)}")
    for name, value in ray.items():
        if engine == "local" and value is not None:
            option = name.replace("_", "-")
            raise RRError(f"--{option} {value} needs --engine ray, got --engine local")
    check_interval(machine.get("save_every"))
    device = machine.get("device")
    if device is not None:
        check_device(device)
    if here:
        pick_device(device)
    if "micro_batch" in machine:
        positive("micro-batch", machine["micro_batch"])
    check_strategy(machine.get("parallel", "ddp"))
    if "path" in machine:
        parse_backend(machine["path"])
    check_loggers(named(machine.get("log", "")), here)
    if "threads" in machine:
        check_threads(machine["threads"])
