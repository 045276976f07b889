"""The language model's loss, whole or in chunks of the vocabulary's logits."""

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from .kernels import once


def sums(device: torch.device) -> torch.dtype:
    """The dtype in which losses are summed on a device: float64, or float32 on mps, its widest."""
    return torch.float32 if device.type == "mps" else torch.float64


class _LinearCrossEntropy(torch.autograd.Function):
    """Head and loss, a chunk of tokens at a time; the forward pass computes the gradients, too.

    The whole (N, V) logits are never stored, only one chunk of them. Products run in the dtype of
    `hidden`, the softmax and both sums in at least float32.
    """

    @staticmethod
    def forward(ctx, hidden, weight, targets, vocab_size, chunk, fused):
        n, wide = hidden.shape[0], torch.promote_types(hidden.dtype, torch.float32)
        rows = weight.to(hidden.dtype)
        if hidden.device.type == "cuda":  # GPT-2's 50,257 rows fit no tile of a tensor core
            rows = padded_rows(rows)
        grad_hidden = torch.empty_like(hidden)
        grad_weight = None
        total = torch.zeros((), dtype=wide, device=hidden.device)
        # float16 has no numbers below 6e-8: there the mean's 1/n is applied after loss scaling.
        divisor, ctx.deferred_divisor = (1, n) if hidden.dtype == torch.float16 else (n, None)
        if not fused:
            softmax = _softmax
        elif hidden.device.type == "cpu":  # a compiler's softmax takes twice as long there
            softmax = _in_rows
        else:
            softmax = fused_softmax()
        for start in range(0, n, chunk):
            part = slice(start, start + chunk)
            target = targets[part, None]
            # The (chunk, V) logits get no name here, so that they are freed after the softmax.
            loss, grad = softmax(F.linear(hidden[part], rows), target, vocab_size, divisor)
            total += loss
            torch.mm(grad, rows, out=grad_hidden[part])
            if grad_weight is None:
                grad_weight = (grad.t() @ hidden[part]).to(wide)
            elif wide == hidden.dtype:
                grad_weight.addmm_(grad.t(), hidden[part])
            else:
                grad_weight += grad.t() @ hidden[part]
        assert grad_weight is not None  # targets are at least one
        ctx.save_for_backward(grad_hidden, grad_weight[: len(weight)].to(weight.dtype))
        return total / n

    @staticmethod
    def backward(ctx, grad_loss):
        once("loss='whole'")
        grad_hidden, grad_weight = ctx.saved_tensors
        if ctx.deferred_divisor is not None:
            grad_loss = grad_loss / ctx.deferred_divisor
        return grad_hidden * grad_loss, grad_weight * grad_loss, None, None, None, None


def padded_rows(weight: Tensor) -> Tensor:
    """The head's rows (V, d) with rows of zeros up to a multiple of 8, beyond every vocab_size."""
    return F.pad(weight, (0, 0, 0, -len(weight) % 8))


def _softmax(
    logits: Tensor, target: Tensor, vocab_size: int, divisor: int
) -> tuple[Tensor, Tensor]:
    """Summed losses of a chunk, and (softmax − one-hot) / divisor in its logits' dtype (N, V)."""
    dtype = logits.dtype
    logits = logits.to(torch.promote_types(dtype, torch.float32))
    logits[:, vocab_size:] = -torch.inf  # padding rows never get probability
    log_z = logits.logsumexp(-1, keepdim=True)
    loss = (log_z - logits.gather(1, target)).sum()
    grad = logits.sub_(log_z).exp_()  # in place
    grad.scatter_add_(1, target, torch.full_like(log_z, -1.0))
    return loss, grad.div_(divisor).to(dtype)


def softmax_at_once(
    logits: Tensor, target: Tensor, vocab_size: int, divisor: int
) -> tuple[Tensor, Tensor]:
    """`_softmax` without in-place writes, which a compiler fuses into three passes over logits."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    columns = torch.arange(wide.shape[1], dtype=torch.int32, device=wide.device)
    wide = wide.masked_fill(columns >= vocab_size, -torch.inf)
    top = wide.amax(-1, keepdim=True)
    log_z = top + (wide - top).exp().sum(-1, keepdim=True).log()
    loss = (log_z - wide.gather(1, target)).sum()
    p = (wide - log_z).exp()
    grad = torch.where(columns == target.to(torch.int32), p - 1, p) / divisor
    return loss, grad.to(logits.dtype)


CACHED = 2**18  # float32 numbers that a core's own cache holds beside their source: 1 MiB


def _rows(count: int, vocab_size: int) -> int:
    return min(count, max(1, CACHED * torch.get_num_threads() // vocab_size))


def row_bytes(logits: Tensor, target: Tensor, vocab_size: int, divisor: int) -> int:
    """What `softmax_in_rows` holds beside its arguments while it runs."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    return _rows(len(logits), vocab_size) * vocab_size * wide.itemsize


