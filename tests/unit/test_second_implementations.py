"""Rules against other people's code on identical weights, where both compute the same thing.

The libraries are `hyper-connections` and `x-transformers` from PyPI. Each test says what the two
do differently elsewhere, and how the weights are chosen so that it does not matter here.
"""

import pytest
import torch
from hyper_connections.hyper_connections import HyperConnections
from torch import nn
from torch.nn.utils.stateless import _reparametrize_module
from x_transformers.x_transformers import AttentionResidual, GRUGating

from rr.model import site_of
from rr.ops import rms_norm
from rr.residual import make
from rr.specs import ModelConfig

N, D, B, T = 4, 6, 2, 3
# A stream so large that the 1e-5 which `rr` has inside every RMS is nothing beside it (the
# libraries have none): the comparisons are then exact to rounding.
LARGE = 1e4


def rule_of(spec, sublayer=2, blocks=2, width=D):
    config = ModelConfig(70, blocks, 1, width, 8, rule=spec)
    kind = "final" if sublayer > 2 * blocks else ("mlp", "attn")[sublayer % 2]
    rule = make(spec, site_of(config, kind, sublayer), config).double()
    with torch.no_grad():
        rule.reset(lambda tensor, std: None)
    return rule


def draw(*shape, seed=0, scale=1.0):
    source = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(*shape, generator=source, dtype=torch.float64)).requires_grad_()


def lively_rule(spec, sublayer=2):
    """A rule whose every parameter is random."""
    rule = rule_of(spec, sublayer)
    with torch.no_grad():
        for i, p in enumerate(rule.parameters()):
            p.copy_(0.5 * draw(*p.shape, seed=40 + i))
    return rule


def same(ours, theirs, ours_of, theirs_of, rtol=1e-9, atol=1e-9):
    """Outputs, and the gradients of one random sum of them by matching tensors."""
    torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol)
    weight = draw(*ours.shape, seed=99).detach()
    got = torch.autograd.grad((ours * weight).sum(), ours_of, retain_graph=True)
    want = torch.autograd.grad((theirs * weight).sum(), theirs_of, retain_graph=True)
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w.reshape(g.shape), rtol=rtol, atol=atol * g.abs().max())


def folded(streams):
    """(B, T, n, d) -> the library's (B·n, T, d)."""
    return streams.permute(0, 2, 1, 3).flatten(0, 1)


def unfolded(flat):
    return flat.unflatten(0, (-1, N)).permute(0, 2, 1, 3)


# -- hyper-connections --------------------------------------------------------------------------


@pytest.mark.parametrize("sublayer", [1, 2, 7])
def test_hyper_connections_start_as_the_librarys_do(sublayer):
    rule = rule_of(f"hyper-connections:streams={N}", sublayer, blocks=4)
    theirs = HyperConnections(N, dim=D, layer_index=sublayer - 1)
    assert torch.equal(rule.static[:, :-1], theirs.static_alpha.double())
    assert torch.equal(rule.static[:, -1], theirs.static_beta.double())
    assert not rule.dynamic.any() and not theirs.dynamic_alpha_fn.any()
    assert rule.scale.tolist() == pytest.approx([theirs.dynamic_alpha_scale.item()] * 2)


