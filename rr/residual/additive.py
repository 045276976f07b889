"""Rules that add the update to an untouched stream, with a coefficient that reads nothing."""

from torch import Tensor

from .base import Option, Rule, Site, register


@register("standard")
class Standard(Rule):
    """h ← h + u: the pre-norm residual that nearly every transformer since GPT-2 uses."""

    equation = r"h_l = h_{l-1} + u_l"
    source = "He et al. 2015 (1512.03385); pre-norm: Xiong et al. 2020 (2002.04745)"

    def write(self, state: Tensor, u: Tensor) -> Tensor:
        return state + u


@register("constant")
class Constant(Rule):
    """h ← h + c·u with one fixed c: the control for every rule that starts at a coefficient."""

    equation = r"h_l = h_{l-1} + c\,u_l"
    source = "the control that arXiv 2606.31859 lacks; c = 1/2 is its gates' starting point"
    options = {"c": Option(0.5, "the fixed coefficient")}

    def write(self, state: Tensor, u: Tensor) -> Tensor:
        return state + self.opt.c * u

    def coefficient(self, site: Site) -> float:
        return self.opt.c
