"""Probes of attention against loops written out, hand computations and autograd."""

import math

import pytest
import torch
from small import IDX, TARGETS
from small import model_of as small
from torch.nn import functional as F

from rr.analysis import probes
from rr.model import initialise
from rr.model.transformer import rotate, turns
from rrbook import attention

IDX, TARGETS = IDX[:, :12], TARGETS[:, :12]


def model_of(values="own", grouped="", flavour="llama"):
    body = f"nano:n_layer=3,d_model=32,n_head=4,seq_len=16,d_ff=32{grouped}"
    model = small("standard", values, body, flavour=flavour)
    with torch.no_grad():  # away from the even attention of a fresh model
        for layer in model.layers:
            layer.attn.qkv.weight *= 20
    return model


@pytest.mark.parametrize("grouped", ["", ",n_kv_head=2"])
def test_weights_are_the_softmax_and_values_what_it_mixes(grouped):
    model = model_of("constant:lam=2", grouped)
    first, second, _ = attention.trace_attention(model, IDX)
    attn, x = model.layers[0].attn, model.layers[0].attn_rule.read(model.token(IDX))[0]
    q, k, v = (
        t.unflatten(-1, (-1, 8)).transpose(1, 2)
        for t in attn.qkv(x).split(list(attn.parts.values()), -1)
    )
    k = k.repeat_interleave(4 // k.shape[1], 1)
    angles = turns(q, 8)
    scores = rotate(q, angles) @ rotate(k, angles).transpose(-1, -2) / math.sqrt(8)
    scores = scores.masked_fill(torch.ones(12, 12).triu(1).bool(), -torch.inf)
    torch.testing.assert_close(first.weights, scores.softmax(-1))
    torch.testing.assert_close(first.values, v)
    assert second.values.shape == v.shape and second.weights.shape == (3, 4, 12, 12)
    assert (second.values - 2 * v).abs().max() > 0.01  # V₂ is mixed in


def test_importance_entropy_and_similarity_by_loops():
    weights = attention.trace_attention(model_of(), IDX)[1].weights
    p = attention.importance(weights)
    for b in range(3):
        for j in range(12):
            looked = [weights[b, h, i, j].item() for h in range(4) for i in range(12)]
            assert p[b, j].item() == pytest.approx(sum(looked) / 4 / 12)
        one = -sum(x * math.log(x) for x in p[b].tolist())
        assert attention.entropy(p)[b].item() == pytest.approx(one)
    assert attention.entropy(torch.tensor([0.0, 1.0])) == 0
    h = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(1)).double()
    cosines = [
        F.cosine_similarity(w[i], w[j], dim=0).item()
        for w in h
        for i in range(5)
        for j in range(5)
        if i != j
    ]
    assert attention.similarity(h).item() == pytest.approx(sum(cosines) / len(cosines))


@pytest.mark.parametrize(
    ("tokens", "nats"), [(64, 3.754), (128, 4.439), (256, 5.127), (2048, 7.203)]
)
def test_the_causal_null_is_not_the_logarithm(tokens, nats):
    """Even looks at one's past: by hand for 3 tokens, (11, 5, 2)/18; well below ln T for many."""
    hand = torch.tensor([11, 5, 2], dtype=torch.float64) / 18
    torch.testing.assert_close(attention.causal_null(3), hand)
    p = attention.causal_null(tokens)
    even = torch.ones(tokens, tokens).double().tril()
    even /= even.sum(1, keepdim=True)
    torch.testing.assert_close(p, attention.importance(even[None, None])[0])
    assert round(attention.entropy(p).item(), 3) == nats < math.log(tokens) - 0.4


def test_a_fresh_model_attends_as_evenly_as_the_null():
    found = attention.by_block(initialise(model_of(), 0), IDX)["entropy"]
    null = attention.entropy(attention.causal_null(12)).item()
    assert found == pytest.approx([null] * 3, abs=0.01)


def test_first_token_ratios():
    model = model_of()
    found = attention.by_block(model, IDX)
    p = attention.importance(attention.trace_attention(model, IDX)[2].weights)
    expected = (p[:, 0] / p.mean(1)).mean().item()
    assert found["first_importance"][2] == pytest.approx(expected)
    h = probes.trace(model, IDX)[-1].out.norm(dim=-1)
    peak = (h[:, 0] / h[:, 1:].mean(1)).mean().item()
    assert found["first_state"][2] == pytest.approx(peak)
    assert {len(row) for row in found.values()} == {3}


def test_mixing_measures_the_coefficients():
    lam = model_of("learnable")
    with torch.no_grad():
        lam.layers[1].attn.rule.lam.copy_(torch.tensor([0.3, 0.8]))
    mixed = attention.mixing(lam.float())
    assert mixed[1].tolist() == pytest.approx([0.3, 0.8, 0])
    assert attention.mixing(model_of("svformer").float()).tolist() == [[1, 0, 0]] * 3
    assert torch.equal(attention.mixing(model_of("dense").float()), torch.eye(3))


@pytest.mark.parametrize("values", ["own", "identity", "svformer"])
def test_value_gradients_are_autograds(values):
    model = model_of(values, flavour="gpt2")
    found = attention.value_gradients(model, IDX, TARGETS)
    assert model.layers[0].attn.qkv.weight.grad is None
    model(IDX, TARGETS).backward()
    for n, (layer, norm) in enumerate(zip(model.layers, found, strict=True)):
        if values == "svformer" and n:
            assert norm is None
        else:
            assert norm == pytest.approx(layer.attn.qkv.weight.grad[64:].norm().item())