@pytest.mark.parametrize("dynamic", [0, 1])
def test_hyper_connections_are_the_librarys(dynamic):
    """Read, mix and write, static and dynamic, with gradients by every weight and input.

    The library's norm before the projection has a gain of its own, which stays at 1.
    """
    rule = rule_of(f"hyper-connections:streams={N},dynamic={dynamic}")
    theirs = HyperConnections(N, dim=D, layer_index=1).double()
    pairs = [
        (theirs.static_alpha, rule.static, slice(N + 1)),
        (theirs.static_beta, rule.static, -1),
    ]
    with torch.no_grad():
        rule.static += 0.1 * draw(N, N + 2)
        if dynamic:
            rule.dynamic.copy_(draw(D, N + 2, seed=1))
            rule.scale.copy_(torch.tensor([0.3, 0.2]))
            theirs.dynamic_alpha_scale.copy_(rule.scale[0])
            theirs.dynamic_beta_scale.copy_(rule.scale[1])
            pairs.append((theirs.dynamic_alpha_fn, rule.dynamic, slice(N + 1)))
            pairs.append((theirs.dynamic_beta_fn, rule.dynamic, -1))
        for weight, held, columns in pairs:
            weight.copy_(held[:, columns])
    streams, u = draw(B, T, N, D, seed=2, scale=LARGE), draw(B, T, D, seed=3, scale=LARGE)
    seen, state = rule.read(streams)
    x, mixed, extra = theirs.width_connection(folded(streams))
    same(seen, rms_norm(x), [streams], [streams])
    ours = rule.write(state, u)
    other = unfolded(theirs.depth_connection(u, mixed, **extra))
    same(ours, other, [streams, u], [streams, u])
    (seen.sum() + ours.square().sum()).backward()
    (rms_norm(x).sum() + other.square().sum()).backward()
    for weight, held, columns in pairs:
        torch.testing.assert_close(held.grad[:, columns], weight.grad)
    if dynamic:
        torch.testing.assert_close(rule.scale.grad[0], theirs.dynamic_alpha_scale.grad)
        torch.testing.assert_close(rule.scale.grad[1], theirs.dynamic_beta_scale.grad)


# -- the constrained form, mHC ------------------------------------------------------------------


CONSTRAINED = f"hyper-connections:streams={N},sinkhorn=1"


def test_mhc_by_hand():
    """Equations 7 to 9 of 2512.24880 on plain matrices, for one token, in the paper's letters."""
    rule = rule_of(CONSTRAINED)
    with torch.no_grad():
        rule.dynamic.copy_(draw(N * D, N * (N + 2), seed=1))
        rule.scale.copy_(torch.tensor([0.3, 0.2, 0.1]))
        rule.static.copy_(3 * draw(N, N + 2, seed=4))  # so far apart that 20 rounds are too few
    streams, u = draw(1, 1, N, D, seed=2), draw(1, 1, D, seed=3)
    seen, state = rule.read(streams)
    ours = rule.write(state, u)

    x = streams.detach()[0, 0]  # (n, C)
    vec = x.flatten() / (x.pow(2).mean() + 1e-5).sqrt()
    # Ours packs φ one row of (pre, res, post) a stream, and holds H_res transposed.
    phi = rule.dynamic.detach().reshape(N * D, N, N + 2)
    pre, res, post = (
        torch.einsum("i,ij->j", vec, phi[..., 0]),
        torch.einsum("i,ijk->jk", vec, phi[..., 1:-1]).T,
        torch.einsum("i,ij->j", vec, phi[..., -1]),
    )
    b = rule.static.detach()
    h_pre = 1 / (1 + torch.exp(-(0.3 * pre + b[:, 0])))
    m = torch.exp(0.2 * res + b[:, 1:-1].T)
    h_post = 2 / (1 + torch.exp(-(0.1 * post + b[:, -1])))
    for _ in range(20):
        m = m / m.sum(0, keepdim=True)  # T_c
        m = m / m.sum(1, keepdim=True)  # T_r
    torch.testing.assert_close(seen[0, 0], rms_norm(h_pre @ x), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        ours[0, 0], m @ x + torch.outer(h_post, u.detach()[0, 0]), rtol=1e-6, atol=1e-6
    )
    assert (m.sum(1) - 1).abs().max() < 1e-12 and (m.sum(0) - 1).abs().max() > 1e-5


@pytest.mark.parametrize("dynamic", [0, 1])
def test_mhcs_gradients_in_float64(dynamic):
    rule = lively_rule(f"{CONSTRAINED},dynamic={dynamic}")
    names, weights = zip(*rule.named_parameters(), strict=True)

    def step(streams, u, *values):
        with _reparametrize_module(rule, dict(zip(names, values, strict=True))):
            seen, state = rule.read(streams)
            return rule.write(state, u + seen)

    inputs = (draw(1, 1, N, D, seed=6), draw(1, 1, D, seed=7))
    leaves = tuple(w.detach().clone().requires_grad_() for w in weights)
    assert torch.autograd.gradcheck(step, (*inputs, *leaves))


# -- attention over depth -----------------------------------------------------------------------


