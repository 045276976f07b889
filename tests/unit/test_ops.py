"""The operations against plain float64 references, on odd shapes, with gradients."""

from functools import partial

import pytest
import torch
from torch.nn import functional as F

from rr.config import ModelConfig, RRError
from rr.model import Model, at_loops, initialise
from rr.ops import (
    blocked_attention,
    cross_entropy,
    linear_cross_entropy,
    rms_norm,
    token_losses,
    whole_cross_entropy,
)
from rr.ops.backends import Kernels
from rr.ops.gated_write import gated_write


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


# -- the gate's fast path ---------------------------------------------------------------------

BOTH = ("state", "update")
FORMS = [(BOTH, False), (BOTH, True), (("state",), False), (("update",), True)]
SHAPES = [(1, 1, 1), (1, 5, 3), (3, 7, 19), (2, 17, 48)]


def gate_inputs(shape, reads=BOTH, seed=0):
    """h, u, weight, bias in float64, of ordinary sizes; h is larger than u, as in a stream."""
    b, t, d = shape
    source = torch.Generator().manual_seed(seed)
    h, u, w, bias = (
        torch.randn(*size, generator=source, dtype=torch.float64)
        for size in (shape, shape, (d, d * len(reads)), (d,))
    )
    return 3 * h, u, w / d**0.5, bias


def plain_write(h, u, weight, bias, reads, convex):
    """The published equation, with the inputs concatenated."""
    seen = [rms_norm({"state": h, "update": u}[name]) for name in reads]
    r = torch.sigmoid(F.linear(torch.cat(seen, -1), weight, bias))
    return h + r * (u - h if convex else u)


def written(write, tensors, dtype, reads, convex, device="cpu"):
    """What `write` gives, and the gradients of all its inputs; bfloat16 is autocast's."""
    half = dtype == torch.bfloat16
    h, u, *rest = (t.to(device, torch.float32 if half else dtype) for t in tensors)
    leaves = [t.detach().requires_grad_() for t in (h, u.to(dtype), *rest)]
    with torch.autocast(device, torch.bfloat16, enabled=half):
        out = write(*leaves, reads, convex)
    assert out.dtype == h.dtype
    along = torch.sin(torch.arange(out.numel(), device=device).view(out.shape)).to(out.dtype)
    grads = torch.autograd.grad(out, leaves, along)
    assert [g.dtype for g in grads] == [t.dtype for t in leaves]
    return [out.detach(), *grads]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("reads", "convex"), FORMS)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-13), (torch.float32, 2e-6)])
def test_the_fast_gate_is_the_reference(shape, reads, convex, dtype, bound):
    """Forward and every gradient, relative to the float64 equation; d = 1 has gradients near 0."""
    tensors = gate_inputs(shape, reads)
    exact = written(plain_write, tensors, torch.float64, reads, convex)
    got = written(gated_write, tensors, dtype, reads, convex)
    for a, b in zip(got, exact, strict=True):
        assert (a - b).norm() <= bound * (b.norm() + shape[1])


@pytest.mark.parametrize("shape", SHAPES[2:])
@pytest.mark.parametrize(("reads", "convex"), FORMS)
def test_the_fast_gate_in_bfloat16_is_no_less_exact_than_the_reference(shape, reads, convex):
    """Errors against float64, over several draws: at most 1.3 times the reference path's own."""
    errors = torch.zeros(2, 5, dtype=torch.float64)
    for seed in range(8):
        tensors = list(gate_inputs(shape, reads, seed))
        tensors[1] = tensors[1].bfloat16().double()  # an update comes in bfloat16
        exact = written(plain_write, tensors, torch.float64, reads, convex)
        for i, write in enumerate((plain_write, gated_write)):
            got = written(write, tensors, torch.bfloat16, reads, convex)
            errors[i] += torch.stack(
                [(a.double() - b).norm() / b.norm() for a, b in zip(got, exact, strict=True)]
            )
    reference_, fast = errors / 8
    assert (fast <= 1.3 * reference_).all(), (fast, reference_)
    assert (fast < 0.02).all()


def test_an_unread_gate_is_a_half_to_the_bit():
    h, u, weight, bias = (t.float() for t in gate_inputs((2, 9, 16)))
    assert torch.equal(gated_write(h, u, 0 * weight, 0 * bias), h + 0.5 * u)


@pytest.mark.parametrize("half", [False, True])
def test_the_fast_gate_keeps_only_what_it_must(half):
    """h, u, W, r and two numbers a token; nothing of width 2d but the weight."""
    b, t, d = 2, 8, 16
    h, u, weight, bias = (t.float().requires_grad_() for t in gate_inputs((b, t, d)))
    kept = {}

    def pack(x):
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            gated_write(h, u, weight, bias)
    inputs_ = sum(x.numel() * 4 for x in (h, u, weight))
    assert sum(kept.values()) == inputs_ + b * t * d * (2 if half else 4) + 2 * b * t * 4


def gated_model(rule, dtype=torch.float32, **changes):
    shape = dict(vocab_size=50, n_layer=3, n_head=2, d_model=16, d_ff=40, seq_len=8)
    model = initialise(Model(ModelConfig(**(shape | changes), rule=rule)), 1).to(dtype)
    source = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.3 * torch.randn(p.shape, generator=source, dtype=dtype)
    return model


def model_gradients(model, half=False):
    device = model.token.weight.device
    idx = torch.arange(16, device=device).reshape(2, 8)
    with torch.autocast(device.type, torch.bfloat16, enabled=half):
        loss = model(idx, idx.roll(1))
    return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]


# -- which rules take it ------------------------------------------------------------------------

FAST = [
    "review",
    "review-convex",
    "state-gate",
    "update-gate",
    "review:gain=1",
    "review:inputs=update,bias=-1",
    "review-convex:inputs=state,gain=1",
]
SLOW = [
    "review:rank=2",
    "review:groups=2",
    "review:granularity=head",
    "state-gate:granularity=scalar",
    "highway",
    "gtrxl",
    "standard",
]


@pytest.mark.parametrize("rule", [*FAST, *SLOW])
def test_rules_take_the_fast_gate_or_stay_on_the_reference(rule):
    model = gated_model(rule, torch.float64)
    expected = model_gradients(model)
    model.use(Kernels(gate="fast"))
    got = model_gradients(model)
    same = all(map(torch.equal, got, expected))
    assert same == (rule in SLOW)  # otherwise another order of the same sums
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)


def test_a_model_keeps_the_implementations_that_it_is_given():
    """From construction or `use`, in every sublayer, for it alone; a looped copy has the same."""
    plain, fast = gated_model("review"), gated_model("review")
    expected = model_gradients(plain)
    fast.use(Kernels(gate="fast"))
    assert not all(map(torch.equal, model_gradients(fast), expected))
    assert all(map(torch.equal, model_gradients(plain), expected))
    built = Model(fast.config, Kernels(gate="fast"))
    built.load_state_dict(fast.state_dict())
    assert all(map(torch.equal, model_gradients(built), model_gradients(fast)))
    looped = [at_loops(model, 2) for model in (plain, fast)]
    assert not all(map(torch.equal, *map(model_gradients, looped)))
    fast.use(Kernels())
    assert all(map(torch.equal, model_gradients(fast), expected))
    for wrong in ({"gate": "fsat"}, {"loss": "hole"}, {"recompute": "layers"}):
        with pytest.raises(RRError, match="did you mean"):
            Kernels(**wrong)


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
    model = gated_model("review", torch.float64, flavour=flavour, values=values, seq_len=160)
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
