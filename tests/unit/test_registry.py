"""What every rule must hold to, for every rule in the registry: a new one gets all this unasked.

RR_RULE=my_rule.py:Class pytest tests/unit/test_registry.py    tests a rule of your own.
"""

import os

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.flop_counter import FlopCounterMode

from rr import runs, trainer
from rr.config import ModelConfig
from rr.ladder import WIDTHS, polynomial
from rr.model import Model, initialise, site_of
from rr.residual import REGISTRY, canonical, make, resolve

RESIDUAL = [*REGISTRY["residual"], *filter(None, [os.environ.get("RR_RULE")])]
VALUES = list(REGISTRY["values"])
ARMS = [(rule, "own") for rule in RESIDUAL] + [("standard", v) for v in VALUES]
INDUCTOR = ("standard", "review", "review-convex")
B, T, D = 2, 6, 16


def shape(rule="standard", values="own", **changes):
    kept = dict(vocab_size=50, n_layer=3, n_head=2, d_model=D, d_ff=40, seq_len=8)
    return ModelConfig(**(kept | changes), rule=rule, values=values)


def model_of(rule, values="own", dtype=torch.float32, scramble=False, **changes):
    """A model; with scramble=True its own parameters are moved off their special initial values."""
    model = initialise(Model(shape(rule, values, **changes)), seed=1).to(dtype)
    if scramble:
        source = torch.Generator().manual_seed(2)
        with torch.no_grad():
            for p in model.parameters():
                p += 0.3 * torch.randn(p.shape, generator=source, dtype=dtype)
    return model


def stream(rule, dtype=torch.float64, seed=0):
    """A stream that was opened and written to once, and an update: inputs of one more write."""
    source = torch.Generator().manual_seed(seed)
    x0, u = (torch.randn(B, T, D, generator=source, dtype=dtype) for _ in range(2))
    return rule.open(x0), u


def sites(config):
    kinds = ["attn", "mlp"] * config.n_layer + ["final"]
    return [site_of(config, kind, i + 1) for i, kind in enumerate(kinds)]


@pytest.mark.parametrize("rule", RESIDUAL)
def test_declared_parameters_are_the_counted_ones(rule):
    config = shape(rule)
    for site in sites(config):
        built = make(rule, site, config)
        assert built.params(site) == sum(p.numel() for p in built.parameters()), site


@pytest.mark.parametrize("values", VALUES)
def test_declared_value_parameters_are_the_counted_ones(values):
    for layer in Model(shape(values=values)).layers:
        rule = layer.attn.rule
        declared = rule.params(layer.attn_rule.site)
        assert declared == sum(p.numel() for p in rule.parameters())


@pytest.mark.parametrize("rule", RESIDUAL)
def test_declared_flops_are_the_counted_ones(rule):
    config = shape(rule)
    built = [make(rule, site, config).double() for site in sites(config)]
    state, u = stream(built[0])
    for one in built:
        with FlopCounterMode(display=False) as counter:
            _, state = one.read(state)
            if one.site.kind != "final":
                state = one.write(state, u)
        assert counter.get_total_flops() == B * T * one.matmul_flops(one.site), one.site


@pytest.mark.parametrize("rule", RESIDUAL)
def test_gradients_are_right_in_float64(rule):
    model = model_of(rule, dtype=torch.float64, scramble=True, n_layer=2)
    idx = torch.arange(5)[None] * 7 % 50

    def loss(*weights):
        names = (name for name, _ in model.named_parameters())
        held = dict(zip(names, weights, strict=True))
        return torch.func.functional_call(model, held, (idx, idx.roll(1)))

    weights = tuple(p.detach().clone().requires_grad_() for p in model.parameters())
    assert torch.autograd.gradcheck(loss, weights, fast_mode=True)


