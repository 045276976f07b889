"""Attention written out in blocks of queries equals torch's own, alone and in a model."""

import pytest
import torch
from torch.nn import functional as F

from rr.config import ModelConfig
from rr.model import Model, initialise
from rr.ops import blocked_attention
from rr.ops.backends import Kernels


@pytest.mark.parametrize("length", [1, 5, 128, 129, 300, 1100])
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_it_equals_torchs_own_with_its_gradients(length, kv_heads):
    torch.manual_seed(length)
    shapes = (2, 4, length, 8), (2, kv_heads, length, 8), (2, kv_heads, length, 8)
    given = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    ours = blocked_attention(*given)
    theirs = F.scaled_dot_product_attention(*given, is_causal=True, enable_gqa=kv_heads < 4)
    torch.testing.assert_close(ours, theirs)
    grad = torch.randn_like(ours)
    for mine, other in zip(
        torch.autograd.grad(ours, given, grad), torch.autograd.grad(theirs, given, grad),
        strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(mine, other)


def test_the_future_has_no_influence():
    q, k, v = torch.randn(3, 1, 2, 200, 8).unbind()
    before = blocked_attention(q, k, v)
    k[:, :, 150:], v[:, :, 150:] = 9.0, 9.0
    assert torch.equal(blocked_attention(q, k, v)[:, :, :150], before[:, :, :150])


@pytest.mark.parametrize("flavour, values", [("gpt2", "own"), ("llama", "svformer")])
def test_a_model_computes_the_same_loss_and_gradients(flavour, values):
    config = ModelConfig(
        64, n_layer=2, n_head=2, d_model=16, d_ff=32, seq_len=160, rule="review", flavour=flavour,
        values=values,
    )  # fmt: skip
    model = initialise(Model(config), 0).double()
    x = torch.randint(64, (2, 161), generator=torch.Generator().manual_seed(0))

    def loss_and_gradients(kernels):
        model.use(kernels)
        loss = model(x[:, :-1], x[:, 1:])
        return loss, *torch.autograd.grad(loss, list(model.parameters()))

    usual, written = loss_and_gradients(Kernels()), loss_and_gradients(Kernels(attention="blocks"))
    torch.testing.assert_close(written, usual)
    with torch.no_grad():  # nothing is kept for a backward pass: torch's kernel is the faster one
        by_blocks = model(x[:, :-1])
        model.use(Kernels())
        assert torch.equal(by_blocks, model(x[:, :-1]))
