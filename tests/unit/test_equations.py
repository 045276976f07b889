"""Rules by their equations: what they equal at the start, and whole networks written out by hand.

`Published` follows the study's text and table (arXiv 2606.31859) without `rr.model`: pre-norm
sublayers with biases, learned positions, exact GELU, tied head, RMS with 1e-5 inside.
"""

import copy
import math

import pytest
import torch
from small import BODY, IDX, gradients, lively, model_of

from rr.analysis.probes import trace
from rr.errors import RRError
from rr.model import Model, costs, initialise, site_of, sizes
from rr.residual import make
from rr.specs import ModelConfig

# -- at the start -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "values", "other"),
    [
        ("layerscale:init=1", "own", "standard"),
        ("constant:c=1", "own", "standard"),
        ("scaled:reference=4", "own", "standard"),
        ("denseformer", "own", "standard"),
        ("denseformer:dilation=2,period=2", "own", "standard"),
        ("denseformer:dynamic=1", "own", "standard"),
        ("x0-scales", "own", "standard"),
        ("review:bias=60", "own", "standard"),
        ("review", "own", "constant"),
        ("attnres:neutral=1,size=1", "own", "standard"),
        ("attnres:neutral=1,size=4", "own", "standard"),
        ("attnres:neutral=1,size=3", "own", "standard"),
        ("attnres:neutral=1,query=zero", "own", "standard"),
        ("scales-skips", "own", "unet"),
        ("scales-skips:attnres=1", "own", "unet"),
        ("standard", "constant:lam=0", "standard"),
        ("standard", "dense", "standard"),
        ("standard", "neutreno:lam=0", "standard"),
    ],
)
def test_starts_as_another_network(rule, values, other):
    """Also the depth attention that is neutral at every scale: ε₀/k² on a mean of k sources."""
    mine, theirs = model_of(rule, values), model_of(other)
    torch.testing.assert_close(mine(IDX), theirs(IDX), rtol=1e-12, atol=1e-12)
    got, want = gradients(mine), gradients(theirs)
    assert len(got.keys() & want.keys()) >= 2 + 4 * (4 + 4 + 2)
    for name in got.keys() & want.keys():
        torch.testing.assert_close(got[name], want[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "rule",
    [
        *(f"attnres:size={size}" for size in (1, 2, 8)),
        "hyper-connections:dynamic=0",
        "hyper-connections:streams=2",
        "hyper-connections:sinkhorn=1",
    ],
)
def test_starts_as_the_standard_network_up_to_what_a_norm_removes(rule):
    standard, other = lively(model_of()), lively(model_of(rule))
    torch.testing.assert_close(other(IDX), standard(IDX), rtol=1e-6, atol=1e-6)
    got, want = gradients(other), gradients(standard)
    for name in want:
        error = (got[name] - want[name]).norm() / want[name].norm()
        assert error < 1e-6, (name, error)


@pytest.mark.parametrize(
    "options",
    ["", ":rank=2", ":granularity=head", ":granularity=scalar", ":gain=1", ":inputs=update"],
)
def test_every_form_of_the_gate_starts_at_one_half_and_learns_at_once(options):
    model = model_of(f"review{options}")
    assert all((step.r == 0.5).all() for step in trace(model, IDX))
    slopes = gradients(model)
    assert all(slopes[name].norm() > 0 for name in slopes if name.endswith("rule.weight"))


@pytest.mark.parametrize("rule", ["rezero", "rezero:norm=pre", "fixup"])
def test_is_the_identity_at_the_start(rule):
    for step in trace(model_of(rule), IDX):
        assert torch.equal(step.out, step.h)


def test_scaled_falls_with_passes_and_depth():
    def epsilon(n, blocks, law="linear"):
        config = ModelConfig(70, blocks, 4, 32, 64, n_loops=n, rule=f"scaled:law={law}")
        site = site_of(config, "mlp", 2)
        return make(config.rule, site, config).coefficient(site)

    assert epsilon(1, 12) == epsilon(4, 12, "none") == 1
    assert epsilon(8, 12) == pytest.approx(1 / 8)
    assert epsilon(1, 24) == pytest.approx(0.7071067811865476)
    assert epsilon(4, 48) == pytest.approx(0.5 / 4)
    assert epsilon(4, 12, "sqrt") == pytest.approx(0.5)


def test_x0_scales_start_as_nanochat_does_today():
    """λ 1.15 → 1.05 and μ 0.20 → 0.05 over four blocks, by hand."""
    model = model_of("x0-scales:start=nanochat")
    lam, mu = zip(*(layer.attn_rule.scales.tolist() for layer in model.layers), strict=True)
    assert lam == pytest.approx([1.15, 1.15 - 0.1 / 3, 1.15 - 0.2 / 3, 1.05])
    assert mu == pytest.approx([0.20, 0.15, 0.10, 0.05])


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("attnres:size=9", "^attnres: size must"),
        ("attnres:block=9", "block must be at most the 8 sublayers, got 9"),
        ("attnres:block=2,neutral=1", "leave size and neutral out"),
        ("x0-scales:start=nanochat,x0=0.1", "leave x0 out"),
        ("orthogonal:eps=0", "eps must be"),
        ("hyper-connections:start=published", "start=published is of the form sinkhorn=1"),
    ],
)
def test_options_that_do_not_go_together_are_one_line(rule, words):
    with pytest.raises(RRError, match=words):
        model_of(rule)


