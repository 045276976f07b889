"""The value rules: what each mixes, what it costs, what its caches hold, and a second opinion."""

import pytest
import torch
from small import BODY, IDX, TARGETS, gradients, lively
from small import model_of as small
from torch import nn

from rr.errors import RRError
from rr.model import Model, costs, sizes
from rr.residual import REGISTRY

NAMES = list(REGISTRY["values"])
SPECS = [*NAMES, "constant:lam=5", "sparse:blocks=1", "neutreno:lam=0.2,residual=1"]


def model_of(values="own", body=BODY, **more):
    return small("standard", values, body, **more)


def rules(model):
    return [layer.attn.rule for layer in model.layers]


def heads(seed, n=2):
    """Values (B, H, T, e) of n blocks."""
    source = torch.Generator().manual_seed(seed)
    return [torch.randn(2, 4, 3, 8, generator=source, dtype=torch.float64) for _ in range(n)]


def grouped_or_not(values):
    return [""] if values.startswith("neutreno") else ["", ",n_kv_head=2"]


CASES = [(v, g) for v in SPECS for g in grouped_or_not(v)]

# -- what is mixed ------------------------------------------------------------------------------


def mixed_by_hand(name, n, every):
    """V'_n of block n (1 … 4) from V₁ … V_n, written out; the learned ones as they start."""
    first, own = every[0], every[n - 1]
    if n == 1 or name in ("own", "neutreno"):
        return own
    return {
        "identity": 0.5 * first + 0.5 * own,
        "constant": 2 * first + own,
        "sparse": 5 * first + own if n > 2 else own,  # ⌈3·4/8⌉ = 2 blocks of 4
        "learnable": 0.5 * first + 0.5 * own,
        "learnable-plus": 4 / 3 * first + 0.5 * own,  # s/(L − 1) = 4/3
        "dense": own,
        "svformer": first,
        "gated-attention": own,  # what it changes is the output
        "embeddings": own,  # what it adds comes from the token
    }[name]


@pytest.mark.parametrize("name", NAMES)
def test_what_each_block_attends_over(name):
    every, vstate = heads(0, 4), None
    for n, rule in enumerate(rules(model_of(name)), 1):
        own = every[n - 1] if rule.has_own_v(n) else None
        got, vstate = rule.values(own, vstate)
        torch.testing.assert_close(got, mixed_by_hand(name, n, every))


def test_dense_mixes_the_values_of_all_blocks_before():
    dense, every = rules(model_of("dense"))[3], heads(2, 4)
    with torch.no_grad():
        dense.lam.copy_(torch.tensor([1.0, -2.0, 0.0, 3.0]))
    got, carried = dense.values(every[3], every[:3])
    torch.testing.assert_close(got, every[0] - 2 * every[1] + 3 * every[3])
    assert len(carried) == 4


