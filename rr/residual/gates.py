"""Rules whose coefficient is a gate: a number between 0 and 1 for each token and channel."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..config import ModelConfig
from ..ops import review_gate
from .base import Normal, Option, Rule, Site, register

STUDY = "Review Residuals (2606.31859)"


class Gated(Rule):
    """Base of the gates: one weight matrix (d, inputs·d) and a bias (d,)."""

    inputs = 1  # how many vectors of d channels the gate reads
    matrix_names = ("weight",)
    options = {"bias": Option(0.0, "initial gate bias; negative starts near carry")}

    def build(self, site: Site, config: ModelConfig) -> None:
        d = site.d_model
        self.weight = nn.Parameter(torch.zeros(d, self.inputs * d))
        self.bias = nn.Parameter(torch.zeros(d))

    def reset(self, normal: Normal) -> None:
        super().reset(normal)
        if self.site.kind != "final":
            nn.init.zeros_(self.weight)
            nn.init.constant_(self.bias, self.opt.bias)

    def write(self, state: Tensor, u: Tensor) -> Tensor:
        return state + self.gate(state, u) * u

    def write_params(self, site: Site) -> int:
        return self.inputs * site.d_model**2 + site.d_model

    def matmul_flops(self, site: Site) -> int:
        return 0 if site.kind == "final" else 2 * self.inputs * site.d_model**2

    def coefficient(self, site: Site) -> float | None:
        return 1 / (1 + math.exp(-self.opt.bias))


class StateGated(Gated):
    """A gate on the raw state, with weights that start at N(0, 0.02) as every linear layer's."""

    def gate(self, h: Tensor, u: Tensor) -> Tensor:
        return torch.sigmoid(F.linear(h, self.weight, self.bias))

    def reset(self, normal: Normal) -> None:
        super().reset(normal)
        if self.site.kind != "final":
            normal(self.weight, 0.02)

    def coefficient(self, site: Site) -> None:
        return None  # σ(W h + b) depends on the state from the first step


class Convex:
    """The convex write: what the gate lets in pushes as much of the old state out."""

    def write(self, state: Tensor, u: Tensor) -> Tensor:
        return state + self.gate(state, u) * (u - state)

    def kept(self, h: Tensor, u: Tensor) -> Tensor:
        return 1 - self.gate(h, u)

    def carry(self, site: Site) -> float | None:
        coefficient = self.coefficient(site)
        return None if coefficient is None else 1 - coefficient


@register("highway")
class Highway(StateGated):
    """The study's "Highway" arm: additive, its gate reading the un-normalised state.

    It is not the Highway network of 2015, which carries (1 − r)h: see `highway-carry`. Its gate
    starts near ½ but not at it, because the weights are not zero.
    """

    equation = r"h_l = h_{l-1} + \sigma(W h_{l-1} + b) \odot u_l"
    source = f"{STUDY}, its baseline; compare the output gate of GTrXL (1910.06764)"


@register("review")
class Review(Gated):
    """The study's rule: the gate reads the normalised state and the normalised update.

    W = 0 and b = 0 at the start, so r = ½ exactly, for every token and channel.
    """

    equation = (
        r"h_l = h_{l-1} + r_l \odot u_l,\quad "
        r"r_l = \sigma(W[\mathrm{rms}(h_{l-1}), \mathrm{rms}(u_l)] + b)"
    )
    source = STUDY
    inputs = 2

    def gate(self, h: Tensor, u: Tensor) -> Tensor:
        return review_gate(h, u, self.weight, self.bias)


@register("review-convex")
class ReviewConvex(Convex, Review):
    """The convex form of the Review gate, the one that the study reports as failing with depth."""

    equation = (
        r"h_l = (1 - r_l) \odot h_{l-1} + r_l \odot u_l,\quad "
        r"r_l = \sigma(W[\mathrm{rms}(h_{l-1}), \mathrm{rms}(u_l)] + b)"
    )
    source = f"{STUDY}, the form it rejects"


@register("highway-carry")
class HighwayCarry(Convex, StateGated):
    """The Highway network of 2015, its transform the sublayer's update, biased towards carry."""

    equation = (
        r"h_l = (1 - r_l) \odot h_{l-1} + r_l \odot u_l,\quad r_l = \sigma(W h_{l-1} + b)"
    )
    source = "Highway Networks (1505.00387)"
    options = {"bias": Option(-2.0, "initial bias of the transform gate; negative carries")}