# -- networks written out -----------------------------------------------------------------------


def rms(x):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5)


def sigmoid(x):
    return 1 / (1 + torch.exp(-x))


def normed(rule, x):
    return rms(x) * getattr(rule, "gain", 1.0)


def attended(rule, sources):
    scores = torch.stack([(rms(v) * rule.key_gain) @ rule.query for v in sources])
    alpha = scores.exp() / scores.exp().sum(0)
    return sum(a.unsqueeze(-1) * v for a, v in zip(alpha, sources, strict=True))


def sublayers(model):
    """The embeddings, and each rule with its branch, a function of what it reads."""
    x0 = model.token(IDX) + model.position(torch.arange(16))
    branches = [f for b in model.layers for f in (lambda x, a=b.attn: a(x)[0], b.mlp)]
    return x0, list(zip(model.rules, branches, strict=True))


def is_hidden(model, h):
    torch.testing.assert_close(model.hidden(IDX), normed(model.final_rule, h))


@pytest.mark.parametrize("block", [1, 2, 3, 5, 8])
def test_attention_at_block_boundaries_by_hand(block):
    """Written as two nested loops, blocks and their sublayers, without a rule's state."""
    model = model_of(f"attnres:block={block}", moved=0.1)
    x0, layers = sublayers(model)
    sources = [x0]
    for first in range(0, 8, block):
        mean = attended(model.rules[first], sources)
        total = torch.zeros_like(x0)
        for rule, branch in layers[first : first + block]:
            total = total + branch(normed(rule, mean + total))
        sources.append(total)
    is_hidden(model, attended(model.final_rule, sources))
    assert sum(hasattr(rule, "query") for rule in model.rules) == -(-8 // block)
    if block == 1:  # every sublayer attends: the full form
        full = model_of("attnres")
        full.load_state_dict(model.state_dict())
        torch.testing.assert_close(model(IDX), full(IDX))


@pytest.mark.parametrize("embedding", ["plain", "rms"])
def test_scales_on_stream_and_embedding_by_hand(embedding):
    model = model_of(f"x0-scales:embedding={embedding}", moved=0.2)
    x0, layers = sublayers(model)
    h = x0 = x0 if embedding == "plain" else rms(x0)
    for i, (rule, branch) in enumerate(layers):
        if i % 2 == 0:
            h = rule.scales[0] * h + rule.scales[1] * x0
        h = h + branch(normed(rule, h))
    is_hidden(model, h)


@pytest.mark.parametrize(
    ("rule", "weight"),
    [("unet", 1.0), ("unet:gate=sigmoid", 0.18242552), ("unet:adds=own", 1.0)],
)
@pytest.mark.parametrize("blocks", [4, 5])
def test_mirrored_blocks_by_hand(rule, weight, blocks):
    """At the start: w = 1, or σ(−1.5) = 0.1824; block 1 meets the last one, the middle nobody."""
    model = model_of(rule, body=BODY.replace("n_layer=4", f"n_layer={blocks}"))
    h, layers = sublayers(model)
    left = []
    for i, (built, branch) in enumerate(layers):
        block, mirror = i // 2, blocks - 1 - i // 2
        if i % 2 == 0 and block > mirror:
            h = h + weight * (h if "own" in rule else left[mirror])
        h = h + branch(normed(built, h))
        if i % 2:
            left.append(h)
    is_hidden(model, h)
    assert sum(p.numel() for n, p in model.named_parameters() if n.endswith("rule.weight")) == 2


@pytest.mark.parametrize("attnres", [0, 1])
@pytest.mark.parametrize("gate", ["number", "sigmoid"])
@pytest.mark.parametrize("adds", ["early", "own"])
def test_scales_and_skips_by_hand(attnres, gate, adds):
    """λh + μx₀ + w·X_mirror before each block, after depth attention over what blocks added."""
    model = model_of(f"scales-skips:attnres={attnres},gate={gate},adds={adds}", moved=0.1)
    x0, layers = sublayers(model)
    h, left, added = x0, [], [x0]
    for b in range(4):
        (rule, attn), (mlp_rule, mlp) = layers[2 * b : 2 * b + 2]
        before = h
        if attnres:
            h = len(added) * attended(rule, added)
        h = rule.scales[0] * h + rule.scales[1] * x0
        if b >= 2:
            w = sigmoid(rule.weight) if gate == "sigmoid" else rule.weight
            h = h + w * (h if adds == "own" else left[3 - b])
        h = h + attn(normed(rule, h))
        h = h + mlp(normed(mlp_rule, h))
        left.append(h)
        added.append(h - before)
    is_hidden(model, h)


@pytest.mark.parametrize("norm", ["shared", "own"])
def test_parallel_branches_by_hand(norm):
    model = model_of(f"parallel:norm={norm}", moved=0.2)
    h, layers = sublayers(model)
    for (rule, attn), (mlp_rule, mlp) in zip(layers[::2], layers[1::2], strict=True):
        read = rule if norm == "shared" else mlp_rule
        h = h + attn(normed(rule, h)) + mlp(normed(read, h))
    is_hidden(model, h)


def mixes_block_outputs(model, mix) -> None:
    """After block b the stream is mix(rule, b, [X_0 … X_b])."""
    h, layers = sublayers(model)
    past = [h]
    for i, (rule, branch) in enumerate(layers):
        h = h + branch(normed(rule, h))
        if i % 2:
            past.append(h)
            h = mix(rule, i // 2 + 1, past)
    is_hidden(model, h)


def test_mudds_residual_stream_by_hand():
    """After block i: Σ_j (a_j + (GELU(X_i / rms · W1) · W2)_j) X_j, token by token, by loops."""

    def mix(rule, block, past):
        h = past[-1]
        mixed = torch.zeros_like(h)
        for b in range(h.shape[0]):
            for t in range(h.shape[1]):
                x = h[b, t] / (h[b, t].square().mean() + 1e-5).sqrt()
                hidden = x @ rule.first.T
                hidden = hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2)))
                assert len(hidden) == 64  # 4 · 5 sources at most, rounded up
                weight = rule.alpha + rule.second @ hidden
                assert weight.std() > 1e-3  # the token has its say
                mixed[b, t] = sum(w * one[b, t] for w, one in zip(weight, past, strict=True))
        return mixed

    mixes_block_outputs(model_of("denseformer:dynamic=1", moved=0.1), mix)


