"""Exact costs of a model: parameters and FLOPs, counted on modules on torch's meta device."""

from functools import lru_cache

import torch
from torch.nn import Linear

from .. import residual
from ..specs import ModelConfig
from .transformer import Model


def _meta(config: ModelConfig) -> Model:
    """The model of `config` on the meta device: modules and shapes, no numbers."""
    return _built(
        config, residual.resolve(config.rule)[0], residual.resolve(config.values, "values")[0]
    )


@lru_cache(maxsize=256)
def _built(config: ModelConfig, rule: type, values: type) -> Model:
    # Cached by the classes, too: a name that is registered again is another rule.
    with torch.device("meta"):
        return Model(config)


def count(config: ModelConfig) -> int:
    """The number of trainable scalars, without padding rows of the embedding.

    The tied head is counted once.
    """
    padding = (config.padded_vocab - config.vocab_size) * config.d_model
    padding *= 1 if config.tied else 2
    return sum(p.numel() for p in _meta(config).parameters()) - padding


def rule_params(config: ModelConfig) -> int:
    """Trainable scalars of the rules' writes (the gates), without norm gains."""
    model = _meta(config)
    return sum(rule.write_params(rule.site) for rule in model.rules)


def flops_per_token(config: ModelConfig) -> int:
    """FLOPs of one training step per token: matrix products, forward and backward.

    Three times the forward pass: 2 per multiply-add for each linear weight, the rules' own
    products in the stack and in the read before the head, the head over vocab_size, and causal
    attention: a token attends to (T + 1)/2 tokens on average, with 4·d FLOPs each per layer (scores
    and mix).
    """
    model = _meta(config)
    products = [m for m in model.layers.modules() if isinstance(m, Linear)]
    stack = sum(2 * m.weight.numel() for m in products)
    stack += sum(rule.matmul_flops(rule.site) for layer in model.layers for rule in layer.rules)
    stack += sum(layer.attn.rule.matmul_flops(layer.attn_rule.site) for layer in model.layers)
    stack += config.n_layer * 2 * config.d_model * (config.seq_len + 1)
    head = 2 * config.vocab_size * config.d_model
    final = model.final_rule.matmul_flops(model.final_rule.site)  # after the last pass
    return 3 * (config.n_loops * stack + final + head)
