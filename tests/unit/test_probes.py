"""Probes of a model's inside against computations by hand, and what they leave behind: nothing."""

import pytest
import torch
from small import BODY, IDX, TARGETS, gradients, model_of

import rr
from rr.analysis import hooked, stream_lens, stream_mixing
from rr.analysis.probes import (
    depth_attention,
    embedding_share,
    gradient_by_depth,
    increment_cosines,
    jacobian_gain,
    norms_by_depth,
    trace,
)
from rr.errors import RRError
from rr.residual import RULES

THREE = BODY.replace("n_layer=4", "n_layer=3")


def test_probes_leave_the_model_and_its_gradients_as_they_were():
    model = model_of("review-convex")
    before, held = model(IDX), gradients(model)
    copies = {name: grad.clone() for name, grad in held.items()}
    trace(model, IDX), gradient_by_depth(model, IDX, TARGETS), jacobian_gain(model, IDX, 1)
    assert torch.equal(model(IDX), before)
    for name, p in model.named_parameters():
        assert p.grad is held[name] and torch.equal(p.grad, copies[name])
    assert "write" not in vars(model.rules[0]) and "open" not in vars(model.final_rule)
    untouched = model_of("review-convex")
    gradient_by_depth(untouched, IDX, TARGETS)
    assert all(p.grad is None for p in untouched.parameters())


@pytest.mark.parametrize("rule", [name for name, rule in RULES.items() if rule.state != "tensor"])
def test_probes_refuse_a_rule_without_a_single_stream(rule):
    assert len(RULES) > 20 and RULES["lanes"].state == "pair"
    for probe in (trace, norms_by_depth, increment_cosines, embedding_share, jacobian_gain):
        with pytest.raises(RRError, match="no single stream") as refusal:
            probe(model_of(rule), IDX)
        assert ("use stream_lens" in str(refusal.value)) == (RULES[rule].state == "streams")
    if RULES[rule].state != "streams":
        with pytest.raises(RRError, match="no single stream"):
            gradient_by_depth(model_of(rule), IDX, TARGETS)


def test_probes_see_a_write_that_a_caller_has_patched():
    model = model_of("standard")
    patched = lambda state, u: state  # noqa: E731
    model.rules[2].write = patched
    for _ in range(2):
        step = trace(model, IDX)[2]
        assert torch.equal(step.out, step.h)
    assert model.rules[2].write is patched


def test_probe_values_against_direct_computations():
    """Shares and gradients by definition, on a convex net where they are far from trivial."""
    model = model_of("review-convex", body=THREE, seed=1)
    steps = trace(model, IDX)
    share = (steps[0].h * 0.5**6).norm() / steps[-1].out.norm()
    assert abs(embedding_share(model, IDX) / share.item() - 1) < 1e-12

    x0 = (model.token(IDX) + model.position.weight[:16]).detach().requires_grad_()
    state = x0
    for layer in model.layers:
        state, _ = layer(state)
    logits = model.final_rule.read(state)[0] @ model.token.weight[:70].T
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), TARGETS.flatten())
    (expected,) = torch.autograd.grad(loss, x0)
    assert abs(gradient_by_depth(model, IDX, TARGETS)[0] / expected.norm().item() - 1) < 1e-9


def test_jacobian_gain_is_the_rms_singular_value():
    """Against the full Jacobian of a one-token, one-window stack."""
    model = model_of("standard", body=THREE, seed=2)
    idx = IDX[:1, :1]
    x0 = (model.token(idx) + model.position.weight[:1]).detach()

    def stack(x):
        for layer in model.layers:
            x, _ = layer(x)
        return x

    jacobian = torch.autograd.functional.jacobian(stack, x0).reshape(32, 32)
    exact = (jacobian.pow(2).sum() / 32).sqrt().item()
    assert abs(jacobian_gain(model, idx, probes=400) / exact - 1) < 0.05


