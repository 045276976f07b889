"""Whether compiled blocks compute what the same blocks compute uncompiled, here and now.

A compiler that loses a gradient reports nothing: the loss still falls, along what is left. torch
2.11.0 did that to an `autograd.Function` that ends in a `to` without effect (`torch.compile`, every
backend; 2.8 to 2.10, 2.12 and 2.13 do not). So no compiled path is trusted before its gradients
were compared on the machine, the versions, the shapes and the precision of the run itself.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ..model.transformer import Layer, Model, Stack
from ..residual.stack import grows
from .backend import Backend
from .device import autocast

NOISE = 0.02  # added to the weights meanwhile: a parameter that starts at 0 hides what is below it
# Largest difference of a tensor, by precision, relative to its root mean square, or to the median
# one where it is smaller: a sum over all tokens may cancel, and then only rounding is left of it. A
# gradient that is lost differs by 1.
TOLERANCE = {"fp32": 0.005, "tf32": 0.05, "fp16": 0.1, "bf16": 0.25}


def compiled_error(model: Model, windows: int, precision: str, backend: Backend) -> str | None:
    """Why this compiled model cannot be trusted, in one line; None where it is right.

    model: compiled in place (`rr.model.compile_model`), on its device; its weights are the same
    afterwards. windows: at once, (windows, seq_len) tokens. precision, backend: of the run. The
    first two blocks are compared, and the first of each later shape of parameters, which between
    them have every graph of the blocks, or the whole stack where that is compiled as one graph.
    What is compiled here is what the run uses.
    """
    with _disturbed(model) as parameters, backend.products(precision):
        compiled = _gradients(model, parameters, windows, precision)
        with torch.compiler.set_stance("force_eager"):
            plain = _gradients(model, parameters, windows, precision)
    worst, name = max((error, name) for name, error in differences(compiled, plain).items())
    if worst <= TOLERANCE[precision]:
        return None
    return (
        f"torch {torch.__version__} compiles this model wrongly: {name} differs by "
        f"{100 * worst:.0f} % from that of the same blocks uncompiled"
    )


def differences(compiled: dict[str, Tensor], plain: dict[str, Tensor]) -> dict[str, float]:
    """Root mean square of each difference, relative to that of the plain tensor or the median one.

    Where one tensor alone is not a number the difference is infinite.
    """

    def size(x: Tensor) -> Tensor:
        return x.double().square().mean().sqrt()

    def difference(x: Tensor, y: Tensor) -> Tensor:
        alike = (x == y) | (x.isnan() & y.isnan())
        return size((x - y).masked_fill(alike, 0))

    sizes = torch.stack([size(x.nan_to_num()) for x in plain.values()])
    least = sizes[sizes > 0].median() if (sizes > 0).any() else 0
    errors = torch.stack([difference(compiled[name], plain[name]) for name in plain])
    relative = torch.where(errors == 0, 0, errors / sizes.clamp(min=least))
    values = relative.nan_to_num(nan=torch.inf).tolist()  # one synchronisation
    return dict(zip(plain, values, strict=True))


def _compared(model: Model) -> list[Layer]:
    """The blocks that between them have every graph; all where the stack is one graph."""

    def shapes(layer: Layer) -> list[torch.Size]:
        return [p.shape for p in layer.parameters()]

    if grows(model.config):
        return model.every_layer
    layers = model.passes[0]
    blocks = layers[:2]
    for layer in layers[2:]:
        if shapes(layer) not in map(shapes, blocks):  # as from the block where lanes part
            blocks.append(layer)
    return blocks


@contextmanager
def _disturbed(model: Model) -> Iterator[dict[str, Tensor]]:
    """The parameters of the blocks that are compared, with noise on them while the block lasts."""
    names = {id(p): name for name, p in model.named_parameters()}
    unique = {id(p): p for block in _compared(model) for p in block.parameters() if p.requires_grad}
    before = {key: p.detach().clone() for key, p in unique.items()}
    source = torch.Generator(model.token.weight.device).manual_seed(0)
    try:
        with torch.no_grad():
            for p in unique.values():
                p += NOISE * torch.randn(p.shape, generator=source, device=p.device, dtype=p.dtype)
        yield {names[key]: p for key, p in unique.items()}
    finally:
        with torch.no_grad():
            for key, p in unique.items():
                p.copy_(before[key])


def _gradients(
    model: Model,
    parameters: dict[str, Tensor],
    windows: int,
    precision: str,
) -> dict[str, Tensor]:
    """The output, and the gradients of a random weighting of it, by name."""
    config, device = model.config, model.token.weight.device
    source = torch.Generator(device).manual_seed(1)
    ids = torch.randint(
        config.vocab_size, (windows, config.seq_len), generator=source, device=device
    )
    x0, angles, first_vstate = model.embed(ids)
    x0 = torch.randn(x0.shape, generator=source, device=device, dtype=x0.dtype).requires_grad_()
    stack = model.stack
    if not grows(config):
        stack = Stack([_compared(model)], model.final_rule)
    with autocast(device, precision):  # not around the backward pass, as in training
        y = stack(x0, None, angles, first_vstate)
    along = torch.randn(y.shape, generator=source, device=device)
    leaves = {"the stream's gradient": x0} | parameters
    grads = torch.autograd.grad((y * along).sum(), list(leaves.values()), allow_unused=True)
    return {"the output": y.detach()} | {
        name if leaf is x0 else f"the gradient of {name}": torch.zeros_like(leaf)
        if g is None
        else g
        for (name, leaf), g in zip(leaves.items(), grads, strict=True)
    }
