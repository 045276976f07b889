"""Initial weights, drawn from the run's seed."""

import torch
from torch import Tensor, nn

from ..residual.stack import keyed
from .transformer import Model


@torch.no_grad()
def initialise(model: Model, seed: int, shared: bool = True) -> Model:
    """Initialise the weights of `model` from `seed`, in place; returns the model.

    | tensor | initialisation |
    |---|---|
    | position embedding (gpt2) | N(0, 0.02²) |
    | head, where it is not tied | N(0, 0.02²), padding rows 0 |
    | token embedding | N(0, s²), s the rule's `embedding_std`, mostly 0.02; padding rows 0 |
    | qkv and up weights | N(0, s²), s the rule's `init_std`, mostly 0.02 |
    | out and down weights | N(0, s²), s the rule's `init_std`, mostly 0.02/√(2L) |
    | biases | 0 |
    | norm gains | 1 |
    | the rules' own | their `reset` |

    shared: True (protocol `clean`): each tensor is drawn by a generator of its own, keyed by
    (seed, name), so that arms of one seed start with identical common tensors. False (protocol
    `paper`): one random-number generator, in the order of the modules.

    Numbers are drawn on the CPU in float32, so that every device starts from the same weights.

    Example:
        >>> import rr
        >>> config = rr.ModelConfig(64, n_layer=2, n_head=2, d_model=8, d_ff=16)
        >>> model = rr.model.initialise(rr.Model(config), seed=0)
        >>> round(model.head_weight[:64].std().item(), 2)
        0.02
    """
    names = {id(p): name for name, p in model.named_parameters()}
    rng = torch.Generator().manual_seed(seed)

    def normal(tensor: Tensor, std: float | Tensor, rows: int | None = None) -> None:
        source = rng
        if shared:
            source = keyed(seed, names[id(tensor)])
        kept = tensor[:rows]
        drawn = torch.randn(kept.shape, generator=source, dtype=torch.float32, device="cpu")
        kept.copy_(drawn * std)

    nn.init.zeros_(model.token.weight)
    normal(model.token.weight, model.final_rule.embedding_std(), model.config.vocab_size)
    if model.config.flavour == "gpt2":
        normal(model.position.weight, 0.02)
    if not model.config.tied:
        nn.init.zeros_(model.head.weight)
        normal(model.head.weight, 0.02, model.config.vocab_size)
    for layer in model.layers:
        attn, mlp = layer.attn, layer.mlp
        for linear, rule, parts in (
            (attn.qkv, layer.attn_rule, attn.parts),
            (attn.out, layer.attn_rule, {"out": model.config.d_model}),
            (mlp.up, layer.mlp_rule, {"up": mlp.up.out_features}),
            (mlp.down, layer.mlp_rule, {"down": model.config.d_model}),
        ):
            stds = [
                [rule.init_std(rule.site, part, rows, linear.in_features)] * rows
                for part, rows in parts.items()
            ]
            normal(linear.weight, torch.tensor(sum(stds, []), device="cpu")[:, None])
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)
        for rule in (*layer.rules, attn.rule):
            rule.reset(normal)
    for rule in (*model.later_rules, model.final_rule):
        rule.reset(normal)
    return model
