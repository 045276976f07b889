"""Forms of rules that other readings and shipped models have, against their equations by hand."""

import pytest
import torch

import rr
from rr.analysis import rule_checks
from rr.model import Model, initialise
from rr.ops import rms_norm

IDX = torch.randint(60, (2, 7), generator=torch.Generator().manual_seed(3))
FORMS = (
    "hyper-connections:mixing=identity",
    "hyper-connections:head=weighted,sinkhorn=1",
    "hyper-connections:dynamic=0,mixing=identity,sinkhorn=1",
    "attnres:inside=add,size=2",
    "x0-scales:start=depth",
)


def model_of(rule: str = "standard", moved: float = 0.0) -> Model:
    """A model of four blocks in float64; moved: how far its rule's parameters leave their start."""
    config = rr.ModelConfig(60, n_layer=4, n_head=2, d_model=16, d_ff=24, rule=rule, seq_len=8)
    model = initialise(Model(config), 0).double()
    draws = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for at in (*model.rules, model.final_rule):
            for parameter in at.parameters():
                noise = torch.randn(parameter.shape, generator=draws, dtype=torch.float64)
                parameter += moved * noise
    return model


def branches(model: Model):
    """Each sublayer's rule and its branch."""
    for layer in model.layers:
        yield layer.attn_rule, lambda x, attn=layer.attn: attn(x)[0]
        yield layer.mlp_rule, layer.mlp


def embedded(model: Model) -> torch.Tensor:
    return model.token(IDX) + model.position(torch.arange(IDX.shape[1]))


@pytest.mark.parametrize("rule", FORMS)
def test_each_form_holds_to_every_check(rule):
    wrong = {name: line for name, line in rule_checks.check(rule).items() if line}
    assert not wrong


@pytest.mark.parametrize("more", ["", ",sinkhorn=1"])
@pytest.mark.parametrize("form", ["mixing=identity", "head=weighted"])
def test_streams_start_as_the_standard_network(form, more):
    models = [model_of(), model_of(f"hyper-connections:{form}{more}")]
    for model in models:  # states so large that the norm's ε₀ says nothing
        model.token.weight.data *= 1e3
        model.position.weight.data *= 1e3
    standard, other = (rms_norm(model.hidden(IDX)) for model in models)
    torch.testing.assert_close(other, standard, rtol=1e-4, atol=1e-4)


def test_streams_that_never_mix_are_read_and_written_alone():
    model = model_of("hyper-connections:mixing=identity,dynamic=0", moved=0.3)
    with torch.no_grad():
        streams = embedded(model).unsqueeze(-2).repeat(1, 1, 4, 1)
        for rule, branch in branches(model):
            read, spread = rule.static[:, 0], rule.static[:, 1]
            x = rms_norm((streams * read[:, None]).sum(-2), rule.gain)
            streams = streams + spread[:, None] * branch(x).unsqueeze(-2)
        final = rms_norm(streams.sum(-2), model.final_rule.gain)
        torch.testing.assert_close(final @ model.token.weight.T[:, :60], model(IDX))


def test_the_heads_weighted_read_is_a_sigmoid_of_all_streams():
    """As DeepSeek-V4's model code: σ(s (rms(vec H) W) + b) for each stream."""
    model = model_of("hyper-connections:head=weighted", moved=0.3)
    head = model.final_rule
    streams = torch.randn(2, 3, 4, 16, dtype=torch.float64)
    with torch.no_grad():
        flat = streams.reshape(2, 3, 64)
        seen = flat / (flat.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() @ head.dynamic
        weights = 1 / (1 + (-(head.scale * seen + head.static)).exp())
        mixed = sum(weights[..., i : i + 1] * streams[..., i, :] for i in range(4))
        torch.testing.assert_close(head.read(streams)[0], rms_norm(mixed, head.gain), rtol=1e-4,
                                   atol=1e-5)  # fmt: skip


@pytest.mark.parametrize("size", [2, 4])
def test_attention_at_block_starts_alone(size):
    model = model_of(f"attnres:inside=add,size={size}", moved=0.3)

    def attended(rule, sources):
        keys = torch.stack([rms_norm(source, rule.key_gain) @ rule.query for source in sources])
        weights = keys.softmax(0)
        return sum(w[..., None] * v for w, v in zip(weights, sources, strict=True))

    with torch.no_grad():
        sources = [embedded(model)]
        for number, (rule, branch) in enumerate(branches(model)):
            if number % size == 0:
                h = attended(rule, sources)
                sources.append(torch.zeros_like(h))
            u = branch(rms_norm(h, rule.gain))
            h, sources[-1] = h + u, sources[-1] + u
        final = model.final_rule
        last = rms_norm(attended(final, sources), final.gain)
        torch.testing.assert_close(last @ model.token.weight.T[:, :60], model(IDX))
    queries = [hasattr(rule, "query") for rule, _ in branches(model)]
    assert queries == [number % size == 0 for number in range(8)]


def test_nanochats_starts_fall_with_depth():
    rules = [layer.attn_rule for layer in model_of("x0-scales:start=depth").layers]
    starts = torch.stack([rule.scales for rule in rules])
    torch.testing.assert_close(starts[[0, -1]], torch.tensor([[1.15, 0.20], [1.05, 0.05]]).double())
    assert (starts.diff(dim=0) < 0).all()
