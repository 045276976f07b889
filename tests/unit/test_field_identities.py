"""Facts that hold exactly between the field's rules, and second implementations of some."""

import pytest
import torch

import rr
from rr.analysis.probes import trace
from rr.config import ModelConfig, RRError
from rr.model import Model, initialise, ladder, site_of
from rr.residual import make

BODY = "nano:n_layer=4,d_model=32,n_head=4,seq_len=16"
IDX, TARGETS = torch.randint(70, (2, 3, 16), generator=torch.Generator().manual_seed(0))


def model_of(rule="standard", values="own", body=BODY, seed=0, **arm):
    return initialise(Model(ladder.arm(body, rule, 70, values=values, **arm)), seed).double()


def gradients(model):
    model(IDX, TARGETS).backward()
    return {name: p.grad for name, p in model.named_parameters()}


def lively(model):
    """Scale the embeddings up, so that the 1e-5 inside every RMS is nothing beside the stream."""
    with torch.no_grad():
        model.token.weight *= 1e4
        model.position.weight *= 1e4
        for layer in model.layers:
            layer.attn.out.weight *= 1e5
            layer.mlp.down.weight *= 1e5
    return model


@pytest.mark.parametrize(
    ("rule", "values"),
    [
        ("layerscale:init=1", "own"),
        ("constant:c=1", "own"),
        ("scaled:reference=4", "own"),
        ("denseformer", "own"),
        ("denseformer:dilation=2,period=2", "own"),
        ("standard", "constant:lam=0"),
        ("standard", "dense"),
        ("standard", "neutreno:lam=0"),
    ],
)
def test_equals_standard_at_the_start(rule, values):
    standard, other = model_of(), model_of(rule, values)
    torch.testing.assert_close(other(IDX), standard(IDX), rtol=1e-12, atol=1e-12)
    got, want = gradients(other), gradients(standard)
    for name in want:
        torch.testing.assert_close(got[name], want[name], rtol=1e-9, atol=1e-12)


def test_deepnorm_says_what_its_norm_keeps_of_the_state():
    """out = kept·h + (kept/α)·u: the norm divides both by the same length."""
    model = model_of("deepnorm")
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)).double()
    for step, rule in zip(trace(model, IDX), model.rules, strict=True):
        alpha = 8**0.25  # (2M)^¼ of 4 blocks
        torch.testing.assert_close(step.kept * (step.h + step.u / alpha), step.out)
        assert rule.carry(rule.site) is None and step.kept.shape == step.h.shape


@pytest.mark.parametrize("rule", ["rezero", "rezero:norm=pre", "fixup"])
def test_is_the_identity_at_the_start(rule):
    for step in trace(model_of(rule), IDX):
        assert torch.equal(step.out, step.h)


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_zero_query_attention_residuals_are_the_standard_network(size):
    """Full, in blocks, one block: a uniform mean is the sum up to what the next norm removes."""
    standard, attnres = lively(model_of()), lively(model_of(f"attnres:size={size}"))
    torch.testing.assert_close(attnres(IDX), standard(IDX), rtol=1e-6, atol=1e-6)
    got, want = gradients(attnres), gradients(standard)
    for name in want:
        error = (got[name] - want[name]).norm() / want[name].norm()
        assert error < 1e-6, (name, error)


@pytest.mark.parametrize("options", ["size=1", "size=4", "size=8", "query=zero"])
def test_neutral_depth_attention_starts_as_the_standard_network_at_every_scale(options):
    """ε₀/k² on a mean of k sources is ε₀ on their sum: equal, for small streams too."""
    standard, attnres = model_of(), model_of(f"attnres:neutral=1,{options}")
    torch.testing.assert_close(attnres(IDX), standard(IDX), rtol=1e-12, atol=1e-12)
    got, want = gradients(attnres), gradients(standard)
    for name in want:
        torch.testing.assert_close(got[name], want[name], rtol=1e-9, atol=1e-12)
    fixed = model_of(f"attnres:{options}")(IDX)  # what the option is for
    assert (fixed - standard(IDX)).abs().max() > 0.01 * standard(IDX).abs().max()