@torch.library.custom_op("rr::softmax_in_rows", mutates_args={"logits"})
def softmax_in_rows(logits: Tensor, target: Tensor, vocab_size: int, divisor: int) -> Tensor:
    """`_softmax` for a CPU: the gradient replaces the logits (N, V); returns the summed losses.

    As many rows at a time as the cores' caches hold in float32, so that memory is read and written
    once, with one exponential for each logit. One operation, so that a prediction of memory counts
    it at once.
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    rows = _rows(len(logits), vocab_size)
    cached = torch.empty(rows, vocab_size, dtype=wide)
    total = torch.zeros((), dtype=torch.float64)
    logits[:, vocab_size:] = 0  # padding rows never get probability, and so no gradient
    for start in range(0, len(logits), rows):
        part, at = logits[start : start + rows, :vocab_size], target[start : start + rows]
        x = cached[: len(part)].copy_(part)
        x.sub_(x.amax(-1, keepdim=True))
        of_target = x.gather(1, at)
        z = x.exp_().sum(-1, keepdim=True)
        total += (z.log() - of_target).sum()
        x.mul_(1 / (z * divisor)).scatter_add_(1, at, torch.full_like(z, -1 / divisor))
        part.copy_(x)
    return total.to(wide)


@softmax_in_rows.register_fake
def _(logits: Tensor, target: Tensor, vocab_size: int, divisor: int) -> Tensor:
    return logits.new_empty((), dtype=torch.promote_types(logits.dtype, torch.float32))


def _in_rows(
    logits: Tensor, target: Tensor, vocab_size: int, divisor: int
) -> tuple[Tensor, Tensor]:
    return softmax_in_rows(logits, target, vocab_size, divisor), logits


@functools.cache
def fused_softmax() -> Callable:
    """`softmax_at_once` compiled by Inductor, on the first call with each shape."""
    return torch.compile(softmax_at_once, dynamic=False)


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    vocab_size: int,
    chunk: int | None = None,
    fused: bool = False,
) -> Tensor:
    """Mean of −log softmax(hidden Wᵀ)[target], in nats per token, without the whole logits.

    hidden: (N, d), N ≥ 1. weight: (V, d), V ≥ vocab_size rows. targets: (N,), int64, from 0 to
    vocab_size − 1; there is no ignore_index, so leave out tokens that do not count. vocab_size:
    rows of `weight` from this one on are padding and are left out of the softmax. chunk: tokens at
    once; by default 1024, and 2048 where the softmax is fused, which then takes no more bytes.
    fused: compile the softmax of a chunk, or, on a CPU, take it in place, a few rows at a time.

    Returns a scalar in float32 (float64 for float64 inputs) whatever the dtype of `hidden`. Where
    gradients are enabled, the forward pass computes those of hidden (N, d) and weight (V, d) at
    once and keeps them; the backward pass multiplies them by its own.

    Example:
        >>> import torch
        >>> from rr.ops import linear_cross_entropy
        >>> hidden, weight = torch.zeros(3, 4), torch.zeros(8, 4)
        >>> targets = torch.tensor([0, 1, 2])
        >>> loss = linear_cross_entropy(hidden, weight, targets, vocab_size=8)
        >>> round(loss.item(), 4)  # log 8
        2.0794
    """
    chunk = chunk or (2048 if fused else 1024)
    if torch.is_autocast_enabled(hidden.device.type):
        hidden = hidden.to(torch.get_autocast_dtype(hidden.device.type))
    with torch.autocast(hidden.device.type, enabled=False):
        if torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad):
            return _LinearCrossEntropy.apply(hidden, weight, targets, vocab_size, chunk, fused)
        total = torch.zeros((), dtype=sums(hidden.device), device=hidden.device)
        for part in range(0, hidden.shape[0], chunk):
            losses = token_losses(
                hidden[part : part + chunk], weight, targets[part : part + chunk], vocab_size
            )[0]
            total += losses.to(total.dtype).sum()
        wide = torch.promote_types(hidden.dtype, torch.float32)
        return (total / hidden.shape[0]).to(wide)


def whole_cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor, vocab_size: int) -> Tensor:
    """The same mean loss from all (N, vocab_size) logits at once, by autograd: the reference.

    Parameters as in `linear_cross_entropy()`. Memory: the logits, their log-softmax and its
    gradient, (N, vocab_size) each.

    Example:
        >>> import torch
        >>> from rr.ops import whole_cross_entropy
        >>> hidden, weight = torch.zeros(3, 4), torch.zeros(8, 4)
        >>> targets = torch.tensor([0, 1, 2])
        >>> loss = whole_cross_entropy(hidden, weight, targets, vocab_size=8)
        >>> round(loss.item(), 4)  # log 8
        2.0794
    """
    logits = F.linear(hidden, weight[:vocab_size])
    return F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), targets)


def token_losses(
    hidden: Tensor, weight: Tensor, targets: Tensor, vocab_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Each token's loss (nats), the model's top-1 confidence, and whether the top-1 is correct.

    Parameters as in `linear_cross_entropy()`, targets int64, no ignore_index. Returns three tensors
    (N,): loss and confidence (the probability of the likeliest token) in at least float32, and
    bool. All (N, vocab_size) logits are held at once, so give it a chunk of tokens at a time.

    Example:
        >>> import torch
        >>> from rr.ops import token_losses
        >>> hidden, weight = torch.eye(2), 9 * torch.eye(2)
        >>> targets = torch.tensor([0, 0])
        >>> losses, _, right = token_losses(hidden, weight, targets, 2)
        >>> right.tolist(), losses.shape
        ([True, False], torch.Size([2]))
    """
    logits = F.linear(hidden, weight.to(hidden.dtype))[:, :vocab_size]
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    best, choice = logits.max(-1)
    target = logits.gather(1, targets[:, None])[:, 0]
    # logsumexp would look for the largest once more, and hold a second copy
    log_z = best + logits.sub_(best[:, None]).exp_().sum(-1).log()
    return log_z - target, (best - log_z).exp(), choice == targets