@pytest.mark.parametrize(("each", "n"), [("sublayer", 12), ("block", 6), ("pass", 3)])
def test_cosines_of_increments_by_their_definition(each, n):
    model = model_of("scaled", body=BODY.replace("n_layer=4", "n_layer=2"), loops=3, moved=0.1)
    steps = trace(model, IDX)
    assert [step.pass_ for step in steps] == [1] * 4 + [2] * 4 + [3] * 4
    states = [steps[0].h, *(step.out for step in steps)][:: 12 // n]
    moves = [after - before for before, after in zip(states, states[1:], strict=False)]
    expected = [
        [((a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))).mean() for b in moves] for a in moves
    ]
    got = increment_cosines(model, IDX, each)
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64))
    with pytest.raises(RRError, match="expected one of: block, pass, sublayer"):
        increment_cosines(model, IDX, "passes")


@pytest.mark.parametrize("size", [1, 2, 4])
def test_depth_attention_looks_where_its_weights_say(size):
    """α recomputed from the updates by the equation, block sums and all; each row sums to 1."""
    body = BODY.replace("n_layer=4", "n_layer=2")
    model, updates = model_of(f"attnres:size={size}", body=body, moved=0.3), []
    branches = [branch for layer in model.layers for branch in (layer.attn, layer.mlp)]

    def keep(module, given, out):
        updates.append(out[0] if isinstance(out, tuple) else out)

    with hooked(branches, keep):
        found = depth_attention(model, IDX)
    x0 = model.token(IDX) + model.position(torch.arange(16))
    for reader, rule in enumerate([*model.rules, model.final_rule]):
        done = [
            torch.stack(updates[i : min(i + size, reader)]).sum(0) for i in range(0, reader, size)
        ]
        v = torch.stack([x0, *done])
        key = v / (v.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * rule.key_gain
        score = torch.exp(key @ rule.query)
        alpha = (score / score.sum(0)).mean((1, 2)).detach()
        torch.testing.assert_close(found[reader, : len(v)], alpha)
        assert not found[reader, len(v) :].any()
    assert found.shape == (5, 4 // size + 1)
    torch.testing.assert_close(found.sum(1), torch.ones(5, dtype=torch.float64))


# -- streams ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rule",
    [
        "hyper-connections",
        "hyper-connections:mix=identity",
        "hyper-connections:sinkhorn=1,start=published,head=sigmoid",
        "gated-residual",
    ],
)
def test_the_lens_shows_what_branches_and_head_are_given(rule):
    model, given = model_of(rule, body=THREE, moved=0.3), []
    branches = [branch for layer in model.layers for branch in (layer.attn, layer.mlp)]
    with hooked(branches, lambda module, args: given.append(args[0]), before=True):
        hidden = model.hidden(IDX)
    lens = stream_lens(model, IDX)
    assert torch.equal(lens.reads, torch.stack(given))
    assert torch.equal(lens.head[-1], hidden)
    x0 = model.token(IDX) + model.position(torch.arange(16))
    torch.testing.assert_close(lens.mean[0], x0)
    assert len(lens.mean) == len(lens.head) == 7 and len(lens.reads) == 6


def test_where_the_head_adds_the_streams_its_read_is_the_norm_of_the_mean():
    """Up to the 1e-5 inside the norm, a sum of four is the mean times four."""
    model = model_of("hyper-connections", moved=0.3)
    lens = stream_lens(model, IDX)
    four = 4 * lens.mean
    normed = four / (four.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * model.final_rule.gain
    torch.testing.assert_close(lens.head, normed)


@pytest.mark.parametrize(
    ("probe", "rule", "words"),
    [
        (stream_lens, "standard", "one stream or none: use trace"),
        (stream_lens, "attnres", "one stream or none: use trace"),
        (stream_mixing, "gated-residual", "never mixes its streams: see stream_lens"),
        (depth_attention, "denseformer", "denseformer has no depth attention"),
    ],
)
def test_other_rules_get_one_line(probe, rule, words):
    with pytest.raises(RRError, match=words):
        probe(model_of(rule), IDX)


def test_the_lens_of_an_attached_rule_is_the_models(tiny_gpt2):
    model = rr.attach(tiny_gpt2, "gated-residual")
    lens = stream_lens(model, IDX % 32)
    assert lens.reads.shape == (4, 3, 16, 16) and lens.head.isfinite().all()