def test_depth_attention_is_x_transformers_for_the_same_query():
    """Normalised keys, raw values, softmax over depth, token by token, with gradients.

    x-transformers makes the query from the latest source, q = g ⊙ rms(v_S + low-rank(v_S)), scales
    logits by 1/√d and mixes stream states; 2603.15031 and `rr` learn one query w for all tokens,
    do not scale, and mix updates. On the same sources, at each token, ours with w = q/√d is theirs.
    """
    rule, theirs = rule_of("attnres"), AttentionResidual(D, lora_rank=2).double()
    with torch.no_grad():
        for p in (theirs.to_keys.weight, theirs.norm.weight, theirs.to_query[1].up.weight):
            p += 0.5 * draw(*p.shape, seed=8)
        rule.key_gain.copy_(theirs.to_keys.weight)
    sources = draw(5, B, T, D, scale=LARGE)
    expected = theirs(list(sources))
    latest = sources[-1].detach()
    queries = theirs.norm(latest + theirs.to_query(latest)).detach() / D**0.5
    for b in range(B):
        for t in range(T):
            with torch.no_grad():
                rule.query.copy_(queries[b, t])
            seen, _ = rule.read(list(sources[:, b : b + 1, t : t + 1]))
            torch.testing.assert_close(seen[0, 0], rms_norm(expected[b, t]))
            alpha = rule.weights(list(sources[:, b : b + 1, t : t + 1]))
            assert alpha.sum().item() == pytest.approx(1) and alpha.max() > 0.25  # not uniform


# -- the GRU gate -------------------------------------------------------------------------------


def test_gtrxl_is_x_transformers_where_both_gates_are_one():
    """`gate_residual` is torch's GRU cell, which resets after U_g where GTrXL resets before.

    They agree for diagonal U_g; z is turned round, so its weights change sign.
    """
    rule, theirs = rule_of("gtrxl:bias=0.7"), GRUGating(D).double()
    with torch.no_grad():
        rule.from_update.copy_(draw(3 * D, D))
        rule.from_state.copy_(draw(2 * D, D, seed=1))
        rule.candidate.copy_(torch.diag(draw(D, seed=2)))
        w_r, w_z, w_g = rule.from_update.chunk(3)
        u_r, u_z = rule.from_state.chunk(2)
        theirs.gru.weight_ih.copy_(torch.cat([w_r, -w_z, w_g]))
        theirs.gru.weight_hh.copy_(torch.cat([u_r, -u_z, rule.candidate]))
        theirs.gru.bias_ih.copy_(torch.cat([torch.zeros(D), rule.bias, torch.zeros(D)]))
        nn.init.zeros_(theirs.gru.bias_hh)
    h, u = draw(B, T, D, seed=3), draw(B, T, D, seed=4)
    _, inner, extra = theirs.prepare(h)
    same(rule.write(h, u), theirs(u, inner, **extra), [h, u], [h, u])


# -- streams as public models ship them ---------------------------------------------------------


MHC = f"{CONSTRAINED},start=published,head=sigmoid"


def test_the_published_mhc_starts_with_the_mean_of_the_streams():
    rule = rule_of(MHC)
    with torch.no_grad():
        rule.reset(lambda tensor, std: tensor.copy_(std * draw(*tensor.shape)))
    assert rule.scale.tolist() == pytest.approx([0.01] * 3) and not rule.static.any()
    assert 0.01 < rule.dynamic.std() < 0.03
    read, mix, spread = rule.coefficients(draw(B, T, N, D, seed=1))
    for part, start in ((read, 1 / 2), (mix, 1 / N), (spread, 1.0)):
        torch.testing.assert_close(part, torch.full_like(part, start), rtol=0, atol=3e-3)