@pytest.mark.parametrize("form", ["rank=2", "granularity=head", "granularity=scalar", "gain=1"])
def test_each_form_of_the_gate_by_hand(form):
    """σ(W [rms h, rms u] + b): W = P·Q; a gate for 8 channels, or for all 32; gains on the RMS."""
    model = model_of(f"review:{form}", moved=0.3)
    for rule, step in zip(model.rules, trace(model, IDX), strict=False):  # the last one only reads
        h, u = rms(step.h), rms(step.u)
        if form == "gain=1":
            h, u = h * rule.inner_gain[0], u * rule.inner_gain[1]
        w = rule.weight @ rule.down if form == "rank=2" else rule.weight
        r = sigmoid(h @ w[:, :32].T + u @ w[:, 32:].T + rule.bias)
        r = r[..., [channel * r.shape[-1] // 32 for channel in range(32)]]
        torch.testing.assert_close(step.out, step.h + r * step.u)


def test_gtrxls_relu_by_hand():
    model = model_of("gtrxl:relu=1", moved=0.1)
    for rule, step in zip(model.rules, trace(model, IDX), strict=False):
        h, u = step.h, step.u * (step.u > 0)
        to_r, to_z, to_g = rule.from_update.view(3, 32, 32)
        from_r, from_z = rule.from_state.view(2, 32, 32)
        z = sigmoid(u @ to_z.T + h @ from_z.T - rule.bias)
        r = sigmoid(u @ to_r.T + h @ from_r.T)
        candidate = torch.tanh(u @ to_g.T + (r * h) @ rule.candidate.T)
        torch.testing.assert_close(step.out, (1 - z) * h + z * candidate)


def test_denseformers_period_and_dilation_by_hand():
    """Four blocks: after the second outputs 0 and 2 are mixed, after the fourth 0, 2 and 4."""

    def mix(rule, block, past):
        mixed = {2: (0, 2), 4: (0, 2, 4)}.get(block)
        if mixed is None:
            return past[-1]
        assert len(rule.alpha) == len(mixed)
        return sum(a * past[j] for a, j in zip(rule.alpha, mixed, strict=True))

    mixes_block_outputs(model_of("denseformer:period=2,dilation=2", moved=0.3), mix)


def test_orthogonal_updates_by_gram_and_schmidt():
    """The second vector of a QR factorisation of (h, u) is what is added, with its length."""
    for step in trace(model_of("orthogonal:eps=1e-30", moved=0.2), IDX):
        h, u, added = (x.flatten(0, 1) for x in (step.h, step.u, step.out - step.h))
        q, r = torch.linalg.qr(torch.stack([h, u], -1))
        torch.testing.assert_close(added, q[..., 1] * r[:, 1, 1:2], rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(step.kept * step.h + step.u, step.out)


@pytest.mark.parametrize(("spec", "alpha"), [("keel", 8), ("keel:alpha=3", 3), ("deepnorm", None)])
def test_post_norm_by_hand(spec, alpha):
    """norm(α h + f(h)) eight times: Keel's branch reads norm(h), and its α is 8; (2·4)^¼."""
    model = model_of(spec, moved=0.1)
    h, layers = sublayers(model)
    for rule, branch in layers:
        if alpha:
            h = rms(alpha * h + branch(normed(rule, h))) * rule.out_gain
        else:
            h = rms(8**0.25 * h + branch(h)) * rule.gain
    torch.testing.assert_close(model.hidden(IDX), h)
    for step in trace(model, IDX):  # what the norm keeps of the state
        torch.testing.assert_close(step.kept * (step.h + step.u / (alpha or 8**0.25)), step.out)


def test_delta_updates_by_hand():
    """The matrix (I − β k kᵀ) applied to h, plus β v k, token by token."""
    model = model_of("delta", moved=0.1)
    h, layers = sublayers(model)
    for rule, branch in layers:
        u = branch(normed(rule, h))
        k = u / u.norm(dim=-1, keepdim=True)
        beta = 2 * sigmoid(rms(h) @ rule.step[0] + rule.bias[0])
        v = 4 * sigmoid(h @ rule.value[0] + rule.bias[1])
        erase = torch.eye(32).double() - beta[..., None, None] * k[..., None] * k[..., None, :]
        h = (erase @ h[..., None])[..., 0] + (beta * v).unsqueeze(-1) * k
    is_hidden(model, h)


@pytest.mark.parametrize("start", [1, 2, 9])
def test_two_lanes_by_hand(start):
    """One stream up to the first block with two lanes, then two; four blocks."""
    model = model_of(f"lanes:start={start}", moved=0.1)
    h, layers = sublayers(model)
    lanes = [h, h]
    for i, (rule, branch) in enumerate(layers):
        u = branch(normed(rule, lanes[i % 2]))
        weights = rule.share if i // 2 + 1 >= start else rule.share.repeat(2)
        lanes = [rule.keep * lane + w * u for lane, w in zip(lanes, weights, strict=True)]
    is_hidden(model, sum(lanes) / 2)


def test_a_group_reads_its_own_channels_of_both_inputs():
    def gate_of(rule, weight):
        config = ModelConfig(70, 1, 1, 8, 8, rule=rule)
        built = make(rule, site_of(config, "attn", 1), config).double()
        with torch.no_grad():
            built.weight.copy_(weight)
        return built.gate(h, u)

    grouped = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0)).double()
    dense = torch.zeros(8, 16, dtype=torch.float64)
    for g in range(2):
        rows = slice(4 * g, 4 * g + 4)
        dense[rows, 4 * g : 4 * g + 4] = grouped[g, :, :4]
        dense[rows, 8 + 4 * g : 12 + 4 * g] = grouped[g, :, 4:]
    h, u = torch.randn(2, 1, 1, 8, dtype=torch.float64)
    torch.testing.assert_close(gate_of("review:groups=2", grouped), gate_of("review", dense))


# -- value rules that are not mixtures of values --------------------------------------------------


@pytest.mark.parametrize("granularity", ["channel", "head"])
def test_gated_attention_by_hand(granularity):
    """Attention in einsums, its output times σ(W x) head by head, then the projection."""
    model = model_of("standard", f"gated-attention:granularity={granularity}", moved=0.1)
    attention = model.layers[1].attn
    x = torch.randn(2, 5, 32, dtype=torch.float64)
    q, k, v = attention.qkv(x).unflatten(-1, (3, 4, 8)).unbind(2)
    scores = torch.einsum("bthe,bshe->bhts", q, k) / 8**0.5
    scores = scores.masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf)
    y = torch.einsum("bhts,bshe->bthe", scores.softmax(-1), v)
    gate = sigmoid(x @ attention.rule.weight.T)
    gate = gate.unflatten(-1, (4, 8)) if granularity == "channel" else gate.unsqueeze(-1)
    torch.testing.assert_close(attention(x)[0], attention.out((y * gate).flatten(2)))
    start = model_of("standard", "gated-attention").layers[0].attn.rule.weight
    assert start.std().item() == pytest.approx(0.02, rel=0.1)


