"""The published equations, written down a second time in float64 without `rr.model`.

`Published` follows the study's text and table (arXiv 2606.31859): pre-norm sublayers with biases,
learned positions, exact GELU, tied head, RMS with 1e-5 inside. Weights are copied across; logits,
loss and every gradient must agree.
"""

import copy
import math

import pytest
import torch

from rr.model import Model, initialise, ladder

RULES = ("standard", "highway", "review", "review-convex")


def rms(x):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5)


def sigmoid(x):
    return 1 / (1 + torch.exp(-x))


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


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("scrambled", [False, True])
def test_logits_loss_and_gradients_equal_the_published_equations(rule, scrambled):
    rung = "nano:n_layer=3,d_model=24,n_head=3,seq_len=12"
    model = Model(ladder.arm(rung, rule, vocab_size=90, protocol="paper"))
    initialise(model, seed=5, shared=False)
    if scrambled:  # at its initial values a Review gate would hide mistakes behind its zeros
        source = torch.Generator().manual_seed(6)
        with torch.no_grad():
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
    config = ladder.arm("nano:n_layer=4,d_model=256,n_head=4", "highway", 5000, protocol="paper")
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
    review = initialise(Model(ladder.arm("nano:n_layer=2,d_model=32,n_head=2", "review", 50)), 0)
    assert all((rule.weight == 0).all() and (rule.bias == 0).all() for rule in review.rules)


def test_arms_share_every_tensor_they_have_in_common():
    rung = "nano:n_layer=2,d_model=32,n_head=2"
    arms = [
        dict(initialise(Model(ladder.arm(rung, rule, 70)), 3).named_parameters())
        for rule in ("standard", "review", "highway")
    ]
    common = set.intersection(*(set(a) for a in arms))
    assert len(common) == 2 + 2 * (4 + 4 + 2) + 1
    for name in common:
        assert all(torch.equal(arms[0][name], a[name]) for a in arms[1:]), name
    other = dict(initialise(Model(ladder.arm(rung, "standard", 70)), 4).named_parameters())
    assert not torch.equal(arms[0]["token.weight"], other["token.weight"])