@pytest.mark.parametrize("size", ["3", "16", "0", "-2", "1.5", "half"])
def test_a_block_size_that_does_not_divide_is_one_line(size):
    with pytest.raises(RRError, match="^attnres: size must") as raised:
        model_of(f"attnres:size={size}")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "options",
    ["dynamic=0", "dynamic=1", "dynamic=1,streams=2", "sinkhorn=1", "sinkhorn=1,dynamic=0"],
)
def test_hyper_connections_start_as_the_standard_network(options):
    standard, hyper = lively(model_of()), lively(model_of(f"hyper-connections:{options}"))
    torch.testing.assert_close(hyper(IDX), standard(IDX), rtol=1e-6, atol=1e-6)


def test_a_partial_sum_seeded_with_the_embedding_is_another_network(monkeypatch):
    """The bug that a literal reading of the paper's pseudo-code invites is detected."""
    rule = type(
        make(
            "attnres",
            site_of(ModelConfig(70, 4, 4, 32, 64), "attn", 1),
            ModelConfig(70, 4, 4, 32, 64),
        )
    )

    def seeded(self, state, u):
        if (self.site.sublayer - 1) % self.opt.size == 0:
            return [*state, state[0] + u]
        return [*state[:-1], state[-1] + u]

    monkeypatch.setattr(rule, "write", seeded)
    wrong, standard = lively(model_of("attnres:size=4")), lively(model_of())
    assert (wrong(IDX) - standard(IDX)).abs().max() > 1e-2 * standard(IDX).abs().max()


def test_scaled_at_one_pass_and_reference_depth_is_standard_and_falls_as_told():
    def epsilon(n, blocks, law="linear"):
        config = ModelConfig(70, blocks, 4, 32, 64, n_loops=n, rule=f"scaled:law={law}")
        site = site_of(config, "mlp", 2)
        return make(config.rule, site, config).coefficient(site)

    assert epsilon(1, 12) == 1
    assert epsilon(8, 12) == pytest.approx(1 / 8)
    assert epsilon(1, 24) == pytest.approx(0.7071067811865476)
    assert epsilon(4, 48) == pytest.approx(0.5 / 4)
    assert epsilon(4, 12, "sqrt") == pytest.approx(0.5)
    assert epsilon(4, 12, "none") == 1


def test_three_gates_of_equal_size():
    """State, update, and both through two groups: the ablation is at equal gate weights."""
    rules = ("state-gate", "update-gate", "review:groups=2")
    counts = {ladder.rule_params(ladder.arm(BODY, rule, 70)) for rule in rules}
    assert counts == {8 * (32 * 32 + 32)}


def test_a_group_reads_its_own_channels_of_both_inputs():
    config = ModelConfig(70, 1, 1, 8, 8, rule="review:groups=2")
    rule = make(config.rule, site_of(config, "attn", 1), config).double()
    with torch.no_grad():
        rule.weight.copy_(torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0)))
    h = torch.randn(1, 1, 8, dtype=torch.float64, requires_grad=True)
    u = torch.randn(1, 1, 8, dtype=torch.float64, requires_grad=True)
    dense = torch.zeros(8, 16, dtype=torch.float64)
    for g in range(2):
        rows = slice(4 * g, 4 * g + 4)
        dense[rows, 4 * g : 4 * g + 4] = rule.weight[g, :, :4]
        dense[rows, 8 + 4 * g : 12 + 4 * g] = rule.weight[g, :, 4:]
    other = make("review", site_of(config, "attn", 1), config).double()
    with torch.no_grad():
        other.weight.copy_(dense)
    torch.testing.assert_close(rule.gate(h, u), other.gate(h, u))


def test_low_rank_head_and_scalar_gates_start_at_one_half_and_learn():
    for rule in (
        "review:rank=2",
        "review:granularity=head",
        "review:granularity=scalar",
        "review:gain=1",
        "review:inputs=update",
    ):
        model = model_of(rule)
        assert all((step.r == 0.5).all() for step in trace(model, IDX)), rule
        assert gradients(model)["layers.1.mlp_rule.weight"].norm() > 0, rule