def test_value_embeddings_by_hand():
    """Own values plus 3σ(W x_1…12), head by head, times the token's row of a table."""
    model = model_of("standard", "embeddings", moved=0.1)
    tables = [layer.attn.rule.has_table for layer in model.layers]
    assert tables == [False, True, False, True]  # every second block, the last one included
    x = torch.randn(*IDX.shape, 32, dtype=torch.float64)
    rule = model.layers[3].attn.rule
    v = torch.randn(*IDX.shape, 4, 8, dtype=torch.float64)
    gate = 3 * sigmoid(x[..., :12] @ rule.weight.T)
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


# -- the study's model ----------------------------------------------------------------------------


class Published:
    """Attention and MLP with explicit sums over heads and positions; w: name -> float64 tensor."""

    def __init__(self, w, rule, n_layer, n_head):
        self.w, self.rule, self.n_layer, self.n_head = w, rule, n_layer, n_head

    def affine(self, name, x):
        return x @ self.w[f"{name}.weight"].T + self.w[f"{name}.bias"]

    def attention(self, i, x):
        d = x.shape[-1]
        e = d // self.n_head
        qkv = self.affine(f"layers.{i}.attn.qkv", x)
        heads = []
        for j in range(self.n_head):
            q, k, v = (qkv[..., part * d + j * e : part * d + (j + 1) * e] for part in range(3))
            scores = q @ k.transpose(-1, -2) / math.sqrt(e)
            past = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
            weights = torch.exp(scores - scores.amax(-1, keepdim=True)) * past
            heads.append(weights / weights.sum(-1, keepdim=True) @ v)
        return self.affine(f"layers.{i}.attn.out", torch.cat(heads, -1))

    def mlp(self, i, x):
        a = self.affine(f"layers.{i}.mlp.up", x)
        gelu = a * 0.5 * (1 + torch.erf(a / math.sqrt(2)))
        return self.affine(f"layers.{i}.mlp.down", gelu)

    def write(self, rule, h, u):
        if self.rule == "standard":
            return h + u
        w, b = self.w[f"{rule}.weight"], self.w[f"{rule}.bias"]
        if self.rule == "highway":
            return h + sigmoid(h @ w.T + b) * u
        d = h.shape[-1]
        r = sigmoid(rms(h) @ w[:, :d].T + rms(u) @ w[:, d:].T + b)
        return h + r * u if self.rule == "review" else (1 - r) * h + r * u

    def loss(self, idx, targets):
        h = self.w["token.weight"][idx] + self.w["position.weight"][: idx.shape[1]]
        for i in range(self.n_layer):
            for kind, f in (("attn", self.attention), ("mlp", self.mlp)):
                rule = f"layers.{i}.{kind}_rule"
                u = f(i, rms(h) * self.w[f"{rule}.gain"])
                h = self.write(rule, h, u)
        logits = (rms(h) * self.w["final_rule.gain"]) @ self.w["token.weight"].T
        p = torch.exp(logits - logits.amax(-1, keepdim=True))
        p = p / p.sum(-1, keepdim=True)
        return logits, -torch.log(p.gather(-1, targets[..., None])).mean()


