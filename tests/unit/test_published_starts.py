"""init=paper: the initial weights that the authors of ReZero, Fixup and DeepNorm give, by hand.

Numbers for d = 64, d_ff = 256 and L = 8 blocks, so S = 16 branches; worked out from the papers'
equations and the authors' code, not by `rr`:

* ReZero: nn.Transformer's Xavier; q, k, v one matrix of 192 × 64: √(2/256) = 0.0883883;
  out √(2/128) = 0.125; MLP √(2/320) = 0.0790569.
* Fixup: the same Xavier, times 16^(−1/6) = 0.6299605 for q, k, v and 16^(−1/2) = ¼ for the MLP's
  first matrix; branch ends 0.
* DeepNorm: q, k Xavier √(2/128) = 0.125; v, out and MLP times β = 64^(−1/4) = 0.3535534.
"""

import pytest
import torch

import rr
from rr.model import Model, initialise, ladder

SHAPE = "nano:d_model=64,n_layer=8,n_head=2,d_ff=256,seq_len=32"
PARTS = ("q", "k", "v", "out", "up", "down")
BY_HAND = {
    "rezero": (0.0883883, 0.0883883, 0.0883883, 0.125, 0.0790569, 0.0790569),
    "fixup": (0.0556812, 0.0556812, 0.0556812, 0.0, 0.0197642, 0.0),
    "deepnorm": (0.125, 0.125, 0.0441942, 0.0441942, 0.0279508, 0.0279508),
}


def drawn(spec):
    return initialise(Model(ladder.arm(SHAPE, spec)), seed=0)


def spreads(model):
    """Standard deviation of each part, over all blocks."""
    weights = {part: [] for part in PARTS}
    for layer in model.layers:
        for part, rows in zip("qkv", layer.attn.qkv.weight.chunk(3), strict=True):
            weights[part].append(rows)
        weights["out"].append(layer.attn.out.weight)
        weights["up"].append(layer.mlp.up.weight)
        weights["down"].append(layer.mlp.down.weight)
    return [torch.cat(weights[part]).std().item() for part in PARTS]


@pytest.mark.parametrize("rule", BY_HAND)
def test_branches_start_as_their_paper_says(rule):
    model = drawn(f"{rule}:init=paper")
    assert model.layers[0].mlp.up.weight.shape == (256, 64)
    # 8 blocks of 4,096 numbers or more: the spread of a sample is within 2 %
    assert spreads(model) == pytest.approx(BY_HAND[rule], rel=0.02)


@pytest.mark.parametrize("rule", BY_HAND)
def test_the_stream_starts_at_an_rms_near_one(rule):
    idx = torch.randint(1000, (4, 32), generator=torch.Generator().manual_seed(0))
    for init, rms in (("paper", (1 + 64 * 0.02**2) ** 0.5), ("shared", 0.02 * 2**0.5)):
        model = drawn(f"{rule}:init={init}")
        x0 = model.token(idx) + model.position(torch.arange(32))
        seen = model.final_rule.open(x0)
        assert seen.pow(2).mean().sqrt().item() == pytest.approx(rms, rel=0.05)  # 128 tokens
        # what the first sublayer reads, for none of these three has a norm before it
        assert torch.equal(model.rules[0].read(seen)[0], seen)
        logits = model.eval()(idx)
        assert torch.isfinite(logits).all()


@pytest.mark.parametrize("rule", BY_HAND)
def test_the_shared_start_is_the_default_and_keeps_every_run_id(rule):
    assert rr.plan(SHAPE, rule).id == rr.plan(SHAPE, f"{rule}:init=shared").id
    assert rr.plan(SHAPE, rule).id != rr.plan(SHAPE, f"{rule}:init=paper").id
    same = zip(drawn(rule).parameters(), drawn(f"{rule}:init=shared").parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in same)
    assert drawn(rule).token.weight.std().item() == pytest.approx(0.02, rel=0.02)
