"""Roofline of a training step: FLOPs and bytes of each part, and the least time they take.

    time of a part = max(FLOPs / P, B_products / β) + B_others / β

P: FLOP/s of matrix products; β: bytes/s of memory; B_products: bytes that products and attention
read and write, once each; B_others: bytes that everything else reads and writes, one kernel per
operation. The roofline of Williams, Waterman and Patterson 2009, with a second roof for all work
but products.

Nothing is derived by hand: a real `OptimizerStep` is run on tensors that have shapes and no
bytes (torch's FakeTensorMode), and every operation is counted. So the count knows every rule, value
rule, shape and eager path there is.

Not counted: caches, kernel launches, waiting, and what a compiler fuses. A compiled path's time
lies between everything fused (B_others = 0, but for the optimiser's) and nothing fused.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry
from torch.utils.module_tracker import ModuleTracker

from rr.errors import RRError, positive
from rr.model.transformer import Model
from rr.residual import resolve
from rr.residual.stack import grows
from rr.specs import ModelConfig, Recipe, Run
from rr.training.backend import Backend
from rr.training.memory import plain, shape_and_recipe
from rr.training.step import OptimizerStep

# `work` says what each is
PARTS: tuple[str, ...] = ("attention", "mlp", "rule", "embedding", "head", "optimizer")
aten = torch.ops.aten
ATTENTION = {  # forward passes: (scores and mix); the convention of FLOP counts takes 1 + 2
    aten._scaled_dot_product_flash_attention_for_cpu.default: 1,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: 2,
}
ROWS = {"embedding", "gather", "index_select", "scatter_add"}
ALONE = ("embedding", "optimizer")  # parts without a product that a compiler could fuse them into


@dataclass(frozen=True)
class Work:
    """One part of an optimiser step, over its whole batch.

    Example:
        >>> from rrbook.roofline import Work
        >>> Work(flops=2).product_bytes
        0
    """

    flops: int = 0  # FLOP of matrix products and attention, 2 per multiply-add
    product_bytes: int = 0  # bytes that these read and write, once each
    other_bytes: int = 0  # bytes that everything else reads and writes


def work(
    what: Run | ModelConfig, path: Backend, micro_batch: int, recipe: Recipe | None = None
) -> dict[str, Work]:
    """FLOPs and bytes of each part of one optimiser step over the recipe's batch, in one process.

    what: a run, or a model's shape and the `recipe` it trains by. path: the backend, as
    `rr.training.parse_backend` makes it. micro_batch: windows at once; divides the batch.

    Returns {part: `Work`}, flops in FLOP, the rest in bytes, per optimiser step. The parts:

    attention  queries, keys, values, mixing and the projection out
    mlp        the two products and the activation between them
    rule       norms that sublayers read through, the gate, and the write
    embedding  rows of tokens and positions
    head       the final read, the product with the vocabulary, softmax and loss
    optimizer  clipping and the optimiser's step

    FLOPs are those of the convention of MFU: 2 per multiply-add, three times the forward pass, with
    attention counted as causal; plus what the path recomputes and the head's padding. A compiled
    path counts as if it were not. Raises RRError for a shape without a recipe and for a micro-batch
    that does not divide the batch. Source: the roofline of Williams, Waterman and Patterson 2009.

    Example:
        >>> import rr
        >>> from rrbook.roofline import work
        >>> from rr.training.backend import parse_backend
        >>> backend = parse_backend("reference")
        >>> parts = work(rr.plan("nano"), backend, micro_batch=8)
        >>> list(parts)
        ['attention', 'mlp', 'rule', 'embedding', 'head', 'optimizer']
    """
    what, recipe = shape_and_recipe(what, recipe)
    positive("micro-batch", micro_batch)
    kinds = resolve(what.rule)[0], resolve(what.values, "values")[0]
    micro = min(micro_batch, recipe.batch)
    if recipe.batch % micro:
        raise RRError(f"micro-batch {micro} does not divide the batch {recipe.batch}")
    several = recipe.batch > micro
    of_recipe = recipe.decay_all, recipe.optimizer
    once, again, update = _counted(what, kinds, plain(path, "cuda"), micro, *of_recipe, several)
    total = Counter(once) + Counter(update)
    for key, value in again.items():
        total[key] += value * (recipe.batch // micro - 1)
    return {part: Work(*(total[part, kind] for kind in Work.__annotations__)) for part in PARTS}


def stacked(
    what: Run | ModelConfig, path: Backend, micro_batch: int, recipe: Recipe | None = None
) -> dict[str, Work]:
    """`work` of a deep model, extrapolated from one and two of its blocks: faster by its depth.

        work(L) = work(1) + (L − 1) · (work(2) − work(1))

    Exact where every block does the same. RRError where what flows between blocks grows with depth,
    or where blocks take values from the first.
    """
    what, recipe = shape_and_recipe(what, recipe)
    if grows(what) or what.values != "own":
        raise RRError(
            f"{what.rule} with values {what.values}: blocks are not alike, use roofline.work"
        )
    one, two = (work(replace(what, n_layer=n), path, micro_batch, recipe) for n in (1, 2))
    above = what.n_layer - 1
    return {
        part: Work(
            *(
                getattr(one[part], kind)
                + above * (getattr(two[part], kind) - getattr(one[part], kind))
                for kind in Work.__annotations__
            )
        )
        for part in PARTS
    }


def times(
    works: Mapping[str, Work],
    flops_per_second: float,
    bytes_per_second: float,
    share: float = 1.0,
    fused: bool = False,
) -> dict[str, float]:
    """Least seconds of each part: max(flops/P, product_bytes/β) + other_bytes/β.

    works: as `work()` gives them. flops_per_second, share: P is their product, the peak of matrix
    products at the path's precision, and the part of it that products are assumed to reach.
    bytes_per_second: β, of the memory. fused: whether only products move bytes, as in a compiled
    step, except in embedding and optimizer, which have no product to be fused into.

    A lower bound: caches, kernel launches and waiting are not counted. Raises RRError for figures
    that no device has. Source: Williams, Waterman and Patterson 2009, with a second roof for all
    work but products.

    Example:
        >>> from rrbook.roofline import Work, times
        >>> times({"mlp": Work(flops=4 * 10**9, product_bytes=10**6)}, 1e12, 1e9)
        {'mlp': 0.004}
    """
    for name, value in (("FLOP/s", flops_per_second), ("bytes/s", bytes_per_second)):
        if not 0 < value < float("inf"):
            raise RRError(f"{name} must be a finite number > 0, got {value}")
    if not 0 < share <= 1:
        raise RRError(f"share must be > 0 and ≤ 1, got {share}")
    seconds = {}
    for part, one in works.items():
        products = max(one.flops / (flops_per_second * share), one.product_bytes / bytes_per_second)
        others = 0 if fused and part not in ALONE else one.other_bytes / bytes_per_second
        seconds[part] = products + others
    return seconds


@lru_cache(maxsize=64)
def _counted(
    config: ModelConfig,
    kinds: tuple,
    path: Backend,
    micro: int,
    decay_all: bool,
    optimizer: str,
    several: bool,
) -> tuple[Counter, Counter, Counter]:
    # By the classes too (kinds): a name that a reader registers anew is another rule.
    with FakeTensorMode():
        model = Model(config).train()
        recipe = Recipe(1, micro, 1e-3, 1, decay_all=decay_all, optimizer=optimizer)
        step = OptimizerStep(
            model, recipe, path, torch.device("cpu"), micro, precision=path.precision
        )
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        step.optimizer.step()  # makes the moments
        x = torch.zeros(micro, config.seq_len, dtype=torch.int64)
        with _counting() as first:
            step.gradients(x, x)
        keep: Any = step.optimizer
        keep.zero_grad = lambda **_: None  # so that gradients are added to
        with _counting() as second:
            if several:
                step.gradients(x, x)
        with _counting(lambda _: "optimizer") as update:
            step.update()
    return first, second, update


@contextmanager
def _counting(part: Callable[[set[str]], str] | None = None) -> Iterator[Counter]:
    with ModuleTracker() as tracker, _Counter(lambda: (part or _part)(tracker.parents)) as counter:
        yield counter.counts


def _part(modules: set[str]) -> str:
    """Which of `PARTS` an operation within these modules belongs to."""
    last = {name.split(".")[3] for name in modules if name.count(".") >= 3}
    for part, name in (("attention", "attn"), ("mlp", "mlp")):
        if name in last:
            return part
    if any(name.startswith(("Model.layers.", "Layer")) for name in modules):
        return "rule"
    return "embedding" if modules & {"Model.token", "Model.position"} else "head"


class _Counter(TorchDispatchMode):
    """Adds up what each operation computes and moves, by part."""

    def __init__(self, part: Callable[[], str]) -> None:
        super().__init__()
        self.part, self.counts = part, Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        if func.namespace == "prim":  # asks for a device, or the like
            return made
        part = self.part()
        read = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        wrote = [t for t in tree_leaves(made) if isinstance(t, Tensor)]
        name = func._schema.name.removeprefix("aten::").removesuffix("_")
        formula = flop_registry.get(getattr(aten, name, None))
        if func in ATTENTION:
            B, H, T, e = args[ATTENTION[func] - 1].shape
            self.counts[part, "flops"] += ATTENTION[func] * 2 * B * H * e * T * (T + 1)
            self.counts[part, "product_bytes"] += _bytes(read) + _bytes(wrote)
        elif formula:
            self.counts[part, "flops"] += formula(*args, **kwargs, out_val=made)
            self.counts[part, "product_bytes"] += _bytes(read) + _bytes(wrote)
        elif name in ROWS:  # of a table, only what is picked
            picked = args[-1:] if name == "scatter_add" else wrote
            self.counts[part, "other_bytes"] += 2 * _bytes(picked)
        elif _moves(func, read, wrote):
            if not wrote:  # in place, and returns nothing: fused AdamW
                # (its gradients are written where they are still to be unscaled: not here)
                mutable = [
                    a.alias_info is not None and a.name != "grads" for a in func._schema.arguments
                ]
                both = zip(args, mutable, strict=False)
                wrote = [t for t in tree_leaves([x for x, yes in both if yes])]
            self.counts[part, "other_bytes"] += _bytes(read) + _bytes(wrote)
        return made


def _moves(func: Any, read: list[Tensor], wrote: list[Tensor]) -> bool:
    """Whether an operation touches memory: no view, and no bare allocation, does."""
    if func._schema.name.startswith("aten::empty"):
        return False
    held = {id(t.untyped_storage()) for t in read}
    return func._schema.is_mutable or not any(id(t.untyped_storage()) in held for t in wrote)


def _bytes(tensors: list[Tensor]) -> int:
    """Bytes of tensors as they are seen: an expanded dimension is read once."""
    return sum(
        t.element_size() * prod(n for n, step in zip(t.shape, t.stride(), strict=True) if step)
        for t in tensors
    )
