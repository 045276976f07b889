"""The stream lens against what hooks on the branches see, and against two rules' own equations."""

import pytest
import torch

import rr
from rr.analysis import hooked, stream_lens, stream_mixing
from rr.analysis.rule_checks import model_of
from rr.config import RRError

IDX = torch.arange(12).reshape(2, 6)
RULES = (
    "hyper-connections",
    "hyper-connections:mix=identity",
    "hyper-connections:sinkhorn=1,start=published,head=sigmoid",
    "gated-residual",
)


@pytest.mark.parametrize("rule", RULES)
def test_the_lens_shows_what_branches_and_head_are_given(rule):
    model = model_of(rule, dtype=torch.float64, scramble=True)
    branches = [branch for layer in model.layers for branch in (layer.attn, layer.mlp)]
    given = []
    with hooked(branches, lambda module, args: given.append(args[0]), before=True):
        hidden = model.hidden(IDX)
    lens = stream_lens(model, IDX)
    assert torch.equal(lens.reads, torch.stack(given))
    assert torch.equal(lens.head[-1], hidden)
    x0 = model.token(IDX) + model.position(torch.arange(6))
    torch.testing.assert_close(lens.mean[0], x0)
    assert len(lens.mean) == len(lens.head) == 7 and len(lens.reads) == 6


def test_where_the_head_adds_the_streams_its_read_is_the_norm_of_the_mean():
    """Up to the 1e-5 inside the norm, a sum of four is the mean times four."""
    model = model_of("hyper-connections", dtype=torch.float64, scramble=True)
    lens = stream_lens(model, IDX)
    four = 4 * lens.mean
    normed = four / (four.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * model.final_rule.gain
    torch.testing.assert_close(lens.head, normed)


@pytest.mark.parametrize("rule", ["standard", "attnres", "x0-scales"])
def test_other_rules_get_one_line(rule):
    with pytest.raises(RRError, match="one stream or none: use trace"):
        stream_lens(model_of(rule), IDX)


def test_streams_that_never_mix_have_no_mixing():
    with pytest.raises(RRError, match="never mixes its streams: see stream_lens"):
        stream_mixing(model_of("gated-residual"), IDX)


def test_the_lens_of_an_attached_rule_is_the_models():
    transformers = pytest.importorskip("transformers")
    shape = transformers.GPT2Config(vocab_size=60, n_embd=16, n_layer=2, n_head=2, n_positions=8)
    model = rr.attach(transformers.GPT2LMHeadModel(shape).eval(), "gated-residual")
    lens = stream_lens(model, IDX)
    assert lens.reads.shape == (4, 2, 6, 16) and lens.head.isfinite().all()
