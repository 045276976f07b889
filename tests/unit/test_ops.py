"""The operations against plain float64 references, on odd shapes, with gradients."""

from functools import partial

import pytest
import torch
from torch.nn import functional as F

from rr.errors import RRError
from rr.model import Model, at_loops, initialise
from rr.ops import (
    blocked_attention,
    cross_entropy,
    linear_cross_entropy,
    rms_norm,
    token_losses,
    whole_cross_entropy,
)
from rr.ops.kernels import Kernels
from rr.residual import Site, make
from rr.specs import ModelConfig


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


@pytest.fixture(params=["whole", "plain", "at once", "rows", "few rows"])
def loss_of(request, monkeypatch):
    """The reference; and chunks, by each softmax: one for a compiler, one in rows for a CPU."""
    if request.param == "whole":
        return lambda *given: whole_cross_entropy(*given[:4])
    if request.param == "at once":
        monkeypatch.setattr(cross_entropy, "_in_rows", cross_entropy.softmax_at_once)
    elif request.param == "few rows":
        monkeypatch.setattr(cross_entropy, "CACHED", 150)
    return partial(linear_cross_entropy, fused=request.param != "plain")


@pytest.mark.parametrize(
    ("n", "d", "v", "vocab"), [(1, 3, 7, 7), (5, 8, 64, 50), (123, 17, 192, 131)]
)
@pytest.mark.parametrize("chunk", [1, 50, 1024])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
def test_loss_and_gradients(loss_of, n, d, v, vocab, chunk, dtype, tolerance):
    hidden, weight, source = inputs(n, d, v, dtype)
    targets = torch.randint(vocab, (n,), generator=source)
    expected, grad_hidden, grad_weight = reference(hidden, weight, targets, vocab)
    loss = loss_of(hidden, weight, targets, vocab, chunk)
    (3 * loss).backward()
    with torch.no_grad():
        again = loss_of(hidden, weight, targets, vocab, chunk)
    for value in (loss, again):
        assert value.dtype == dtype
        assert abs(value.item() - expected.item()) < tolerance * expected.item()
    for got, want in ((hidden.grad, grad_hidden), (weight.grad, grad_weight)):
        torch.testing.assert_close(got.double(), 3 * want, rtol=tolerance, atol=tolerance)
    assert (weight.grad[vocab:] == 0).all()  # padding rows learn nothing


@pytest.mark.parametrize("held", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("n", "v", "vocab", "chunk"), [(7, 64, 33, 3), (512, 5056, 5000, 100)])
def test_sixteen_bits_keep_a_float32_loss(loss_of, held, n, v, vocab, chunk):
    """The trap of torch 2.13's own fused loss: a bfloat16 scalar near 10.9 is off by whole nats.

    Gradients are scaled as a loss scaler does, so that float16 has numbers for them.
    """
    hidden, weight, source = inputs(n, 24, v, held)
    targets = torch.randint(vocab, (n,), generator=source)
    expected, grad_hidden, grad_weight = reference(hidden, weight, targets, vocab)
    with torch.autocast("cpu", torch.bfloat16, enabled=held == torch.float32):
        loss = loss_of(hidden, weight, targets, vocab, chunk)
    (n * loss).backward()
    assert loss.dtype == torch.float32 and hidden.grad.dtype == weight.grad.dtype == held
    bound = 2e-3 * (1 if held == torch.float32 else expected.item())
    assert abs(loss.item() - expected.item()) < bound
    weight_grads = weight.grad, grad_weight
    small = torch.ones(v).scatter(0, targets, 0).bool()  # rows of words that are no target
    for got, want in ((hidden.grad, grad_hidden), weight_grads, [g[small] for g in weight_grads]):
        rel = 2e-3 if held == torch.float16 else 1e-2
        assert (got.double() - n * want).norm() < rel * n * want.norm()
    assert (weight.grad[vocab:] == 0).all()


def test_large_logits_do_not_overflow(loss_of):
    hidden, weight = torch.tensor([[200.0, 0.0]], requires_grad=True), torch.eye(2)
    loss = loss_of(hidden, weight, torch.tensor([1]), 2, 1)
    loss.backward()
    assert loss.item() == 200 and hidden.grad.tolist() == [[1, -1]]


def test_token_losses_and_confidence():
    hidden, weight, source = inputs(40, 9, 64, torch.float32)
    targets = torch.randint(50, (40,), generator=source)
    loss, confidence, hit = token_losses(hidden, weight, targets, 50)
    p = torch.softmax((hidden.double() @ weight.double().T)[:, :50], -1)
    torch.testing.assert_close(
        loss.double(), -p.gather(1, targets[:, None])[:, 0].log(), rtol=1e-5, atol=1e-5
    )
    torch.testing.assert_close(confidence.double(), p.max(-1).values, rtol=1e-5, atol=1e-6)
    assert torch.equal(hit, p.argmax(-1) == targets)


