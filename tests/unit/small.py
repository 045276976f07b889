"""Models small enough for float64 and a computation by hand, and a text to put through them."""

import torch

from rr.model import Model, initialise, sizes

BODY = "nano:n_layer=4,d_model=32,n_head=4,seq_len=16"
IDX, TARGETS = torch.randint(70, (2, 3, 16), generator=torch.Generator().manual_seed(0))


def model_of(rule="standard", values="own", body=BODY, seed=0, moved=0.0, **arm) -> Model:
    """In float64; `moved` shifts every parameter, off its special initial value."""
    model = initialise(Model(sizes.arm(body, rule, 70, values=values, **arm)), seed).double()
    source = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p += moved * torch.randn(p.shape, generator=source).to(p)
    return model


def lively(model: Model) -> Model:
    """Scale the embeddings up, so that the 1e-5 inside every RMS is nothing beside the stream."""
    with torch.no_grad():
        model.token.weight *= 1e4
        model.position.weight *= 1e4
        for layer in model.layers:
            layer.attn.out.weight *= 1e5
            layer.mlp.down.weight *= 1e5
    return model


def gradients(model: Model) -> dict[str, torch.Tensor]:
    model(IDX, TARGETS).backward()
    return {name: p.grad for name, p in model.named_parameters()}