# -- published counts -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "params"),
    [
        (dict(vocab_size=128256, n_layer=12, n_head=12, d_model=768, d_ff=2048), 183_454_464),
        (dict(vocab_size=128256, n_layer=24, n_head=12, d_model=768, d_ff=2048), 268_407_552),
        (dict(vocab_size=128256, n_layer=48, n_head=12, d_model=768, d_ff=2048), 438_313_728),
        (dict(n_layer=4, n_head=2, d_model=16, d_ff=56), 1_620_000),
        (dict(n_layer=8, n_head=8, d_model=512, d_ff=1792), 81_900_000),
        (dict(n_layer=12, n_head=12, d_model=768, d_ff=2688), 179_870_000),
        (dict(n_layer=24, n_head=16, d_model=1024, d_ff=3584), 467_920_000),
    ],
)
def test_published_llama_counts(shape, params):
    """The looped paper's three to the last parameter; ResFormer's four, printed to 10⁴."""
    exact = "vocab_size" in shape
    config = ModelConfig(
        **{"vocab_size": 50277, **shape}, flavour="llama", tied=exact, pad_vocab=False
    )
    count = ladder.count(config)
    assert count == params if exact else round(count, -4) == params


def test_rotary_positions_turn_pairs_and_see_only_distance():
    from rr.model.transformer import rotate, turns

    def turned(x, past):
        return rotate(x, turns(x, 8, past))

    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64)
    score = [(turned(q, p) * turned(k, p + 3)).sum() for p in (0, 5, 40)]
    torch.testing.assert_close(score[0], score[1])
    torch.testing.assert_close(score[0], score[2])
    x = torch.zeros(1, 1, 1, 8, dtype=torch.float64)
    x[..., 0] = 1
    by_two = turned(x, 2)
    assert by_two[..., 0].item() == pytest.approx(torch.cos(torch.tensor(2.0)).item())
    assert by_two[..., 4].item() == pytest.approx(torch.sin(torch.tensor(2.0)).item())


# -- depth attention at block boundaries, scales and skips, the gate inside attention -----------


def randomised(rule, values="own", scale=0.1):
    model = model_of(rule, values)
    source = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p += scale * torch.randn(p.shape, generator=source).double()
    return model


def run_branches(model):
    """The embeddings, and the eight branches as functions of what they read."""
    x0 = model.token(IDX) + model.position(torch.arange(16))
    branches = [
        branch for layer in model.layers for branch in (lambda x, a=layer.attn: a(x)[0], layer.mlp)
    ]
    return x0, branches


def normed(rule, x):
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * rule.gain


def attended(rule, sources):
    scores = torch.stack([normed_key(rule, v) @ rule.query for v in sources])
    alpha = scores.exp() / scores.exp().sum(0)
    return sum(a.unsqueeze(-1) * v for a, v in zip(alpha, sources, strict=True))