def test_rms_norm_by_hand():
    x, gain = torch.tensor([[3.0, 4.0], [2.0, 1.0]], dtype=torch.float64).split(1)
    torch.testing.assert_close(rms_norm(x, gain[0]), gain * x / (12.5 + 1e-5) ** 0.5)
    assert rms_norm(x.bfloat16()).dtype == torch.float32


# -- implementations that a model is given ------------------------------------------------------


def test_the_gate_is_the_equation_in_float64():
    """By hand from the published equation, with its inputs concatenated."""
    source = torch.Generator().manual_seed(0)
    h, u, w, bias = (
        torch.randn(*size, generator=source, dtype=torch.float64)
        for size in ((3, 7, 19), (3, 7, 19), (19, 38), (19,))
    )
    seen = [x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() for x in (3 * h, u)]
    by_hand = 1 / (1 + (-(torch.cat(seen, -1) @ w.T + bias)).exp())
    rule = make(
        "review", Site("mlp", 2, n_layer=1, d_model=19, n_head=1), ModelConfig(8, 1, 1, 19, 8)
    )
    rule.double().load_state_dict({"weight": w, "bias": bias}, strict=False)
    torch.testing.assert_close(rule.gate(3 * h, u), by_hand)
    rule.load_state_dict({"weight": 0 * w, "bias": 0 * bias}, strict=False)
    assert (rule.gate(h, u) == 0.5).all()


def model_of(seed, **changes):
    shape = dict(vocab_size=50, n_layer=3, n_head=2, d_model=16, d_ff=40, seq_len=8)
    return initialise(Model(ModelConfig(**(shape | changes), rule="review")), seed)


def loss_gradients(model):
    idx = torch.arange(16).reshape(2, 8)
    loss = model(idx, idx.roll(1))
    return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]


def test_a_model_keeps_the_implementations_that_it_is_given():
    """From construction or `use`, for it alone; a looped copy has the same."""
    plain, whole = model_of(1), model_of(1)
    expected = loss_gradients(plain)
    whole.use(Kernels(loss="whole"))
    assert not all(map(torch.equal, loss_gradients(whole), expected))  # another order of sums
    assert all(map(torch.equal, loss_gradients(plain), expected))
    built = Model(whole.config, Kernels(loss="whole"))
    built.load_state_dict(whole.state_dict())
    assert all(map(torch.equal, loss_gradients(built), loss_gradients(whole)))
    looped = [at_loops(model, 2) for model in (plain, whole)]
    assert not all(map(torch.equal, *map(loss_gradients, looped)))
    whole.use(Kernels())
    assert all(map(torch.equal, loss_gradients(whole), expected))
    for wrong in ({"loss": "hole"}, {"recompute": "layers"}, {"attention": "block"}):
        with pytest.raises(RRError, match="did you mean"):
            Kernels(**wrong)


def test_a_second_derivative_is_whole_or_refused():
    """`create_graph` would take the gradients of a backward pass by hand for constants."""
    model = model_of(1).double()
    x = torch.randint(50, (1, 8), generator=torch.Generator().manual_seed(0))
    weight = model.layers[0].mlp.up.weight

    def curvature(kernels):
        model.use(kernels)
        (first,) = torch.autograd.grad(model(x, x.roll(1)), weight, create_graph=True)
        return torch.autograd.grad(first.square().sum(), weight)[0]

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert curvature(Kernels(loss="whole")).abs().max() > 0
        with pytest.raises(RRError, match="no second derivative .*loss='whole'"):
            curvature(Kernels())
        with pytest.raises(RRError, match="no second derivative .*attention='auto'"):
            curvature(Kernels(loss="whole", attention="blocks"))


# -- attention in blocks of queries -------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 129, 1100])
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_attention_in_blocks_is_torchs_own_with_its_gradients(length, kv_heads):
    torch.manual_seed(length)
    shapes = (2, 4, length, 8), (2, kv_heads, length, 8), (2, kv_heads, length, 8)
    given = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    ours = blocked_attention(*given)
    theirs = F.scaled_dot_product_attention(*given, is_causal=True, enable_gqa=kv_heads < 4)
    grad = torch.randn_like(ours)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(
        torch.autograd.grad(ours, given, grad), torch.autograd.grad(theirs, given, grad)
    )


@pytest.mark.parametrize(("flavour", "values"), [("gpt2", "own"), ("llama", "svformer")])
def test_a_model_with_attention_in_blocks_computes_the_same(flavour, values):
    model = model_of(1, flavour=flavour, values=values, seq_len=160).double()
    x = torch.randint(50, (2, 160), generator=torch.Generator().manual_seed(0))

    def loss_and_gradients(kernels):
        model.use(kernels)
        loss = model(x, x.roll(1))
        return loss, *torch.autograd.grad(loss, list(model.parameters()))

    usual, written = loss_and_gradients(Kernels()), loss_and_gradients(Kernels(attention="blocks"))
    torch.testing.assert_close(written, usual)
    with torch.no_grad():  # nothing is kept for a backward pass: torch's kernel is the faster one
        by_blocks = model(x)
        model.use(Kernels())
        assert torch.equal(by_blocks, model(x))
