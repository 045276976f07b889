"""The operations against plain float64 references, on odd shapes, with gradients."""

import pytest
import torch
from torch.nn import functional as F

from rr.ops import linear_cross_entropy, review_gate, rms_norm, token_losses


def inputs(n, d, v, dtype, seed=0):
    source = torch.Generator().manual_seed(seed)
    hidden = torch.randn(n, d, generator=source, dtype=torch.float64)
    weight = torch.randn(v, d, generator=source, dtype=torch.float64) / d**0.5
    return hidden.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_(), source


def reference(hidden, weight, targets, vocab):
    hidden, weight = (t.detach().double().requires_grad_() for t in (hidden, weight))
    loss = F.cross_entropy((hidden @ weight.T)[:, :vocab], targets)
    loss.backward()
    return loss, hidden.grad, weight.grad


@pytest.mark.parametrize(
    ("n", "d", "v", "vocab"), [(1, 3, 7, 7), (5, 8, 64, 50), (123, 17, 192, 131)]
)
@pytest.mark.parametrize("chunk", [1, 4, 50, 1024])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
def test_chunked_loss_and_gradients(n, d, v, vocab, chunk, dtype, tolerance):
    hidden, weight, source = inputs(n, d, v, dtype)
    targets = torch.randint(vocab, (n,), generator=source)
    expected, grad_hidden, grad_weight = reference(hidden, weight, targets, vocab)
    loss = linear_cross_entropy(hidden, weight, targets, vocab, chunk)
    (3 * loss).backward()
    assert loss.dtype == dtype
    assert abs(loss.item() - expected.item()) < tolerance * expected.item()
    for got, want in ((hidden.grad, grad_hidden), (weight.grad, grad_weight)):
        torch.testing.assert_close(got.double(), 3 * want, rtol=tolerance, atol=tolerance)
    if v > vocab:
        assert (weight.grad[vocab:] == 0).all()  # padding rows learn nothing
    with torch.no_grad():
        again = linear_cross_entropy(hidden, weight, targets, vocab, chunk)
    assert abs(again.item() - expected.item()) < tolerance * expected.item()


def test_bfloat16_products_keep_a_float32_loss():
    """The trap of torch 2.13's own fused loss: a bfloat16 scalar near 10.9 is off by whole nats."""
    hidden, weight, source = inputs(512, 64, 5056, torch.float32)
    targets = torch.randint(5000, (512,), generator=source)
    expected, grad_hidden, grad_weight = reference(hidden, weight, targets, 5000)
    with torch.autocast("cpu", torch.bfloat16):
        loss = linear_cross_entropy(hidden, weight, targets, 5000, 100)
    loss.backward()
    assert loss.dtype == torch.float32
    assert abs(loss.item() - expected.item()) < 2e-3
    for got, want in ((hidden.grad, grad_hidden), (weight.grad, grad_weight)):
        assert got.dtype == torch.float32
        assert (got.double() - want).norm() < 1e-2 * want.norm()


def test_token_losses_and_confidence():
    hidden, weight, source = inputs(40, 9, 64, torch.float32)
    targets = torch.randint(50, (40,), generator=source)
    loss, confidence, hit = token_losses(hidden, weight, targets, 50)
    p = torch.softmax((hidden.double() @ weight.double().T)[:, :50], -1)
    torch.testing.assert_close(loss.double(), -p.gather(1, targets[:, None])[:, 0].log(),
                               rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(confidence.double(), p.max(-1).values, rtol=1e-5, atol=1e-6)
    assert torch.equal(hit, p.argmax(-1) == targets)


def test_rms_norm_by_hand():
    x = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    expected = x / torch.sqrt(torch.tensor(12.5 + 1e-5, dtype=torch.float64))
    torch.testing.assert_close(rms_norm(x), expected)
    torch.testing.assert_close(rms_norm(x, torch.tensor([2.0, 1.0], dtype=torch.float64)),
                               expected * torch.tensor([2.0, 1.0]))
    assert rms_norm(x.bfloat16()).dtype == torch.float32


def test_review_gate_by_hand():
    """One channel: r = σ(w₁·sign(h) + w₂·sign(u) + b), up to the 1e-5 inside the RMS."""
    h, u = torch.tensor([[[5.0]]]).double(), torch.tensor([[[-2.0]]]).double()
    weight, bias = torch.tensor([[0.7, 0.3]]).double(), torch.tensor([0.1]).double()
    r = review_gate(h, u, weight, bias)
    expected = torch.sigmoid(torch.tensor(0.7 - 0.3 + 0.1).double())
    torch.testing.assert_close(r.squeeze(), expected, rtol=1e-5, atol=0)
