"""`rr.analysis` on attached models and on any module with `rr.Residuals`, against other ways."""

import copy
from types import SimpleNamespace

import pytest
import torch
from test_attach import IDX, scrambled, tiny
from test_residuals import by_hand, stack_of
from torch import nn
from torch.nn import functional as F

import rr
from rr.analysis import probes
from rr.analysis.rule_checks import model_of
from rr.ops import rms_norm
from rrbook import attention, gates

IDX, TARGETS = IDX[:, :-1], IDX[:, 1:]
FAMILIES = ["GPT2", "Llama"]


def sublayers(model):
    """Embeddings, branches (with their norms) and the head of an untouched decoder."""
    branches = []
    if hasattr(model, "transformer"):
        body = model.transformer
        x0 = body.wte(IDX) + body.wpe(torch.arange(IDX.shape[1]))
        for block in body.h:
            branches.append(lambda x, b=block: b.attn(b.ln_1(x))[0])
            branches.append(lambda x, b=block: b.mlp(b.ln_2(x)))
        return x0, branches, lambda x: model.lm_head(body.ln_f(x))
    body = model.model
    x0 = body.embed_tokens(IDX)
    how = dict(position_embeddings=body.rotary_emb(x0, torch.arange(IDX.shape[1])[None]))
    how |= dict(attention_mask=None)
    for layer in body.layers:
        branches.append(lambda x, b=layer: b.self_attn(b.input_layernorm(x), **how)[0])
        branches.append(lambda x, b=layer: b.mlp(b.post_attention_layernorm(x)))
    return x0, branches, lambda x: model.lm_head(body.norm(x))


def computed(family: str, rule: str, rules) -> SimpleNamespace:
    """The network by its equations, on an untouched decoder: states, coefficients and loss."""
    x0, branches, head = sublayers(tiny(family))
    states, coefficients = [], []
    h = [x0] if rule == "attnres" else x0
    if rule == "hyper-connections":
        h = x0.unsqueeze(2).repeat(1, 1, 4, 1)

    def attended(sources, reader):
        v = torch.stack(sources)
        alpha = (rms_norm(v, reader.key_gain) * reader.query).sum(-1, keepdim=True).softmax(0)
        coefficients.append(alpha)
        return (alpha * v).sum(0)

    for p, branch in zip(rules[:-1], branches, strict=True):
        states.append(h)
        if rule == "attnres":
            h = [*h, branch(attended(h, p))]
        elif rule == "hyper-connections":
            scale = torch.cat([p.scale[:1]] * 5 + [p.scale[1:]])
            c = p.static + scale * torch.tanh(rms_norm(h) @ p.dynamic)
            coefficients.append(c)
            u = branch((c[..., :1] * h).sum(2))
            h = torch.einsum("btij,btid->btjd", c[..., 1:5], h) + c[..., 5:] * u.unsqueeze(2)
        else:
            u = branch(h)
            both = torch.cat([rms_norm(h), rms_norm(u)], -1)
            r = 1 if rule == "standard" else (both @ p.weight.T + p.bias).sigmoid()
            coefficients.append(r)
            h = h + r * u
    states.append(h)
    last = attended(h, rules[-1]) if rule == "attnres" else h
    last = last.sum(2) if rule == "hyper-connections" else last
    loss = F.cross_entropy(head(last).flatten(0, 1), TARGETS.flatten())
    return SimpleNamespace(states=states, coefficients=coefficients, loss=loss)


def slopes(loss, tensors) -> list[float]:
    return [g.norm().item() for g in torch.autograd.grad(loss, tensors, retain_graph=True)]


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture(params=["standard", "review", "hyper-connections", "attnres"])
def both(request, family):
    """A rule, a decoder that it is attached to, and the same network by its equations."""
    model = scrambled(rr.attach(tiny(family), request.param))
    rules = [*model.rr_residuals.rules, model.rr_residuals.final]
    return request.param, model, computed(family, request.param, rules)


def near(values, rel=2e-4):
    return pytest.approx(values, rel=rel)


def test_the_probes_of_an_attached_model_are_its_equations(both):
    rule, model, by_equation = both
    states, coefficients = by_equation.states, by_equation.coefficients
    assert gates.losses(model, IDX, TARGETS).mean().item() == near(by_equation.loss.item(), 1e-5)
    if rule != "attnres":
        expected = slopes(by_equation.loss, states)
        assert probes.gradient_by_depth(model, IDX, TARGETS) == near(expected)
    if rule in ("standard", "review"):
        assert probes.norms_by_depth(model, IDX) == near([probes.rms(h) for h in states])
    if rule == "attnres":
        for row, alpha in zip(probes.depth_attention(model, IDX), coefficients, strict=True):
            expected = alpha.detach().double().mean((1, 2, 3))
            torch.testing.assert_close(row[: len(alpha)], expected, rtol=1e-5, atol=1e-6)
            assert not row[len(alpha) :].any()
    if rule == "hyper-connections":
        mixing = probes.stream_mixing(model, IDX)
        every = torch.cat([mixing.read[..., None], mixing.mix, mixing.spread[..., None]], -1)
        mean = torch.stack([c.detach().double().mean((0, 1)) for c in coefficients])
        torch.testing.assert_close(every, mean, rtol=1e-5, atol=1e-6)
        assert every.std(0).min() > 0  # no two sublayers alike
    if rule == "review":
        traced, r = gates.trace_gates(model, IDX), torch.stack(coefficients)
        torch.testing.assert_close(traced.r, r.detach())
        assert traced.kinds == ("attn", "mlp", "attn", "mlp") and r.std() > 0.01


