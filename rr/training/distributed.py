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
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch import distributed as dist

from ..config import RRError, nearest

STRATEGIES = ("ddp", "fsdp")
T = TypeVar("T")
Rows = TypeVar("Rows", Tensor, np.ndarray)  # a batch


def check_strategy(name: str) -> None:
    """Raise RRError unless it is a way to train in several processes."""
    if name not in STRATEGIES:
        raise RRError(f"unknown parallel strategy {name!r}: {nearest(name, STRATEGIES)}")


class World:
    """The processes of one run, from the point of view of one of them."""

    def __init__(self, rank: int = 0, size: int = 1, strategy: str | None = None) -> None:
        self.rank, self.size, self.strategy = rank, size, strategy

    @classmethod
    def here(cls, strategy: str | None = None) -> "World":
        """The processes that torchrun started, or this one alone; the default strategy is ddp."""
        strategy = strategy or "ddp"
        check_strategy(strategy)
        size = int(os.environ.get("WORLD_SIZE", 1))
        return cls(int(os.environ.get("RANK", 0)), size, strategy if size > 1 else None)

    def __enter__(self) -> "World":
        """Join the process group, where there are several processes."""
        self.joined = self.strategy is not None and not dist.is_initialized()
        if self.joined:
            dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
        return self

    def __exit__(self, *error: object) -> None:
        # After an error the others may be waiting in a sum: torchrun ends them.
        if self.joined and error[0] is None:
            dist.barrier()
        if self.joined:
            dist.destroy_process_group()

    @property
    def leads(self) -> bool:
        """Whether this process writes."""
        return self.rank == 0

    def device(self, device: torch.device) -> torch.device:
        """This process's own device of that kind."""
        if self.strategy is None or device.type != "cuda":
            return device
        own = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(own)
        return own

    def agree(self, make: Callable[[], T]) -> T:
        """The value that rank 0 makes, broadcast to every process."""
        made: list[Any] = [make() if self.leads else None]
        if self.strategy is not None:
            dist.broadcast_object_list(made)
        return made[0]

    def first(self, make: Callable[[], T]) -> T:
        """Call `make` in rank 0 first, then in the others, which find its files on disk."""
        if self.strategy is not None and not self.leads:
            dist.barrier()
        made = make()
        if self.strategy is not None and self.leads:
            dist.barrier()
        return made

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """For each flag, whether it is set in any process, so that all processes decide alike."""
        if self.strategy is None:
            return flags
        held = torch.tensor(flags, dtype=torch.int32, device=self._home)
        dist.all_reduce(held, dist.ReduceOp.MAX)
        return tuple(bool(flag) for flag in held.tolist())

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

    @property
    def _home(self) -> torch.device:
        return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")

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
        own = len(rows) // self.size
        return rows[self.rank * own : (self.rank + 1) * own]

    def deal(self, items: Iterable[T]) -> Iterable[tuple[T, bool]]:
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
            from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

            if model.per_pass:  # later passes use sublayers without calling their block
                raise RRError("per_pass=1 cannot be sharded: use --parallel ddp")
            for layer in model.get_submodule("layers").children():
                fully_shard(layer)
            fully_shard(model)
            register_fsdp_forward_method(model, "hidden")  # evaluation enters there
        if self.strategy == "ddp":
            return nn.parallel.DistributedDataParallel(model)
        return model

    @contextlib.contextmanager
    def adding(self, run: nn.Module, last: bool) -> Iterator[None]:
        """The context of a micro-batch's backward pass; only the last one reduces the gradients."""
        wrapped: Any = run  # what `wrap` made, which has a method more
        if self.strategy == "fsdp":
            wrapped.set_requires_gradient_sync(last)
        held_back = self.strategy == "ddp" and not last
        with wrapped.no_sync() if held_back else contextlib.nullcontext():
            yield

    def whole(self, value: Any) -> Any:
        """The same nested dicts and lists, with every sharded tensor gathered on the CPU."""
        if isinstance(value, dict):
            return {key: self.whole(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self.whole(item) for item in value)
        if isinstance(value, Tensor) and (gather := getattr(value, "full_tensor", None)):
            return gather().cpu()
        return value

    def load_model(self, model: nn.Module, state: dict[str, Tensor]) -> None:
        """`load_state_dict` of whole tensors into a model that may be sharded."""
        if self.strategy != "fsdp":
            model.load_state_dict(state)
            return
        held = model.state_dict()
        model.load_state_dict({name: like(held[name], value) for name, value in state.items()})

    def load_optimizer(self, optimizer: torch.optim.Optimizer, state: dict) -> None:
        """`load_state_dict` of whole tensors into an optimiser whose parameters may be sharded."""
        if self.strategy == "fsdp":
            params = [p for group in optimizer.param_groups for p in group["params"]]
            moments = {}
            for index, held in state["state"].items():
                own = params[index]  # its moments have its shape; the count of steps has none
                moments[index] = {
                    name: like(own, value) if value.shape == own.shape else value
                    for name, value in held.items()
                }
            state = {**state, "state": moments}
        optimizer.load_state_dict(state)


def like(held: Tensor, value: Tensor) -> Tensor:
    """`value`, sharded as `held` is."""
    if not hasattr(held, "device_mesh"):
        return value
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(held, DTensor)
    return distribute_tensor(value.to(held.device), held.device_mesh, held.placements)


ALONE = World()