def test_each_start_is_that_of_who_has_it():
    """Transformers: N(0, 0.02²) and s = 1. Megatron-LM: Xavier's uniform, from n·d to n² + 2n."""
    width = 64
    for start, s in (("transformers", 1.0), ("megatron", 0.01), ("published", 0.01)):
        rule = rule_of(f"{CONSTRAINED},start={start},head=sigmoid", width=width)
        with torch.no_grad():
            rule.reset(lambda tensor, std: tensor.copy_(std * draw(*tensor.shape)))
        assert rule.scale.tolist() == pytest.approx([s] * 3) and not rule.static.any()
        w = rule.dynamic.detach()
        if start == "megatron":
            theirs = nn.init.xavier_uniform_(torch.empty(N * N + 2 * N, N * width))
            bound = (6 / (N * width + N * N + 2 * N)) ** 0.5
            assert 0.97 * bound < w.abs().max() <= bound and 0.97 * bound < theirs.max() <= bound
            assert w.std().item() == pytest.approx(theirs.std().item(), rel=0.05)
            assert w.abs().mean().item() == pytest.approx(
                bound / 2, rel=0.05
            )  # uniform, not normal
        else:
            assert w.std().item() == pytest.approx(0.02, rel=0.05)


@torch.no_grad()
def test_mhc_as_shipped_is_transformers_own_module():
    """DeepSeek-V4's HyperConnection and HyperHead, with its ε in the norm, A_m and Sinkhorn."""
    v4 = pytest.importorskip("transformers.models.deepseek_v4.modeling_deepseek_v4")
    from transformers import DeepseekV4Config

    config = DeepseekV4Config(hidden_size=D, hc_mult=N, hc_sinkhorn_iters=20, hc_eps=1e-2,
                              rms_norm_eps=1e-2)  # fmt: skip
    shipped = f"{CONSTRAINED},start=transformers,head=sigmoid,eps=0.01"
    for sublayer, theirs in ((2, v4.DeepseekV4HyperConnection(config)),
                             (5, v4.DeepseekV4HyperHead(config))):  # fmt: skip
        rule = lively_rule(shipped, sublayer)
        head = sublayer == 5
        w, b = rule.dynamic.unflatten(-1, (N, -1)), rule.static  # one row of columns per stream
        columns = [0] if head else [0, N + 1, *range(1, N + 1)]
        order = [w[:, :, c] for c in columns[: 1 if head else 2]]
        biases = [b[:, c] for c in columns[: 1 if head else 2]]
        if not head:  # ours A_r[j, k] weighs stream j in new stream k, as theirs does
            order.append(w[:, :, 1:-1].flatten(1))
            biases.append(b[:, 1:-1].flatten())
        fn, base = torch.cat(order, 1).T, torch.cat(biases)
        for held, value in ((("hc_fn", fn), ("hc_base", base), ("hc_scale", rule.scale))
                            if head else (("fn", fn), ("base", base),
                                          ("scale", rule.scale[[0, 2, 1]]))):  # fmt: skip
            getattr(theirs, held).data = value.double().clone()
        streams, u = draw(B, T, N, D, seed=2, scale=0.1), draw(B, T, D, seed=3)
        close = dict(rtol=1e-4, atol=1e-5)  # theirs computes coefficients in float32
        if head:
            x = theirs.float()(streams.float()).double()
            mixed = rule.gain * x / (x.square().mean(-1, keepdim=True) + 0.01).sqrt()
            torch.testing.assert_close(rule.read(streams)[0], mixed, **close)
            continue
        post, comb, collapsed = theirs.float()(streams.float())
        seen, state = rule.read(streams)
        x = collapsed.double()
        normed = rule.gain * x / (x.square().mean(-1, keepdim=True) + 0.01).sqrt()
        torch.testing.assert_close(seen, normed, **close)
        new = post.double().unsqueeze(-1) * u.unsqueeze(-2) + comb.double().mT @ streams
        torch.testing.assert_close(rule.write(state, u), new, **close)


