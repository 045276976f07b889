"""The few operations that the model needs beyond torch's own, each beside its plain reference.

Shapes: B windows, T tokens, d channels, N = B·T tokens in a row, V vocabulary rows.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

EPS = 1e-5  # inside every RMS, in the gate as in the norms (the study's value)


def rms_norm(x: Tensor, gain: Tensor | None = None, eps: float = EPS) -> Tensor:
    """`x / sqrt(mean(x²) + eps) · gain` over the last axis, computed in at least float32.

    x: (…, d), gain: (d,) or None. Source: Zhang and Sennrich 2019; eps as in arXiv 2606.31859.
    """
    x = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    return F.rms_norm(x, x.shape[-1:], gain, eps)


def review_gate(h: Tensor, u: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`r = σ(W [rms(h) ; rms(u)] + b)`, (B, T, d). The reference path.

    weight: (d, 2d), state half first; bias: (d,). Source: arXiv 2606.31859, equation 3.
    """
    return torch.sigmoid(F.linear(torch.cat([rms_norm(h), rms_norm(u)], -1), weight, bias))


class _LinearCrossEntropy(torch.autograd.Function):
    """Head and loss, a chunk of tokens at a time; gradients are formed on the way forward.

    The whole (N, V) logits never exist: memory is one chunk of them. Products run in the dtype of
    `hidden`, the softmax and both sums in at least float32.
    """

    @staticmethod
    def forward(ctx, hidden, weight, targets, vocab_size, chunk):
        n, wide = hidden.shape[0], torch.promote_types(hidden.dtype, torch.float32)
        rows = weight.to(hidden.dtype)
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros(weight.shape, dtype=wide, device=weight.device)
        total = torch.zeros((), dtype=wide, device=hidden.device)
        for start in range(0, n, chunk):
            part = slice(start, start + chunk)
            target = targets[part, None]
            logits = F.linear(hidden[part], rows).to(wide)  # (chunk, V)
            logits[:, vocab_size:] = -torch.inf  # padding rows never get probability
            log_z = logits.logsumexp(-1, keepdim=True)
            total += (log_z - logits.gather(1, target)).sum()
            grad = logits.sub_(log_z).exp_()  # softmax, in place
            grad.scatter_add_(1, target, torch.full_like(log_z, -1.0))
            grad = grad.div_(n).to(hidden.dtype)
            torch.mm(grad, rows, out=grad_hidden[part])
            if wide == hidden.dtype:
                grad_weight.addmm_(grad.t(), hidden[part])
            else:
                grad_weight += grad.t() @ hidden[part]
        ctx.save_for_backward(grad_hidden, grad_weight.to(weight.dtype))
        return total / n

    @staticmethod
    def backward(ctx, grad_loss):
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_hidden * grad_loss, grad_weight * grad_loss, None, None, None


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, vocab_size: int, chunk: int = 1024
) -> Tensor:
    """Mean of −log softmax(hidden Wᵀ)[target], in nats a token, without the whole logits.

    hidden: (N, d); weight: (V, d) with V ≥ vocab_size; targets: (N,) below vocab_size. Rows of
    `weight` from vocab_size on are padding and are left out of the softmax. The loss is float32
    (float64 for float64 inputs) whatever the dtype of `hidden`.
    """
    if torch.is_autocast_enabled(hidden.device.type):
        hidden = hidden.to(torch.get_autocast_dtype(hidden.device.type))
    with torch.autocast(hidden.device.type, enabled=False):
        if torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad):
            return _LinearCrossEntropy.apply(hidden, weight, targets, vocab_size, chunk)
        total = torch.zeros((), dtype=torch.float64, device=hidden.device)
        for part in range(0, hidden.shape[0], chunk):
            losses = token_losses(hidden[part : part + chunk], weight, targets[part : part + chunk],
                                  vocab_size)[0]
            total += losses.double().sum()
        wide = torch.promote_types(hidden.dtype, torch.float32)
        return (total / hidden.shape[0]).to(wide)


def token_losses(
    hidden: Tensor, weight: Tensor, targets: Tensor, vocab_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Each token's loss (nats), the model's top-1 confidence, and whether the top-1 was right.

    Shapes as in `linear_cross_entropy`; three tensors of (N,). For evaluation, in chunks.
    """
    logits = F.linear(hidden, weight.to(hidden.dtype))[:, :vocab_size]
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    log_z = logits.logsumexp(-1)
    best, choice = logits.max(-1)
    loss = log_z - logits.gather(1, targets[:, None])[:, 0]
    return loss, (best - log_z).exp(), choice == targets
