"""Where the norm stands: equal to the blocks of public models, and to the equations by hand.

OLMo 3's, Gemma 3's and Gemma 4's own decoder layers, from `transformers`, run on a stack's stream;
then the same attention and MLP with this package's rule around them.
"""

import pytest
import torch

import rr
from rr.errors import RRError
from rr.residual import Residuals

hf = pytest.importorskip("transformers")
D, T = 32, 9
SIZES = dict(vocab_size=60, hidden_size=D, num_hidden_layers=4, num_attention_heads=4,
             num_key_value_heads=2, intermediate_size=48, head_dim=8, max_position_embeddings=32,
             rms_norm_eps=1e-5, pad_token_id=0)  # fmt: skip


def public(name):
    """A small model of the family in float64 with every parameter moved, and its inner decoder."""
    more = {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0,
            "num_kv_shared_layers": 0}  # fmt: skip
    given = SIZES | (more if name == "Gemma4Text" else {})
    config = getattr(hf, f"{name}Config")(**given, layer_types=["full_attention"] * 4)
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = getattr(hf, f"{name}Model")(config).double().eval()
    source = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.2 * torch.randn(p.shape, generator=source, dtype=p.dtype)
        for i, layer in enumerate(model.layers):
            if hasattr(layer, "layer_scalar"):
                layer.layer_scalar.fill_(0.7 + 0.2 * i)
    return model


def gain_of(norm):
    """What a norm multiplies by: Gemma 3 stores the gain less one."""
    return norm.weight + (1 if "Gemma3" in type(norm).__name__ else 0)


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("Olmo3", "norm-place:place=output"),
        ("Gemma3Text", "norm-place"),
        ("Gemma4Text", "norm-place:scalar=1"),
    ],
)
@torch.no_grad()
def test_the_places_of_public_models(name, rule):
    model = public(name)
    ids = torch.randint(3, 60, (2, T), generator=torch.Generator().manual_seed(2))
    calls, streams = [], []
    for layer in model.layers:
        layer.self_attn.register_forward_pre_hook(
            lambda module, args, kwargs: calls.append((args, kwargs)), with_kwargs=True
        )
        layer.register_forward_pre_hook(lambda module, args: streams.append(args[0].clone()))
    theirs = model(input_ids=ids, use_cache=False).last_hidden_state

    res = Residuals(rule, dim=D, n_layer=4, n_head=4).double()
    state = res.open(streams[0])
    for i, (layer, (_, kwargs)) in enumerate(zip(model.layers, list(calls), strict=True)):
        norms = {
            "in": getattr(layer, "input_layernorm", None),
            "attn": layer.post_attention_layernorm,
            "pre": getattr(layer, "pre_feedforward_layernorm", None),
            "mlp": layer.post_feedforward_layernorm,
        }
        for rule_, before, after in (
            (res.rule(2 * i), norms["in"], norms["attn"]),
            (res.rule(2 * i + 1), norms["pre"], norms["mlp"]),
        ):
            rule_.out_gain.copy_(gain_of(after))
            if before is not None:
                rule_.gain.copy_(gain_of(before))
        if "scalar" in rule:
            res.rule(2 * i + 1).scalar.copy_(layer.layer_scalar[0])
        others = {key: value for key, value in kwargs.items() if key != "hidden_states"}
        torch.testing.assert_close(state, streams[i], rtol=1e-4, atol=1e-5)
        state, *_ = res[2 * i](state, lambda x, f=layer.self_attn, o=others: f(x, **o))
        state = res[2 * i + 1](state, layer.mlp)
    res.final.gain.copy_(gain_of(model.norm))
    ours = res.close(state)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)  # theirs norms in float32
    assert (ours - res.close(streams[-1])).abs().max() > 0.1  # the last block changed something


def rms(x):
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()


@pytest.mark.parametrize("place", ["both", "output", "stream", "depth"])
@torch.no_grad()
def test_each_place_by_hand(place):
    """Eight sublayers in a loop; l is the number of the block, of both of its sublayers."""
    config = rr.ModelConfig(70, 4, 4, D, 48, rule=f"norm-place:place={place},scalar=1")
    model = rr.model.initialise(rr.Model(config), seed=0).double()
    source = torch.Generator().manual_seed(3)
    for p in model.parameters():
        p += 0.1 * torch.randn(p.shape, generator=source, dtype=p.dtype)
    ids = torch.randint(70, (2, T), generator=source)
    h = model.token(ids) + model.position(torch.arange(T))
    branches = [f for b in model.layers for f in (lambda x, a=b.attn: a(x)[0], b.mlp)]
    for i, (rule, f) in enumerate(zip(model.rules, branches, strict=True)):
        if place == "both":
            h = h + rule.out_gain * rms(f(rule.gain * rms(h)))
        elif place == "output":
            h = h + rule.out_gain * rms(f(h))
        elif place == "stream":
            h = rule.out_gain * rms(h + f(h))
        else:
            h = h + f(rule.gain * rms(h) * (1 / (1 + i // 2) ** 0.5))
        h = h * rule.scalar if i % 2 else h
    expected = h if place == "stream" else model.final_rule.gain * rms(h)
    torch.testing.assert_close(model.hidden(ids), expected)


def test_what_a_branch_with_a_norm_of_its_own_would_undo_is_refused():
    for place in ("output", "stream", "depth"):
        with pytest.raises(RRError, match=f"place={place} needs branches that read the stream"):
            Residuals(f"norm-place:place={place}", dim=D, n_layer=2, norm=False)
    assert Residuals("norm-place", dim=D, n_layer=2, norm=False).costs()["params"] == 4 * D