def normed_key(rule, v):
    return v / (v.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * rule.key_gain


@pytest.mark.parametrize("block", [1, 2, 4, 8])
def test_attention_at_block_boundaries_by_hand(block):
    """Written as two nested loops, blocks and their sublayers, without a rule's state."""
    model = randomised(f"attnres:block={block}")
    x0, branches = run_branches(model)
    sources = [x0]
    for first in range(0, 8, block):
        mean = attended(model.rules[first], sources)
        total = torch.zeros_like(x0)
        for i in range(first, first + block):
            total = total + branches[i](normed(model.rules[i], mean + total))
        sources.append(total)
    final = model.final_rule
    torch.testing.assert_close(model.hidden(IDX), normed(final, attended(final, sources)))
    assert sum(hasattr(rule, "query") for rule in model.rules) == 8 // block
    if block == 1:  # every sublayer attends: the full form
        full = model_of("attnres")
        full.load_state_dict(model.state_dict())
        torch.testing.assert_close(model(IDX), full(IDX))


def test_block_is_a_form_of_its_own():
    for options, words in (
        ("block=3", "block must divide the 8 sublayers, got 3"),
        ("block=2,size=2", "leave size and neutral out"),
        ("block=2,neutral=1", "leave size and neutral out"),
    ):
        with pytest.raises(RRError, match=words):
            model_of(f"attnres:{options}")


def test_x0_scales_start_as_nanochat_does_today():
    """λ 1.15 → 1.05 and μ 0.20 → 0.05 over four blocks, by hand."""
    model = model_of("x0-scales:start=nanochat")
    starts = [layer.attn_rule.scales.tolist() for layer in model.layers]
    lam, mu = zip(*starts, strict=True)
    assert lam == pytest.approx([1.15, 1.15 - 0.1 / 3, 1.15 - 0.2 / 3, 1.05])
    assert mu == pytest.approx([0.20, 0.15, 0.10, 0.05])
    with pytest.raises(RRError, match="leave x0 out"):
        model_of("x0-scales:start=nanochat,x0=0.1")


@pytest.mark.parametrize("attnres", [0, 1])
@pytest.mark.parametrize("gate", ["number", "sigmoid"])
def test_scales_and_skips_by_hand(attnres, gate):
    """λh + μx₀ + w·X_mirror before each block, after depth attention over what blocks added."""
    model = randomised(f"scales-skips:attnres={attnres},gate={gate}")
    x0, branches = run_branches(model)
    h, left, added = x0, [], [x0]
    for b in range(4):
        rule, mlp = model.rules[2 * b : 2 * b + 2]
        before = h
        if attnres:
            h = len(added) * attended(rule, added)
        h = rule.scales[0] * h + rule.scales[1] * x0
        if b >= 2:
            w = rule.weight.sigmoid() if gate == "sigmoid" else rule.weight
            h = h + w * left[3 - b]
        h = h + branches[2 * b](normed(rule, h))
        h = h + branches[2 * b + 1](normed(mlp, h))
        left.append(h)
        added.append(h - before)
    torch.testing.assert_close(model.hidden(IDX), normed(model.final_rule, h))


def test_depth_attention_on_scales_and_skips_starts_as_without_it():
    base, more = model_of("scales-skips"), model_of("scales-skips:attnres=1")
    torch.testing.assert_close(base(IDX), more(IDX))
    plain = model_of("unet")
    torch.testing.assert_close(base(IDX), plain(IDX))


@pytest.mark.parametrize("granularity", ["channel", "head"])
def test_gated_attention_by_hand(granularity):
    """Attention in einsums, its output times σ(W x) head by head, then the projection."""
    model = randomised("standard", f"gated-attention:granularity={granularity}")
    attention = model.layers[1].attn
    x = torch.randn(2, 5, 32, dtype=torch.float64)
    q, k, v = attention.qkv(x).unflatten(-1, (3, 4, 8)).unbind(2)
    scores = torch.einsum("bthe,bshe->bhts", q, k) / 8**0.5
    scores = scores.masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf)
    y = torch.einsum("bhts,bshe->bthe", scores.softmax(-1), v)
    gate = 1 / (1 + torch.exp(-(x @ attention.rule.weight.T)))
    gate = gate.unflatten(-1, (4, 8)) if granularity == "channel" else gate.unsqueeze(-1)
    expected = attention.out((y * gate).flatten(2))
    torch.testing.assert_close(attention(x)[0], expected)
    start = model_of("standard", "gated-attention").layers[0].attn.rule.weight
    assert start.std().item() == pytest.approx(0.02, rel=0.1)


# -- Keel, delta updates, two lanes ---------------------------------------------------------------