def test_what_is_done_to_gates_is_done_there(family):
    """One half at all gates is `constant` on the same decoder."""
    model = scrambled(rr.attach(tiny(family), "review"))
    base, half = gates.losses(model, IDX, TARGETS), {"half": lambda rule, h, u: 0.5}
    cost = gates.costs(model, IDX, TARGETS, half, base)["half"].mean()
    other = gates.losses(rr.attach(tiny(family), "constant:c=0.5"), IDX, TARGETS)
    assert (base.mean() + cost).item() == near(other.mean().item(), 1e-6)
    assert cost.abs() > 1e-4


def test_the_mixing_of_values_is_that_of_the_rule():
    model = rr.attach(tiny("Llama"), "standard", values="constant:lam=3,own=2")
    bare = rr.attach(tiny("Llama"), "standard")
    assert attention.mixing(bare).tolist() == [[1, 0], [0, 1]]
    assert attention.mixing(model)[1].tolist() == [3, 2]


class Mine(nn.Module):
    """A reader's own model: branches and embeddings of `rr.Model` on a stack of rules."""

    def __init__(self, model: rr.Model, rule: str) -> None:
        super().__init__()
        self.body, self.residuals = copy.deepcopy(model), stack_of(model, rule)

    def forward(self, idx):
        return by_hand(self.residuals, self.body, idx)


@pytest.mark.parametrize(("rule", "loops"), [
    ("standard", 1), ("review", 1), ("review", 3), ("review:per_pass=1", 2), ("highway-carry", 1),
    ("hyper-connections", 2), ("hyper-connections:dynamic=0", 1),
    ("hyper-connections:sinkhorn=1", 1), ("attnres", 1), ("denseformer", 1), ("parallel", 1),
])  # fmt: skip
def test_a_module_with_residuals_is_measured_as_the_model_is(rule, loops):
    model = model_of(rule, scramble=True, n_layer=2, n_loops=loops)
    mine, idx = Mine(model, rule), IDX[:, :6] % 50
    targets, state = idx.roll(1, 1), model.final_rule.state
    model.double()
    mine.double()

    def same(probe, *given):
        measured = probe(mine, idx, *given)
        torch.testing.assert_close(measured, probe(model, idx, *given), rtol=1e-9, atol=1e-12)
        return measured

    if state in ("tensor", "streams"):
        same(probes.gradient_by_depth, targets)
    if state == "tensor":
        same(probes.norms_by_depth)
        same(probes.increment_cosines, "pass")
        same(probes.jacobian_gain, 2)
        same(probes.embedding_share)
    if rule == "attnres":
        same(probes.depth_attention)
    if state == "streams":
        mixing = same(probes.stream_mixing)
        assert [len(part) for part in mixing] == [4 * loops] * 3
        if "sinkhorn" in rule:
            totals = torch.ones(4, 4).double()
            torch.testing.assert_close(mixing.mix.sum(-2), totals)
            torch.testing.assert_close(mixing.mix.sum(-1), totals, atol=0.02, rtol=0)  # 20 steps
    assert gates.losses(mine, idx, targets).mean().item() == near(model(idx, targets).item(), 1e-9)


def two():
    return nn.ModuleList([rr.Residuals("standard", 8, 1), rr.Residuals("review", 8, 1)])


class Bare(nn.Module):
    def __init__(self):
        super().__init__()
        self.residuals = rr.Residuals("standard", 8, 1)

    def forward(self, x):
        return {"loss": x}


@pytest.mark.parametrize(("call", "words"), [
    (lambda: probes.norms_by_depth(tiny("GPT2"), IDX), "holds 0 rr.Residuals.*rr.attach"),
    (lambda: probes.norms_by_depth(two(), IDX), "holds 2 rr.Residuals"),
    (lambda: probes.gradient_by_depth(Bare(), IDX, IDX), "must return logits"),
    (lambda: probes.stream_mixing(rr.attach(tiny("GPT2"), "attnres"), IDX), "has no streams"),
    (lambda: probes.depth_attention(rr.attach(tiny("GPT2"), "review"), IDX), "no depth attention"),
    (lambda: gates.trace_gates(rr.attach(tiny("GPT2"), "standard"), IDX), "no additive gate"),
])  # fmt: skip
def test_bad_input_gets_one_line(call, words):
    with pytest.raises(rr.RRError, match=words):
        call()
