"""AdamW, or Muon beside it, their parameter groups and rates by depth."""

import torch
from torch import nn

from ..errors import RRError
from ..model.transformer import Model
from ..residual.stack import decay_groups, decayed, rated
from ..specs import Recipe
from .backend import Backend
from .distributed import ALONE, World

STACK = ("layers.", "later_rules.")  # prefixes of the names of the blocks' parameters


def check_optimizer(recipe: Recipe, world: World = ALONE) -> None:
    """Raise RRError where torch lacks the recipe's optimiser, or the world bars it."""
    if recipe.optimizer == "adamw":
        return
    if not hasattr(torch.optim, "Muon"):
        raise RRError(f"optimizer muon needs torch 2.9 or newer, this is {torch.__version__}")
    if world.strategy == "fsdp":
        raise RRError("optimizer muon needs whole matrices: use --parallel ddp")


def optimizer(model: Model, recipe: Recipe, backend: Backend) -> torch.optim.Optimizer:
    """The recipe's optimiser, AdamW fused or not."""
    groups = decay_groups(model, recipe.weight_decay, recipe.decay_all)
    matrices = block_matrices(model) if recipe.optimizer == "muon" else []
    muons = {id(p) for p in matrices}
    for group in groups:
        group["params"] = [p for p in group["params"] if id(p) not in muons]
    groups = [group for group in groups if group["params"]]
    if recipe.depth_lr:
        groups = [half for group in groups for half in by_depth(model, group, recipe)]
    adamw = torch.optim.AdamW(
        groups,
        lr=recipe.lr,
        betas=recipe.betas,
        eps=recipe.eps,
        fused=backend.optimizer == "fused" or None,
    )
    if not matrices:
        return adamw
    blocks = {"params": matrices, "factor": recipe.block_factor(model.config.n_layer)}
    # The update's rms is set to that of AdamW (2502.16982), so that one rate serves both.
    muon = torch.optim.Muon(
        [blocks], lr=recipe.lr, weight_decay=recipe.weight_decay, adjust_lr_fn="match_rms_adamw"
    )
    return CombinedOptimizer(muon, adamw)


def block_matrices(model: nn.Module) -> list[nn.Parameter]:
    """What Muon takes: the blocks' matrices, those of rules included, as they are held.

    Attention's queries, keys and values are one matrix here, and are orthogonalised as one.
    """
    names = decayed(model) - rated(model).keys()  # what has a rate of its own is AdamW's
    return [
        p
        for name, p in model.named_parameters()
        if name in names and name.startswith(STACK) and p.ndim == 2
    ]


class CombinedOptimizer(torch.optim.Optimizer):
    """Several optimisers, each with its own parameters, as one: one step, one state, one list."""

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self.parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._share()

    def _share(self) -> None:
        """Let the parts work on the state and the groups that this one holds."""
        groups = iter(self.param_groups)
        for part in self.parts:
            part.state = self.state
            part.param_groups = [next(groups) for _ in part.param_groups]

    def step(self, closure: None = None) -> None:
        """A step of each."""
        for part in self.parts:
            part.step()

    def load_state_dict(self, state_dict: dict) -> None:
        """As torch's own, for all parts."""
        super().load_state_dict(state_dict)
        self._share()


def by_depth(model: Model, group: dict, recipe: Recipe) -> list[dict]:
    """Split a parameter group in two: the blocks, with a learning rate of their own, and the rest.

    `OptimizerStep.set_rate` multiplies the learning rate of each group by its "factor".
    """
    factor = recipe.block_factor(model.config.n_layer)
    inside = {id(p) for name, p in model.named_parameters() if name.startswith(STACK)}
    blocks = [p for p in group["params"] if id(p) in inside]
    others = [p for p in group["params"] if id(p) not in inside]
    own = group.get("factor", 1.0)
    halves = [
        {**group, "params": blocks, "factor": factor * own, "eps": recipe.eps * factor},
        {**group, "params": others, "factor": own, "eps": recipe.eps},
    ]
    return [half for half in halves if half["params"]]
