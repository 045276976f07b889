"""AdamW, its parameter groups and their rates by depth."""

import torch
from torch import nn

from ..config import Recipe
from ..model.transformer import Model
from .backend import Backend


def decayed(model: Model) -> set[str]:
    """Names of the matrices that weight decay acts on in protocol `clean`.

    Weights of linear layers and of rules (`matrix_names`); not embeddings, gains or biases.
    """
    names = set()
    for place, module in model.named_modules():
        own = ("weight",) if isinstance(module, nn.Linear) else getattr(module, "matrix_names", ())
        held = dict(module.named_parameters(recurse=False))
        names.update(f"{place}.{name}" for name in own if name in held)
    return names


def decay_groups(model: nn.Module, weight_decay: float, everything: bool) -> list[dict]:
    """AdamW's groups: what decays (all parameters, or those of `decayed`), then what does not."""
    named = dict(model.named_parameters())
    names = set(named) if everything else decayed(model)
    groups = [
        {
            "params": [p for name, p in named.items() if (name in names) == inside],
            "weight_decay": weight_decay if inside else 0.0,
        }
        for inside in (True, False)
    ]
    return [group for group in groups if group["params"]]


def optimizer(
    model: nn.Module, recipe: Recipe, backend: Backend, device: torch.device
) -> torch.optim.AdamW:
    """The recipe's AdamW, fused or not; for a CUDA graph its learning rates are tensors."""
    everything = recipe.decay_all or not isinstance(model, Model)
    groups = decay_groups(model, recipe.weight_decay, everything)
    if recipe.depth_lr:
        groups = [half for group in groups for half in by_depth(model, group, recipe)]
    graph = backend.graph == "step"
    if graph:
        for group in groups:
            group["lr"] = torch.tensor(recipe.lr, device=device)
    return torch.optim.AdamW(
        groups,
        lr=recipe.lr,
        betas=recipe.betas,
        eps=recipe.eps,
        fused=backend.optimizer == "fused" or None,
        capturable=graph,
    )


def by_depth(model: Model, group: dict, recipe: Recipe) -> list[dict]:
    """Split a parameter group in two: the blocks, with a learning rate of their own, and the rest.

    `OptimizerStep.set_rate` multiplies the learning rate of each group by its "factor".
    """
    factor = recipe.block_factor(model.config.n_layer)
    stack = ("layers.", "later_rules.")
    inside = {id(p) for name, p in model.named_parameters() if name.startswith(stack)}
    blocks = [p for p in group["params"] if id(p) in inside]
    others = [p for p in group["params"] if id(p) not in inside]
    halves = [
        {**group, "params": blocks, "factor": factor, "eps": recipe.eps * factor},
        {**group, "params": others, "factor": 1.0, "eps": recipe.eps},
    ]
    return [half for half in halves if half["params"]]