@pytest.mark.parametrize("rule", RESIDUAL)
def test_the_write_starts_at_the_declared_coefficients(rule):
    """state' = carry·h + coefficient·u exactly, at every site, for arbitrary h and u."""
    model = model_of(rule, dtype=torch.float64)
    for built in model.rules:
        coefficient, carry = built.coefficient(built.site), built.carry(built.site)
        state, u = stream(built)
        if coefficient is None or built.state != "tensor":
            continue  # no one number: the rule's own identities are tested by name
        expected = carry * state + coefficient * u
        # 1e-7: a parameter such as 0.1 is rounded to float32 before the model turns float64.
        torch.testing.assert_close(built.write(state, u), expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("rule", RESIDUAL)
def test_gate_and_kept_describe_the_write(rule):
    """Off the initial values too: state' = kept·h + gate·u, where there is a gate."""
    for built in model_of(rule, dtype=torch.float64, scramble=True).rules:
        state, u = stream(built)
        if not isinstance(state, torch.Tensor) or (r := built.gate(state, u)) is None:
            continue
        assert ((r > 0) & (r < 1)).all()
        torch.testing.assert_close(built.write(state, u), built.kept(state, u) * state + r * u)


@pytest.mark.parametrize(("rule", "values"), ARMS)
def test_bfloat16_stays_near_float32(rule, values):
    model = model_of(rule, values, d_model=64, d_ff=128, n_layer=4)
    idx = torch.randint(50, (4, 8), generator=torch.Generator().manual_seed(0))
    exact = model(idx)
    with torch.autocast("cpu", torch.bfloat16):
        near = model(idx)
        loss = model(idx, idx.roll(1))
    assert loss.dtype == torch.float32
    # bfloat16 keeps 8 bits: a few rounding errors of 2**-8 relative to the logits' spread.
    assert (near.float() - exact).abs().max() < 0.03 * exact.std() * 4


def compiled_layers(model, backend, whole=False):
    torch._dynamo.reset()
    if whole:
        model.hidden = torch.compile(model.hidden, backend=backend, fullgraph=True, dynamic=False)
        return
    for layer in model.layers:
        layer.compile(backend=backend, fullgraph=True, dynamic=False)


def grows(rule, values):
    """Whether what flows between layers grows with depth."""
    return resolve(rule)[0].state == "list" or values == "dense"


@pytest.mark.parametrize(("rule", "values"), ARMS)
def test_all_layers_share_one_graph_and_never_recompile(rule, values):
    model = model_of(rule, values, scramble=True)
    idx = torch.arange(16).reshape(2, 8)
    weight = model.layers[0].mlp.up.weight
    expected = torch.autograd.grad(model(idx, idx.roll(1)), weight)[0]
    counter = CompileCounterWithBackend("aot_eager")
    compiled_layers(model, counter, whole=grows(rule, values))
    for _ in range(3):
        got = torch.autograd.grad(model(idx, idx.roll(1)), weight)[0]
    torch.testing.assert_close(got, expected)
    # vstate is None before the first block of a pass, so a value rule that carries has a second
    # graph; what grows with depth is one graph for the whole model.
    carries = values != "own" and not grows(rule, values)
    assert counter.frame_count == (2 if carries else 1)


@pytest.mark.parametrize("rule", INDUCTOR)
def test_inductor_computes_the_same(rule):
    model = model_of(rule, scramble=True, n_layer=2)
    idx = torch.arange(16).reshape(2, 8)
    expected = torch.autograd.grad(model(idx, idx.roll(1)), model.layers[0].mlp.up.weight)[0]
    compiled_layers(model, "inductor")
    got = torch.autograd.grad(model(idx, idx.roll(1)), model.layers[0].mlp.up.weight)[0]
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("rule", "values"), ARMS)
def test_state_dict_round_trip(rule, values, tmp_path):
    model = model_of(rule, values, scramble=True)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    other = model_of(rule, values)
    idx = torch.arange(16).reshape(2, 8)
    assert not torch.equal(model(idx), other(idx))
    other.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    assert torch.equal(model(idx), other(idx))


@pytest.mark.parametrize(("rule", "values"), ARMS)
def test_a_broken_off_run_ends_as_if_it_had_not(rule, values, tmp_path, tiny_corpus, monkeypatch):
    run = runs.plan("nano:n_layer=2,d_model=32,n_head=2,seq_len=16", rule, values=values,
                       corpus=tiny_corpus, tokenizer="bpe:300", steps=6, batch=2)

    def result(out):
        folder = trainer.train(run, out, threads=1, save_every=1e-9, log=lambda line: None)
        return runs.finished(folder)["weights_sha256"]

    whole = result(tmp_path / "whole")
    step = trainer._Training._train_step

    def breaks(self):
        if self.step == 4:
            raise RuntimeError("the lights went out")
        step(self)

    monkeypatch.setattr(trainer._Training, "_train_step", breaks)
    with pytest.raises(RuntimeError, match="lights"):
        result(tmp_path / "broken")
    monkeypatch.undo()
    assert result(tmp_path / "broken") == whole


@pytest.mark.parametrize(("kind", "name"), [(k, n) for k, names in REGISTRY.items() for n in names])
def test_a_rule_describes_itself(kind, name):
    cls, _ = resolve(name, kind)
    assert cls.equation.count("{") == cls.equation.count("}")
    assert cls.source and cls.__doc__
    assert canonical(name, kind) == name
    for key, option in cls.options.items():
        assert option.meaning and canonical(f"{name}:{key}={option.default}", kind) == name


def test_costs_are_printed_as_polynomials():
    for cost, text in (
        (lambda d: 4 * d * d + 2 * d, "4d² + 2d"),
        (lambda d: d * d - 3 * d, "d² - 3d"),
        (lambda d: 0, "0"),
        (lambda d: 1, "1"),
        (lambda d: d**3, ""),
    ):
        assert polynomial([cost(d) for d in WIDTHS]) == text
