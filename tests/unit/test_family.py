"""x0 scales, U-net skips, parallel and orthogonal updates: by hand, and at the start."""

import pytest
import torch

from rr.analysis.probes import gradient_by_depth, trace
from rr.config import RRError
from rr.model import Model, initialise, ladder

BODY = "nano:n_layer=4,d_model=32,n_head=4,seq_len=16"
IDX, TARGETS = torch.randint(70, (2, 3, 16), generator=torch.Generator().manual_seed(0))


def model_of(rule="standard", body=BODY, moved=0.0, **arm):
    """A float64 model, its parameters off their initial values by `moved`."""
    model = initialise(Model(ladder.arm(body, rule, 70, **arm)), 0).double()
    source = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p += moved * torch.randn(p.shape, generator=source).to(p)
    return model


def rms(x, gain=1.0):
    return x * (x.pow(2).mean(-1, keepdim=True) + 1e-5) ** -0.5 * gain


def branches(model):
    """(attention, its norm's gain, MLP, its norm's gain) of each block, as plain functions."""
    return [
        (
            lambda x, layer=layer: layer.attn(x)[0],
            getattr(layer.attn_rule, "gain", 1.0),
            layer.mlp,
            getattr(layer.mlp_rule, "gain", 1.0),
        )
        for layer in model.layers
    ]


def embedded(model):
    return model.token(IDX) + model.position.weight[: IDX.shape[1]]


def logits(model, h):
    return (rms(h, model.final_rule.gain) @ model.token.weight.T)[..., :70]


@pytest.mark.parametrize("embedding", ["plain", "rms"])
def test_scales_on_stream_and_embedding_by_hand(embedding):
    model = model_of(f"x0-scales:embedding={embedding}", moved=0.2)
    x0 = embedded(model) if embedding == "plain" else rms(embedded(model))
    h = x0
    for layer, (attn, a, mlp, b) in zip(model.layers, branches(model), strict=True):
        kept, more = layer.attn_rule.scales
        assert kept != 1 and more != 0
        h = kept * h + more * x0
        h = h + attn(rms(h, a))
        h = h + mlp(rms(h, b))
    torch.testing.assert_close(model(IDX), logits(model, h), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("rule", "weight"), [("unet", 1.0), ("unet:gate=sigmoid", 0.18242552)])
@pytest.mark.parametrize("blocks", [4, 5])
def test_mirrored_blocks_by_hand(rule, weight, blocks):
    """At the start: w = 1, or σ(−1.5) = 0.1824; block 1 meets the last one, the middle nobody."""
    model = model_of(rule, BODY.replace("n_layer=4", f"n_layer={blocks}"))
    h, left = embedded(model), {}
    for i, (attn, a, mlp, b) in enumerate(branches(model)):
        if blocks - 1 - i in left and i > blocks - 1 - i:
            h = h + weight * left[blocks - 1 - i]
        h = h + attn(rms(h, a))
        h = h + mlp(rms(h, b))
        left[i] = h
    torch.testing.assert_close(model(IDX), logits(model, h), rtol=1e-7, atol=1e-7)
    assert sum(p.numel() for n, p in model.named_parameters() if n.endswith("rule.weight")) == 2


@pytest.mark.parametrize("norm", ["shared", "own"])
def test_parallel_branches_by_hand(norm):
    model = model_of(f"parallel:norm={norm}", moved=0.2)
    h = embedded(model)
    for attn, a, mlp, b in branches(model):
        h = h + attn(rms(h, a)) + mlp(rms(h, a if norm == "shared" else b))
    torch.testing.assert_close(model(IDX), logits(model, h), rtol=1e-10, atol=1e-10)


def test_one_norm_or_two_are_one_network_at_the_start():
    torch.testing.assert_close(model_of("parallel")(IDX), model_of("parallel:norm=own")(IDX))


def test_orthogonal_updates_by_gram_and_schmidt():
    """The second vector of a QR factorisation of (h, u) is what is added, with its length."""
    for step in trace(model_of("orthogonal:eps=1e-30", moved=0.2), IDX):
        h, u, added = (x.flatten(0, 1) for x in (step.h, step.u, step.out - step.h))
        q, r = torch.linalg.qr(torch.stack([h, u], -1))
        torch.testing.assert_close(added, q[..., 1] * r[:, 1, 1:2], rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(
            step.out.square().sum(-1),
            (step.h.square().sum(-1) + added.square().sum(-1).view(3, -1)),
        )
        torch.testing.assert_close(step.kept * step.h + step.u, step.out)


def test_scales_begin_as_the_standard_network():
    standard, other = model_of(), model_of("x0-scales")
    assert torch.equal(standard(IDX), other(IDX))
    for model in (standard, other):
        model(IDX, TARGETS).backward()
    grads = dict(other.named_parameters())
    for name, p in standard.named_parameters():
        torch.testing.assert_close(p.grad, grads[name].grad, rtol=1e-9, atol=1e-13)
    # the new numbers have a gradient from the first step on
    assert all(layer.attn_rule.scales.grad.abs().min() > 0 for layer in other.layers)
    assert not torch.equal(model_of("x0-scales:x0=0.1")(IDX), standard(IDX))


def test_what_they_refuse():
    with pytest.raises(RRError, match="fixed depths"):
        model_of("unet", loops=2)
    with pytest.raises(RRError, match="eps must be"):
        model_of("orthogonal:eps=0")
    with pytest.raises(TypeError, match="no single stream"):
        gradient_by_depth(model_of("parallel"), IDX, TARGETS)
