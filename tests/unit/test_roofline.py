"""What a step computes and moves, against the ladder's FLOPs and against bytes counted by hand."""

import resource
from dataclasses import replace

import pytest
from torch import nn

from rr.errors import RRError
from rr.model import Model, costs
from rr.specs import ModelConfig, Recipe
from rr.training.backend import parse_backend
from rrbook import roofline
from rrbook.roofline import PARTS, Work, work

SHAPE = ModelConfig(vocab_size=6400, n_layer=2, n_head=2, d_model=64, d_ff=256, seq_len=64)
BATCH = 8
TOKENS = BATCH * SHAPE.seq_len


def counted(path, micro=BATCH, **shape):
    return work(replace(SHAPE, **shape), parse_backend(path), micro, Recipe(1, BATCH, 1e-3, 1))


def total(works, kind="flops"):
    return sum(getattr(one, kind) for one in works.values())


@pytest.mark.parametrize(
    "shape",
    [
        {"rule": "review:rank=8"},
        {"rule": "hyper-connections"},
        {"rule": "attnres"},
        {"values": "learnable"},
        {"rule": "review", "n_loops": 2},
        {"flavour": "llama", "tied": False},
    ],
    ids=str,
)
def test_flops_are_the_ladders(shape):
    """The ladder adds up what modules declare; the operations of a step are counted here."""
    expected = costs.flops_per_token(replace(SHAPE, **shape)) * TOKENS
    assert total(counted("reference", **shape)) == expected


def test_a_chunked_head_multiplies_the_padding_too():
    """6 FLOPs a token, weight and row: 6,336 rows for a vocabulary of 6,300."""
    whole, chunked = (counted(path, vocab_size=6300) for path in ("reference", "eager"))
    assert whole["head"].flops == 6 * 6300 * 64 * TOKENS
    assert chunked["head"].flops == 6 * 6336 * 64 * TOKENS


def test_micro_batches_read_the_weights_again():
    """Each product meets its weight three times: forward, towards its input, and its gradient."""
    whole, half = (counted("reference", micro, rule="review") for micro in (8, 4))
    assert total(whole) == total(half) and whole["optimizer"] == half["optimizer"]
    model = Model(replace(SHAPE, rule="review"))
    linear = [m for m in model.layers.modules() if isinstance(m, nn.Linear)]
    linear += [rule for layer in model.layers for rule in layer.rules]
    weights = sum(m.weight.numel() for m in linear) + 6400 * 64
    biases = sum(m.bias.numel() for m in linear)  # of forward products alone
    more = total(half, "product_bytes") - total(whole, "product_bytes")
    assert more == 4 * (3 * weights + biases)


def test_recomputation_is_one_forward_pass_of_the_blocks_more():
    """Forward is a third of a step; the head is not computed again."""
    plain, again = (counted(path, rule="review") for path in ("eager", "eager:recompute=layer"))
    blocks = costs.flops_per_token(replace(SHAPE, rule="review")) - 6 * 6400 * 64
    assert total(again) - total(plain) == blocks // 3 * TOKENS
    for part in ("head", "embedding", "optimizer"):
        assert again[part] == plain[part]


def test_adamws_bytes_by_hand():
    """float32. Clipping: the gradient read for its norm, then read and written. AdamW, one kernel:
    parameter and both moments read and written, the gradient read."""
    found = counted("eager", rule="review")["optimizer"]
    model = Model(replace(SHAPE, rule="review"))
    n, tensors = sum(p.numel() for p in model.parameters()), len(list(model.parameters()))
    beside = found.other_bytes - 4 * (3 + 7) * n
    assert found.flops == found.product_bytes == 0
    assert 0 < beside < 100 * tensors  # a norm, a factor and a count of steps each


def test_blocks_that_are_alike_are_counted_on_two_of_them():
    recipe = Recipe(1, BATCH, 1e-3, 1)
    deep, path = replace(SHAPE, rule="review", n_layer=4), parse_backend("eager")
    assert roofline.stacked(deep, path, 4, recipe) == work(deep, path, 4, recipe)
    for options in ({"rule": "attnres"}, {"values": "learnable"}):
        with pytest.raises(RRError, match="blocks are not alike"):
            roofline.stacked(replace(SHAPE, **options), parse_backend("eager"), 4, recipe)


def test_least_times_by_hand():
    """100 FLOP/s and 10 bytes/s: what waits for products, what for memory, what has none."""
    works = dict.fromkeys(PARTS, Work())
    works |= {"mlp": Work(1000, 50, 20), "head": Work(100, 50, 0), "optimizer": Work(0, 0, 40)}
    found = roofline.times(works, 100, 10)
    assert (found["mlp"], found["head"], found["optimizer"]) == (10 + 2, 5, 4)
    found = roofline.times(works, 100, 10, share=0.5, fused=True)
    assert (found["mlp"], found["head"], found["optimizer"]) == (20, 5, 4)
    with pytest.raises(RRError, match="share must be .* got 1.5"):
        roofline.times(works, 1, 1, 1.5)


def test_a_count_asks_for_what_it_needs():
    with pytest.raises(RRError, match="micro-batch 3 does not divide the batch 8"):
        counted("eager", 3)
    with pytest.raises(RRError, match="give its recipe"):
        work(SHAPE, parse_backend("eager"), 4)


def test_a_count_needs_no_memory():
    """Three billion parameters, 13 GB, and as much again three times for gradients and moments."""
    config = replace(SHAPE, d_model=16384, d_ff=65536, n_layer=1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = work(config, parse_backend("eager"), BATCH, Recipe(1, BATCH, 1e-3, 1))
    assert total(found) > 6 * 3e9 * TOKENS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500e3  # kB
