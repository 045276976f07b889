"""Facts that hold exactly between rules."""

import pytest
import torch

from rr.analysis.probes import embedding_share, gradient_by_depth, jacobian_gain, trace
from rr.model import Model, initialise, ladder

BODY = "nano:n_layer=3,d_model=32,n_head=2,seq_len=16"
IDX, TARGETS = torch.randint(70, (2, 3, 16), generator=torch.Generator().manual_seed(0))


def model_of(rule, seed=0, **changes):
    return initialise(Model(ladder.arm(BODY, rule, 70, **changes)), seed).double()


def gradients(model):
    model(IDX, TARGETS).backward()
    return {name: p.grad for name, p in model.named_parameters()}


def test_review_starts_as_the_constant_half_network():
    """Outputs and the gradients of the whole body are identical, bit for bit."""
    review, constant = model_of("review"), model_of("constant")
    assert torch.equal(review(IDX), constant(IDX))
    got, want = gradients(review), gradients(constant)
    assert all(torch.equal(got[name], want[name]) for name in want)
    # … and the gate itself learns from the first step on.
    assert all(
        got[f"layers.{i}.{kind}_rule.weight"].norm() > 0
        for i in range(3)
        for kind in ("attn", "mlp")
    )


def test_a_review_gate_forced_open_is_standard():
    torch.testing.assert_close(model_of("review:bias=60")(IDX), model_of("standard")(IDX))


def test_the_stream_is_the_sum_of_its_writes():
    steps = trace(model_of("standard"), IDX)
    total = steps[0].h + sum(step.u for step in steps)
    torch.testing.assert_close(steps[-1].out, total)


def test_probes_leave_the_model_as_it_was():
    model = model_of("review-convex")
    before = model(IDX)
    trace(model, IDX), gradient_by_depth(model, IDX, TARGETS), jacobian_gain(model, IDX, 1)
    assert torch.equal(model(IDX), before)
    assert all(p.grad is None for p in model.parameters())
    assert "write" not in vars(model.rules[0]) and "open" not in vars(model.final_rule)


def test_probes_leave_the_gradients_that_were_there():
    model = model_of("review")
    before = gradients(model)
    held = {name: grad.clone() for name, grad in before.items()}
    gradient_by_depth(model, IDX, TARGETS)
    for name, p in model.named_parameters():
        assert p.grad is before[name] and torch.equal(p.grad, held[name])


@pytest.mark.parametrize("rule", ["attnres", "denseformer"])
def test_probes_refuse_a_rule_without_a_single_stream(rule):
    model = model_of(rule)
    for probe in (lambda: trace(model, IDX), lambda: gradient_by_depth(model, IDX, TARGETS)):
        with pytest.raises(TypeError, match="no single stream"):
            probe()


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
    model = model_of("review-convex", seed=1)
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
    model = model_of("standard", seed=2)
    idx = IDX[:1, :1]
    x0 = (model.token(idx) + model.position.weight[:1]).detach()

    def stack(x):
        for layer in model.layers:
            x, _ = layer(x)
        return x

    jacobian = torch.autograd.functional.jacobian(stack, x0).reshape(32, 32)
    exact = (jacobian.pow(2).sum() / 32).sqrt().item()
    assert abs(jacobian_gain(model, idx, probes=400) / exact - 1) < 0.05