def test_keel_by_hand():
    """norm(α h + f(norm(h))) eight times, α = 8; the head reads what the last norm left."""
    model = randomised("keel")
    h, branches = run_branches(model)
    for rule, branch in zip(model.rules, branches, strict=True):
        total = 8 * h + branch(normed(rule, h))
        h = total / (total.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * rule.out_gain
    torch.testing.assert_close(model.hidden(IDX), h)
    assert model_of("keel:alpha=3").rules[0].alpha(model.rules[0].site) == 3


def test_delta_updates_by_hand():
    """The matrix (I − β k kᵀ) applied to h, plus β v k, token by token."""
    model = randomised("delta")
    h, branches = run_branches(model)
    for rule, branch in zip(model.rules, branches, strict=True):
        u = branch(normed(rule, h))
        x = h / (h.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
        k = u / u.norm(dim=-1, keepdim=True)
        beta = 2 / (1 + torch.exp(-(x @ rule.step[0] + rule.bias[0])))
        v = 4 / (1 + torch.exp(-(h @ rule.value[0] + rule.bias[1])))
        erase = torch.eye(32).double() - beta[..., None, None] * k[..., None] * k[..., None, :]
        h = (erase @ h[..., None])[..., 0] + (beta * v).unsqueeze(-1) * k
    torch.testing.assert_close(model.hidden(IDX), normed(model.final_rule, h))


@pytest.mark.parametrize(("start", "first"), [(2, 2), (1, 1), (9, 9)])
def test_two_lanes_by_hand(start, first):
    """One stream up to the first block with two lanes, then two; four blocks."""
    model = randomised(f"lanes:start={start}")
    h, branches = run_branches(model)
    rules = iter(zip(model.rules, branches, strict=True))
    lanes = [h, h]
    for block in range(1, 5):
        for reads in (0, 1):
            rule, branch = next(rules)
            u = branch(normed(rule, lanes[reads]))
            weights = rule.share if block >= first else rule.share.repeat(2)
            lanes = [rule.keep * lane + w * u for lane, w in zip(lanes, weights, strict=True)]
    torch.testing.assert_close(model.hidden(IDX), normed(model.final_rule, sum(lanes) / 2))


# -- value embeddings -----------------------------------------------------------------------------


def test_value_embeddings_by_hand():
    """Own values plus 3σ(W x_1…12), head by head, times the token's row of a table."""
    model = randomised("standard", "embeddings")
    tables = [layer.attn.rule.has_table for layer in model.layers]
    assert tables == [False, True, False, True]  # every second block, the last one included
    x = torch.randn(*IDX.shape, 32, dtype=torch.float64)
    rule = model.layers[3].attn.rule
    v = torch.randn(*IDX.shape, 4, 8, dtype=torch.float64)
    gate = 3 / (1 + torch.exp(-(x[..., :12] @ rule.weight.T)))
    expected = v + gate[..., None] * rule.table[IDX].reshape(*IDX.shape, 4, 8)
    torch.testing.assert_close(rule.added(v.transpose(1, 2), x, IDX), expected.transpose(1, 2))
    # and the model hands its token ids on: another table, another output, at that token alone
    before = model.hidden(IDX)
    with torch.no_grad():
        rule.table[IDX[0, 5]] += 1
    moved = (model.hidden(IDX) - before).abs().amax(-1) > 1e-9
    first = (IDX == IDX[0, 5]).int().cumsum(1) > 0  # from the token's first place on
    assert torch.equal(moved, first)


def test_value_embeddings_start_as_published():
    """Tables as large as a block's own values; gates a little above one half of three."""
    attention = model_of("standard", "embeddings").layers[1].attn
    rule, x = attention.rule, torch.randn(500, 32, dtype=torch.float64)
    own = attention.qkv(x).chunk(3, -1)[2]
    assert rule.table.std().item() == pytest.approx(own.std().item(), rel=0.1)
    assert 0 <= rule.weight.min() and 0.015 < rule.weight.max() <= 0.02
    assert rule.begin(IDX) is IDX


def test_value_embeddings_are_not_for_attached_models(tiny_gpt2):
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained("gpt2")
    with pytest.raises(RRError, match="token ids") as caught:
        rr.attach(model, "standard", "embeddings")
    assert "\n" not in str(caught.value) and not hasattr(model, "rr_residuals")