@pytest.mark.parametrize("sinkhorn", [0, 1])
@pytest.mark.parametrize("dynamic", [0, 1])
def test_a_frozen_mix_is_the_learned_one_at_the_identity(sinkhorn, dynamic):
    """The same weights beside an A_r of logits so far apart that it is the identity."""
    options = f"streams={N},sinkhorn={sinkhorn},dynamic={dynamic}"
    frozen = lively_rule(f"hyper-connections:{options},mix=identity")
    learned = rule_of(f"hyper-connections:{options}")
    eye = torch.eye(N, dtype=torch.float64)
    with torch.no_grad():
        learned.static[:, 1:-1] = 400 * eye - 200 if sinkhorn else eye
        learned.static[:, [0, -1]] = frozen.static
        if dynamic:
            rows = N if sinkhorn else 1
            learned.dynamic.zero_()
            columns = learned.dynamic.unflatten(-1, (rows, N + 2))
            columns[..., [0, -1]] = frozen.dynamic.unflatten(-1, (rows, 2))
            learned.scale[[0, -1]] = frozen.scale
    streams, u = draw(B, T, N, D, seed=2), draw(B, T, D, seed=3)
    seen, state = frozen.read(streams)
    expected, other = learned.read(streams)
    seen = seen / frozen.gain  # the learned one has a gain of 1
    torch.testing.assert_close(seen, expected)
    torch.testing.assert_close(frozen.write(state, u), learned.write(other, u))
    assert torch.equal(state[0], streams)


def test_gated_residual_by_hand():
    """qwen4_exp's read and write for one token at a time, on plain vectors."""
    rule = lively_rule(f"gated-residual:streams={N},rank=3")
    streams, u = draw(B, T, N, D, seed=2), draw(B, T, D, seed=3)
    seen, state = rule.read(streams)
    written = rule.write(state, u)
    for b in range(B):
        for t in range(T):
            h = streams[b, t]
            x = h / (h.pow(2).mean(1, keepdim=True) + 1e-5).sqrt() * rule.gain
            low = rule.down @ x.flatten() / N
            low = low / (1 + torch.exp(-low))  # silu
            w = 1 / (1 + torch.exp(-(rule.up @ low)))
            torch.testing.assert_close(seen[b, t], (w.reshape(N, D) * x).sum(0) / N)
            inject = 2 / (1 + torch.exp(-(rule.inject @ x.flatten()) / N))
            torch.testing.assert_close(written[b, t], h + torch.outer(inject, u[b, t]))


@torch.no_grad()
@pytest.mark.parametrize("mix", ["learned", "identity"])
def test_single_pass_mhc_by_hand(mix):
    """Three sublayers and the head in DeepSeek-V4.1's order, token by token, on plain matrices.

    Entry reads stream 1; what a sublayer's A_m gives of the streams after its write is what the
    next one reads, and at last the head (Megatron-LM's branch: `contract_streams`).
    """
    rules = [lively_rule(f"{CONSTRAINED},single=1,eps=0.01,mix={mix}", i) for i in (1, 2, 3)]
    with torch.no_grad():
        for i, rule in enumerate(rules):
            for j, p in enumerate(rule.parameters()):
                p.copy_(0.5 * draw(*p.shape, seed=90 + 7 * i + j))
    head = lively_rule(f"{CONSTRAINED},single=1,eps=0.01,mix={mix}", 5)
    x0, e = draw(B, T, D, seed=2).detach(), 0.01
    state = head.open(x0)
    for rule in rules:
        x, passed = rule.read(state)
        state = rule.write(passed, torch.tanh(x))
    ours = head.read(state)[0]

    def norm(v):
        return v / (v.square().mean() + e).sqrt()

    def sigmoid(v):
        return 1 / (1 + torch.exp(-v))

    for b in range(B):
        for t in range(T):
            h = x0[b, t].expand(N, D).clone()
            seen = h[0]
            for rule in rules:
                columns = rule.static.shape[1]
                w = rule.dynamic.reshape(N * D, N, columns)
                logits = torch.einsum("i,ijk->jk", norm(h.flatten()), w)
                pre = sigmoid(rule.static[:, 0] + rule.scale[0] * logits[:, 0]) + e
                post = 2 * sigmoid(rule.static[:, -1] + rule.scale[-1] * logits[:, -1])
                m = torch.eye(N).double()
                if mix == "learned":
                    m = rule.static[:, 1:-1] + rule.scale[1] * logits[:, 1:-1]
                    m = m.softmax(-1) + e
                    m = m / (m.sum(0) + e)
                    for _ in range(19):
                        m = m / (m.sum(1, keepdim=True) + e)
                        m = m / (m.sum(0) + e)
                u = torch.tanh(rule.gain * norm(seen))
                h = m.T @ h + torch.outer(post, u)
                seen = pre @ h
            torch.testing.assert_close(ours[b, t], head.gain * norm(seen))
