"""Data-parallel training of one run in several processes (DDP or FSDP2).

Started by `torchrun … -m rr.cli train …`; in a single process everything here is a no-op. Every
rank draws the same batch and takes its slice of it, so the batches are the same at any world size.
Only rank 0 writes; checkpoints hold whole tensors in one layout, so they load at any world size and
under either strategy:

    ddp    every rank holds the whole model; gradients are summed after the backward pass
    fsdp   every rank holds a shard of each block (FSDP2), gathered while the block runs
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch import distributed as dist

from ..errors import RRError, nearest, number_of

STRATEGIES = ("ddp", "fsdp")
TORCHRUN = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")  # set beside WORLD_SIZE
PATIENCE = 10.0  # seconds after which a process says for whom it waits
CPU = torch.device("cpu")
T = TypeVar("T")
Rows = TypeVar("Rows", Tensor, np.ndarray)  # a batch


def check_strategy(name: str) -> None:
    """Raise RRError unless it is a way to train in several processes."""
    if name not in STRATEGIES:
        raise RRError(f"unknown parallel strategy {name!r}: {nearest(name, STRATEGIES)}")


class World:
    """The processes of one run, from the point of view of one of them."""

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        strategy: str | None = None,
        device: torch.device = CPU,
    ) -> None:
        self.rank, self.size, self.strategy, self.device = rank, size, strategy, device

    @classmethod
    def from_environment(cls, strategy: str | None = None, device: torch.device = CPU) -> "World":
        """The processes that torchrun started, or this one alone; the default strategy is ddp.

        device: the kind of device; `World.device` is this process's own. RRError where the
        variables of torchrun are set in part.
        """
        strategy = strategy or "ddp"
        check_strategy(strategy)
        size = int(number_of("WORLD_SIZE", 1))
        if size == 1:
            return cls(device=device)
        missing = [name for name in TORCHRUN if name not in os.environ]
        if missing:
            raise RRError(
                f"WORLD_SIZE is {size}, but {', '.join(missing)} is not set: start several "
                "processes with torchrun, or unset WORLD_SIZE"
            )
        if device.type == "cuda":
            device = torch.device("cuda", int(number_of("LOCAL_RANK")))
        return cls(int(number_of("RANK")), size, strategy, device)

    @contextlib.contextmanager
    def joined(self, log: Callable[[str], None] = print) -> Iterator["World"]:
        """The context in which the process group exists, where there are several processes.

        The device is set first, because NCCL talks through the current one. Where the others are
        not there after `PATIENCE` seconds, one line says for whom this process waits.
        """
        if self.device.type == "cuda" and self.strategy is not None:
            torch.cuda.set_device(self.device)
        if self.strategy is None or dist.is_initialized():
            yield self
            return
        waiting = threading.Timer(PATIENCE, log, [
            f"waiting for {self.size} processes (WORLD_SIZE={self.size}, RANK={self.rank}): start "
            "all of them with torchrun, or unset WORLD_SIZE and RANK to train in one"
        ])  # fmt: skip
        waiting.daemon = True
        waiting.start()
        try:
            if self.device.type == "cuda":
                # flags of the host go through gloo, so that no step waits for the GPU
                dist.init_process_group("cpu:gloo,cuda:nccl", device_id=self.device)
            else:
                dist.init_process_group("gloo")
        finally:
            waiting.cancel()
        try:
            yield self
            dist.barrier()  # not after an error: the others may be waiting in a sum
        finally:
            dist.destroy_process_group()

    @property
    def leads(self) -> bool:
        """Whether this process writes."""
        return self.rank == 0

    def agree(self, make: Callable[[], T]) -> T:
        """The value that rank 0 makes, broadcast to every process."""
        values: list[Any] = [make() if self.leads else None]
        if self.strategy is not None:
            dist.broadcast_object_list(values)
        return values[0]

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """For each flag, whether it is set in any process, so that all processes decide alike."""
        if self.strategy is None:
            return flags
        values = torch.tensor(flags, dtype=torch.int32)
        dist.all_reduce(values, dist.ReduceOp.MAX)
        return tuple(bool(flag) for flag in values.tolist())

    def sum(self, value: Tensor) -> Tensor:
        """The sum over processes, in place."""
        if self.strategy is not None:
            dist.all_reduce(value)
        return value

    def gathered(self, value: T) -> list[T]:
        """The value of each process, by rank."""
        values = [value] * self.size
        if self.strategy is not None:
            dist.all_gather_object(values, value)
        return values

    # -- batches --------------------------------------------------------------------------------

    def check_batch(self, batch: int) -> None:
        """Raise RRError unless the batch divides among the processes."""
        if batch % self.size:
            raise RRError(
                f"a batch of {batch} windows does not divide among {self.size} processes: use a "
                "number of processes that divides the batch"
            )

    def slice(self, rows: Rows) -> Rows:
        """This process's part of a batch: rows of equal number, in the order of ranks."""
        size = len(rows) // self.size
        return rows[self.rank * size : (self.rank + 1) * size]

    def distribute(self, items: Iterable[T]) -> Iterable[tuple[T, bool]]:
        """Items in turn to each process: (item, whether it counts here).

        Every process gets equally many, because a sharded model runs in all of them or in none;
        who has run out repeats an item that does not count.
        """
        items = list(items)
        for start in range(0, len(items), self.size):
            mine = start + self.rank
            yield items[min(mine, len(items) - 1)], mine < len(items)

    # -- the model ------------------------------------------------------------------------------

    def wrap(self, model: nn.Module) -> nn.Module:
        """The module to train: the model, its DDP wrapper, or the model sharded in place."""
        if self.strategy == "fsdp":
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

            if model.per_pass:  # later passes use sublayers without calling their block
                raise RRError("per_pass=1 cannot be sharded: use --parallel ddp")
            if any(p.ndim == 0 for p in model.parameters()):
                raise RRError("a rule with single numbers cannot be sharded: use --parallel ddp")
            # torch's own choice is the machine's GPU, whatever device these processes train on
            mesh = init_device_mesh(self.device.type, (self.size,))
            for layer in model.get_submodule("layers").children():
                fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
            register_fsdp_forward_method(model, "hidden")  # evaluation enters there
        if self.strategy == "ddp":
            return nn.parallel.DistributedDataParallel(model)
        return model

    @contextlib.contextmanager
    def accumulating(self, wrapped: Any, last: bool) -> Iterator[None]:
        """The context of a micro-batch's backward pass; only the last one reduces the gradients.

        wrapped: the module that `wrap` made.
        """
        if self.strategy == "fsdp":
            wrapped.set_requires_gradient_sync(last)
        postponed = self.strategy == "ddp" and not last
        with wrapped.no_sync() if postponed else contextlib.nullcontext():
            yield

    def whole(self, value: Tensor) -> Tensor:
        """A tensor that may be sharded, whole in every process, on its device."""
        gather = getattr(value, "full_tensor", None)
        return gather() if gather else value

    def unsharded(self, value: Any) -> Any:
        """The same nested dicts and lists, every sharded tensor whole on the CPU of rank 0 alone.

        Tensors are gathered one by one, in all processes; the others keep None. Eight processes of
        one machine that all kept a model of a billion parameters and its moments would need 96 GB.
        """
        if isinstance(value, dict):
            return {key: self.unsharded(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self.unsharded(item) for item in value)
        if isinstance(value, Tensor) and hasattr(value, "full_tensor"):
            gathered = self.whole(value)
            return gathered.cpu() if self.leads else None
        return value

    def load_model(self, model: nn.Module, state: dict[str, Tensor]) -> None:
        """`load_state_dict` of whole tensors into a model that may be sharded."""
        if self.strategy != "fsdp":
            model.load_state_dict(state)
            return
        sharded = model.state_dict()
        model.load_state_dict({name: like(sharded[name], value) for name, value in state.items()})

    def load_optimizer(self, optimizer: torch.optim.Optimizer, state: dict) -> None:
        """`load_state_dict` of whole tensors into an optimiser whose parameters may be sharded."""
        if self.strategy == "fsdp":
            params = [p for group in optimizer.param_groups for p in group["params"]]
            moments = {}
            for index, values in state["state"].items():
                param = params[index]  # its moments have its shape; the count of steps has none
                moments[index] = {
                    name: like(param, value) if value.shape == param.shape else value
                    for name, value in values.items()
                }
            state = {**state, "state": moments}
        optimizer.load_state_dict(state)


def like(sharded: Tensor, value: Tensor) -> Tensor:
    """`value`, sharded as `sharded` is."""
    if not hasattr(sharded, "device_mesh"):
        return value
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(sharded, DTensor)
    return distribute_tensor(value.to(sharded.device), sharded.device_mesh, sharded.placements)


ALONE = World()
