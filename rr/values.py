"""The value rules: what a block's attention mixes, its own values or also the first block's.

    v', vstate = rule.values(v, vstate)     # before attention; v is None without own values
    y          = rule.after(y, v', vstate)  # after attention, before the output projection

`vstate` is what a value rule carries from block to block of one pass.
"""

from typing import Any

from torch import Tensor

from .config import ModelConfig
from .residual import Described, Site, register, resolve


class ValueRule(Described):
    """Base of the value rules: every block uses its own values, nothing is carried."""

    kind = "values"

    def __init__(self, site: Site, config: ModelConfig, **given: Any) -> None:
        super().__init__(**given)
        self.site = site

    @classmethod
    def has_own_v(cls, block: int) -> bool:
        """Whether block 1 … L has a value projection."""
        return True

    def values(self, v: Tensor | None, vstate: Any) -> tuple[Tensor, Any]:
        """Values to attend over, (B, heads, T, head_dim), and what is carried on."""
        return v, vstate

    def after(self, y: Tensor, v: Tensor, vstate: Any) -> Tensor:
        """The attention output y, (B, heads, T, head_dim), before the output projection."""
        return y

    def params(self, site: Site) -> int:
        """Trainable scalars of this rule at one attention site."""
        return 0

    def matmul_flops(self, site: Site) -> int:
        """FLOPs a token of the rule's own matrix products, forward."""
        return 0


@register("own")
class Own(ValueRule):
    """V' = V_n: each block attends over its own values."""

    equation = r"V'_n = V_n"
    source = "Vaswani et al. 2017 (1706.03762)"


def make_values(spec: str, site: Site, config: ModelConfig) -> ValueRule:
    """The value rule that `spec` names, at one attention site."""
    cls, options = resolve(spec, kind="values")
    return cls(site, config, **options)
