"""Training with one numerical condition changed: effects of rounding, order and seeds on the loss.

On one thread, one backend and one machine a run gives the same bits every time. Each field of
`Change` changes one of these conditions, so that its effect is measured alone.
"""

import contextlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from rr.data.batches import batch_starts, gather, moved
from rr.errors import RRError, nearest
from rr.model.init import initialise
from rr.model.transformer import Model
from rr.specs import Run
from rr.training import device
from rr.training.backend import parse_backend
from rr.training.step import OptimizerStep

KERNELS = {"flash": SDPBackend.FLASH_ATTENTION, "math": SDPBackend.MATH}


@dataclass(frozen=True)
class Change:
    """The differences from the plain run; the defaults change nothing.

    path       the backend, as `rr.training.parse_backend` reads it; the default is that of
               `rr train --precision fp32` on a CPU
    device     cpu, cuda or mps
    threads    of torch's CPU kernels
    micro      windows per micro-batch; None: the whole batch at once
    attention  "flash" or "math": the only kernel allowed; None: torch chooses
    shuffle    seed of another order of the windows *within* each batch
    nudge      seed that picks one weight of the first block, moved to the next representable number
    tf32       inputs of every matrix product rounded to TF32's 11 significant bits
    double     everything in float64
    init       seed of the weights; None: the run's
    batches    seed of the batches; None: the run's

    Example:
        >>> import numpy as np, rr
        >>> from rrbook.numerics import Change, trained
        >>> tiny = "nano:d_model=16,n_layer=1,n_head=1,d_ff=32,seq_len=16"
        >>> run = rr.plan(tiny, steps=2, batch=1)
        >>> model, losses = trained(run, np.arange(100), Change(double=True))
        >>> model.token.weight.dtype
        torch.float64
    """

    path: str = "eager:precision=fp32"
    device: str = "cpu"
    threads: int = 1
    micro: int | None = None
    attention: str | None = None
    shuffle: int | None = None
    nudge: int | None = None
    tf32: bool = False
    double: bool = False
    init: int | None = None
    batches: int | None = None


class Tf32Products(TorchDispatchMode):
    """Matrix products, forward and backward, with both inputs rounded to TF32's eleven bits.

    Sums are in float32, as in a tensor core, but in the order of the CPU: the rounding errors have
    TF32's size, not the bits of any GPU. Fused attention is unchanged.
    """

    PRODUCTS = (
        torch.ops.aten.mm,
        torch.ops.aten.bmm,
        torch.ops.aten.addmm,
        torch.ops.aten.addmm_,
        torch.ops.aten.baddbmm,
    )

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in self.PRODUCTS:
            args = (*args[:-2], *(tf32(x) for x in args[-2:]))
        return func(*args, **(kwargs or {}))


def tf32(x: Tensor) -> Tensor:
    """Round float32 to ten bits after the first, ties away from zero; the exponent stays.

    The rounding of NVIDIA's `cvt.rna.tf32.f32`: half of the lowest kept bit is added to the
    magnitude, and the thirteen bits below are cut off. Other dtypes are returned unchanged.
    """
    if x.dtype != torch.float32:
        return x
    bits = x.contiguous().view(torch.int32)
    return ((bits + (1 << 12)) & -(1 << 13)).view(torch.float32)


def trained(run: Run, stream: np.ndarray, change: Change = Change()) -> tuple[Model, list[float]]:
    """Train `run` on the token stream with a change, unless it says otherwise on one CPU thread.

    Without a change it is `rr train` on one thread at protocol `clean`, bit for bit. Writes no
    files. stream: token ids (n,), more than run.model.seq_len + 1 of them. Returns (model, the
    loss before each step in nats per token). Raises RRError for an unknown backend or kernel, and
    for another protocol.

    Example:
        >>> import numpy as np, rr
        >>> from rrbook.numerics import trained
        >>> tiny = "nano:d_model=16,n_layer=1,n_head=1,d_ff=32,seq_len=16"
        >>> run = rr.plan(tiny, steps=2, batch=1)
        >>> model, losses = trained(run, np.arange(100))
        >>> losses == trained(run, np.arange(100))[1]
        True
    """
    if run.protocol != "clean":
        raise RRError(
            f"protocol must be clean, got {run.protocol}, which draws batches from one stream"
        )
    seed = run.seed if change.init is None else change.init
    drawn = run if change.batches is None else run.with_seed(change.batches)
    before = torch.get_num_threads()
    try:
        place = device.pick_device(change.device)
        device.prepare_device(place, change.threads)
        model = initialise(Model(run.model), seed).train()
        if change.double:
            model.double()
        if change.nudge is not None:
            nudge(model, change.nudge)
        backend = parse_backend(change.path)
        backend.set_up(place)
        step = OptimizerStep(model.to(place), run.recipe, backend, place, change.micro)
        losses = []
        with contextlib.ExitStack() as kernels:  # of attention, and of products
            if change.attention is not None:
                if change.attention not in KERNELS:
                    known = nearest(change.attention, KERNELS)
                    raise RRError(f"unknown attention kernel {change.attention!r}: {known}")
                kernels.enter_context(sdpa_kernel(KERNELS[change.attention]))
            if change.tf32:
                kernels.enter_context(Tf32Products())
            for at in range(run.recipe.steps):
                starts = batch_starts(drawn, at, len(stream), None)
                if change.shuffle is not None:
                    starts = np.random.default_rng([change.shuffle, at]).permutation(starts)
                step.set_rate(run.recipe.lr_at(at))
                x, y = gather(stream, starts, run.model.seq_len)
                losses.append(step(moved(x, place), moved(y, place)).item())
    finally:
        torch.set_num_threads(before)
    return model, losses


def nudge(model: Model, seed: int) -> None:
    """Move one weight of the first block's MLP, picked by `seed`, to the next number upward."""
    weight = model.layers[0].mlp.up.weight.data.view(-1)
    at = np.random.default_rng(seed).integers(len(weight))
    weight[at] = torch.nextafter(weight[at], weight.new_tensor(torch.inf))