@pytest.mark.parametrize("rule", ["standard", "highway", "review", "review-convex"])
def test_logits_loss_and_gradients_equal_the_published_equations(rule):
    rung = "nano:n_layer=3,d_model=24,n_head=3,seq_len=12"
    model = Model(sizes.arm(rung, rule, vocab_size=90, protocol="paper"))
    initialise(model, seed=5, shared=False)
    source = torch.Generator().manual_seed(6)
    with torch.no_grad():  # a Review gate would hide mistakes behind its initial zeros
        for p in model.parameters():
            p += 0.2 * torch.randn(p.shape, generator=source)
    w = {n: p.detach().double().requires_grad_() for n, p in model.named_parameters()}
    idx, targets = torch.randint(90, (2, 4, 12), generator=torch.Generator().manual_seed(7))

    logits, loss = Published(w, rule, 3, 3).loss(idx, targets)
    loss.backward()
    with torch.no_grad():
        assert (model(idx).double() - logits).norm() < 1e-5 * logits.norm()
        exact = copy.deepcopy(model).double()(idx)
    torch.testing.assert_close(exact, logits.detach(), rtol=1e-9, atol=1e-10)
    ours = model(idx, targets)
    assert abs(ours.item() / loss.item() - 1) < 1e-5
    ours.backward()
    for name, p in model.named_parameters():
        error = (p.grad.double() - w[name].grad).norm() / (w[name].grad.norm() + 1e-12)
        assert error < 1e-5 or w[name].grad.norm() < 1e-7, (name, error)