@pytest.mark.parametrize("residual", [0, 1])
def test_neutreno_takes_lambda_off_the_diagonal_of_attention(residual):
    """A V' + λ(V₁ − V') is (A − λI)V' + λV₁: the second form, on a matrix A of our own."""
    rule = rules(model_of(f"neutreno:lam=0.3,residual={residual}"))[2]
    first, own = heads(3)
    mix = torch.rand(3, 3, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    values, vstate = rule.values(own, first)
    expected = (own + first) / 2 if residual else own
    torch.testing.assert_close(values, expected)
    got = rule.after(mix @ values, values, vstate)
    torch.testing.assert_close(got, (mix - 0.3 * torch.eye(3)) @ expected + 0.3 * first)


def test_learnable_plus_shares_one_budget_of_the_first_values():
    """Σ_n λ_{n,1} = s whatever λ' is; more for one block is less for the others."""
    model = model_of("learnable-plus")
    first, *later = rules(model)
    assert first.budget.item() == 4 and (first.share == 0).all()
    assert all(rule.own.item() == 0.5 for rule in later)
    with torch.no_grad():
        first.share.copy_(torch.tensor([0.0, 1.0, 3.0]))
    v, own = heads(5)
    _, vstate = first.values(v, None)
    shares = [(rule.values(0 * own, vstate)[0] / v).mean().item() for rule in later]
    scores = torch.tensor([1.0, torch.e, torch.e**3], dtype=torch.float64)
    assert shares == pytest.approx((4 * scores / scores.sum()).tolist())
    gradients(model)
    assert first.budget.grad.abs() > 0 and (first.share.grad.abs() > 0).all()


def test_one_block_alone_has_nothing_to_mix():
    body = "nano:n_layer=1,d_model=32,n_head=4,seq_len=16"
    expected = model_of("own", body)(IDX)
    for name in set(NAMES) - {"gated-attention", "embeddings"}:  # these mix no values
        assert torch.equal(model_of(name, body)(IDX), expected), name


@pytest.mark.parametrize("values", SPECS)
def test_gradients_are_right_in_float64(values):
    body = "nano:n_layer=3,d_model=8,n_head=2,d_ff=8,seq_len=4"
    model = model_of(values, body, moved=0.3, flavour="llama")
    names = [name for name, _ in model.named_parameters()]

    def loss(*weights):
        held = dict(zip(names, weights, strict=True))
        return torch.func.functional_call(model, held, (IDX[:2, :4], TARGETS[:2, :4]))

    weights = tuple(p.detach().clone().requires_grad_() for p in model.parameters())
    assert torch.autograd.gradcheck(loss, weights, fast_mode=True)


# -- what it costs ------------------------------------------------------------------------------


@pytest.mark.parametrize("flavour", ["gpt2", "llama"])
@pytest.mark.parametrize(("values", "grouped"), CASES)
def test_declared_cost_is_the_counted_difference_to_own_values(values, grouped, flavour):
    """Parameters and FLOPs, block by block; where a projection goes, with its biases."""

    def counted(layer):
        weights = [m.weight for m in layer.modules() if isinstance(m, nn.Linear)]
        rule = layer.attn.rule
        weights += [getattr(rule, name) for name in rule.matrix_names if hasattr(rule, name)]
        flops = sum(2 * weight.numel() for weight in weights)
        return torch.tensor([sum(p.numel() for p in layer.parameters()), flops])

    config = sizes.arm(BODY + grouped, "standard", 70, values=values, flavour=flavour)
    own = sizes.arm(BODY + grouped, "standard", 70, flavour=flavour)
    for layer, plain in zip(Model(config).layers, Model(own).layers, strict=True):
        rule, site = layer.attn.rule, layer.attn_rule.site
        params, flops = rule.saved(config)
        declared = [rule.params(site) - params, rule.matmul_flops(site) - flops]
        assert (counted(layer) - counted(plain)).tolist() == declared
    wide = 32 * config.kv_heads // 4
    if values == "svformer":
        assert params == wide * 32 + (wide if flavour == "gpt2" else 0)
        assert costs.flops_per_token(own) - costs.flops_per_token(config) == 3 * 3 * 2 * wide * 32


# -- what is cached -----------------------------------------------------------------------------


@pytest.mark.parametrize(("flavour", "loops"), [("gpt2", 1), ("llama", 2)])
@pytest.mark.parametrize(("values", "grouped"), CASES)
def test_cached_generation_makes_the_same_tokens(values, grouped, flavour, loops):
    """And the same states, read in pieces: one token, several, one.

    A token has 2L·d_kv elements in the caches of a pass, and with SVFormer (L + 1)·d_kv.
    """
    body = f"nano:n_layer=3,d_model=32,n_head=4,seq_len=16,d_ff=32{grouped}"
    model = model_of(values, body, moved=0.2, flavour=flavour, loops=loops)
    caches, pieces, past = model.caches(), [], 0
    with torch.no_grad():
        for piece in IDX.split([4, 1, 6, 5], 1):
            pieces.append(model.hidden(piece, caches, past))
            past += piece.shape[1]
        torch.testing.assert_close(torch.cat(pieces, 1), model.hidden(IDX))
    elements = (4 if values == "svformer" else 6) * 8 * model.config.kv_heads
    assert sum(cache.nbytes for cache in caches) == 8 * IDX.numel() * loops * elements
    one, two = (
        model.generate(IDX[:1, :5], 6, generator=torch.Generator().manual_seed(3), cached=cached)
        for cached in (True, False)
    )
    assert torch.equal(one, two) and one.shape == (1, 11)


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("lerned", "did you mean learnable"),
        ("learnable-plus:s=3", "no option 's'"),
        ("sparse:blocks=-1", "blocks must be an integer"),
        ("neutreno:residual=1", "4 heads but there are 2 value heads"),
    ],
)
def test_a_wrong_name_or_option_is_one_line(spec, why):
    with pytest.raises(RRError, match=why):
        model_of(spec, BODY + ",n_kv_head=2")


