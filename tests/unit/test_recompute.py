"""Blocks computed again in the backward pass: the same gradients from less that is kept."""

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from rr.model import Model, initialise
from rr.ops.kernels import Kernels
from rr.specs import ModelConfig

V, B, T = 40, 4, 32


def model_of(rule, values="own", loops=1, blocks=3):
    shape = {"n_layer": blocks, "n_head": 2, "d_model": 32, "d_ff": 64, "seq_len": T}
    config = ModelConfig(V, **shape, rule=rule, values=values, n_loops=loops)
    return initialise(Model(config), 0)


def batch():
    source = torch.Generator().manual_seed(0)
    return torch.randint(V, (2, B, T), generator=source)


def kept(model, recompute):
    """(gradients by name, bytes of activations kept for the backward pass), in bf16."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    held = {}

    def pack(t):
        held[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    model.zero_grad()
    model.use(Kernels(recompute=recompute))
    with saved_tensors_hooks(pack, lambda t: t), torch.autocast("cpu", torch.bfloat16):
        loss = model(*batch())
    loss.backward()
    grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return grads, sum(size for place, size in held.items() if place not in own)


MODELS = {
    "tensor": ("review", "own", 1),
    "list": ("attnres", "own", 1),
    "pair": ("x0-scales", "own", 1),
    "streams": ("hyper-connections", "own", 1),
    "values": ("standard", "learnable", 1),
    "all values": ("standard", "dense", 1),
    "passes": ("review:per_pass=1", "own", 2),
}


@pytest.mark.parametrize("which", MODELS.values(), ids=MODELS)
def test_gradients_are_the_same_bits_and_less_is_kept(which):
    model = model_of(*which)
    plain, whole = kept(model, "none")
    again, least = kept(model, "layer")
    assert plain.keys() == again.keys()
    for name, grad in plain.items():
        assert torch.equal(grad, again[name]), name
    assert least < whole / 2


def test_a_block_more_keeps_its_input_more():
    """Of a block of one stream that is B·T·d floats of 4 bytes, whatever it does inside."""
    (_, three), (_, four) = (kept(model_of("review", blocks=n), "layer") for n in (3, 4))
    assert four - three == B * T * 32 * 4