def test_the_initial_law_is_the_published_one():
    config = sizes.arm("nano:n_layer=4,d_model=256,n_head=4", "highway", 5000, protocol="paper")
    model = initialise(Model(config), seed=0, shared=False)
    for name, p in model.named_parameters():
        if name.endswith("bias"):
            assert (p == 0).all(), name
        elif name.endswith("gain"):
            assert (p == 1).all(), name
        else:
            std = 0.02 / math.sqrt(8) if name.endswith(("out.weight", "down.weight")) else 0.02
            assert abs(p.std().item() / std - 1) < 0.02, name
            assert abs(p.mean().item()) < 4 * std / math.sqrt(p.numel()), name


def test_arms_share_every_tensor_they_have_in_common():
    arms = [
        dict(model_of(rule, seed=seed).named_parameters())
        for rule, seed in (("standard", 3), ("review", 3), ("highway", 3), ("standard", 4))
    ]
    common = set.intersection(*(set(a) for a in arms))
    assert len(common) == 2 + 4 * (4 + 4 + 2) + 1
    for name in common:
        assert all(torch.equal(arms[0][name], a[name]) for a in arms[1:3]), name
    assert not torch.equal(arms[0]["token.weight"], arms[3]["token.weight"])


@pytest.mark.parametrize(
    ("shape", "tied", "params"),
    [
        ((128256, 12, 12, 768, 2048), True, 183_454_464),
        ((128256, 48, 12, 768, 2048), True, 438_313_728),
        ((50277, 4, 2, 16, 56), False, 1_620_000),
        ((50277, 8, 8, 512, 1792), False, 81_900_000),
        ((50277, 12, 12, 768, 2688), False, 179_870_000),
        ((50277, 24, 16, 1024, 3584), False, 467_920_000),
    ],
)
def test_published_llama_counts(shape, tied, params):
    """Two of the looped paper's to the last parameter; ResFormer's four, printed to 10⁴."""
    count = costs.count(ModelConfig(*shape, flavour="llama", tied=tied, pad_vocab=False))
    assert count == params or not tied and round(count, -4) == params