# -- a second implementation ----------------------------------------------------------------------


def theirs_with_our_weights(model, learned):
    """x-transformers' decoder that holds the weights of our GPT-2 body.

    It normalises with an ε of 1e-12 where ours has 1e-5, so the stream is first made large; and its
    gains are offsets from 1, its softmax is in float32.
    """
    library = pytest.importorskip("x_transformers")
    options = {"ff_mult": 4, "use_rmsnorm": True, "add_value_residual": True}
    decoder = library.Decoder(
        dim=32, depth=4, heads=4, attn_dim_head=8, learned_value_residual_mix=learned, **options
    ).double()
    norms = []
    with torch.no_grad():
        for i, layer in enumerate(lively(model).layers):
            (attn_norm, *_), attn, _ = decoder.layers[2 * i]
            (mlp_norm, *_), mlp, _ = decoder.layers[2 * i + 1]
            norms += [attn_norm, mlp_norm]
            for name, rows in zip("qkv", layer.attn.qkv.weight.chunk(3), strict=True):
                getattr(attn, f"to_{name}").weight.copy_(rows)
            attn.to_out.weight.copy_(layer.attn.out.weight)
            (up, _), _, down = mlp.ff
            up.load_state_dict(layer.mlp.up.state_dict())
            down.load_state_dict(layer.mlp.down.state_dict())
        norms.append(decoder.final_norm)
        for norm, rule in zip(norms, [*model.rules, model.final_rule], strict=True):
            norm.g.copy_(rule.gain - float(norm.unit_offset))
    return decoder


def same_states_and_gradients(model, decoder):
    x0 = (model.token(IDX) + model.position(torch.arange(16))).detach()
    ours, theirs = model.hidden(IDX), decoder(x0)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    target = torch.randn(ours.shape, generator=torch.Generator().manual_seed(7)).double()
    (ours * target).sum().backward()
    (theirs * target).sum().backward()
    for i, layer in enumerate(model.layers):
        _, attn, _ = decoder.layers[2 * i]
        for name, got in zip("qkv", layer.attn.qkv.weight.grad.chunk(3), strict=True):
            want = getattr(attn, f"to_{name}").weight.grad
            assert (got - want).norm() < 1e-6 * want.norm(), (i, name)


def test_identity_is_x_transformers_value_residual():
    """`add_value_residual` with a mix that is not learned: ½V₁ + ½V_n, block 1 plain, V₁ attached.

    Equal: the states after four blocks and the gradients of every W_Q, W_K and W_V.
    """
    model = model_of("identity")
    same_states_and_gradients(model, theirs_with_our_weights(model, learned=False))


def test_learnable_is_their_learned_mix_where_that_does_not_look_at_the_token():
    """Their learned mix is V₁ + σ(Wx + b)⊙(V_n − V₁): a λ a token and head, that sum to one.

    With W = 0 it is one number a head, and equals `learnable` at (1 − σ(b), σ(b)).
    """
    model = model_of("learnable")
    decoder = theirs_with_our_weights(model, learned=True)
    source = torch.Generator().manual_seed(8)
    mixers = [decoder.layers[2 * i][1].to_value_residual_mix[0] for i in (1, 2, 3)]
    with torch.no_grad():
        for rule, mixer in zip(rules(model)[1:], mixers, strict=True):
            b = torch.randn(1, generator=source, dtype=torch.float64)
            mixer.weight.zero_()
            mixer.bias.copy_(b.expand(4))
            rule.lam.copy_(torch.cat([1 - b.sigmoid(), b.sigmoid()]))
    same_states_and_gradients(model, decoder)
