"""Parallel residuals: both sublayers of a block read one state, or each a lane of its own."""

import torch
from torch import Tensor, nn

from ..specs import ModelConfig
from .base import Normal, Rule, Site, one_of, register, whole


@register("parallel")
class Parallel(Rule):
    """h ← h + attention(norm(h)) + MLP(norm(h)): both sublayers of a block read what it began with.

    norm=shared, the default, has one norm for both, as GPT-J and PaLM do; norm=own one for each, as
    GPT-NeoX. `rr` runs the two one after the other: that both could run at once on a GPU is not
    used, so a step is no faster here.

    State: [h, what the MLP of this block reads].
    """

    equation = (
        r"h_b = h_{b-1} + \mathrm{attn}(x_b) + \mathrm{mlp}(x_b),\quad"
        r" x_b = \mathrm{norm}(h_{b-1})"
    )
    source = "GPT-J (Wang & Komatsuzaki 2021); PaLM (2204.02311); GPT-NeoX (2204.06745)"
    shipped = "GPT-J, PaLM, GPT-NeoX (their papers)"
    state = "pair"
    options = {
        "norm": one_of("shared", "one norm for both sublayers, or each its own", "shared", "own")
    }

    def norm_params(self, site: Site) -> int:
        return 0 if site.kind == "mlp" and self.opt.norm == "shared" else super().norm_params(site)

    def open(self, x0: Tensor) -> list[Tensor]:
        return [x0, x0]

    def read(self, state: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        h, for_mlp = state
        if self.site.kind == "mlp":
            return (for_mlp if self.opt.norm == "shared" else self.prenorm(for_mlp)), state
        x = self.prenorm(h)
        return x, [h, x if self.opt.norm == "shared" else h]

    def write(self, state: list[Tensor], u: Tensor) -> list[Tensor]:
        h, for_mlp = state
        h = h + u
        return [h, h if self.site.kind == "mlp" else for_mlp]


@register("lanes")
class Lanes(Rule):
    """Two streams without mixing: attention reads one lane, the MLP the other, both write to both.

    ρ_l scales what both lanes keep and w_{l,j} what lane j gets of the update, all learned; the
    head reads the mean of the lanes. At the start ρ = √1.1 and w = 1, but 3/2 for attention's write
    to the MLP's lane, as in the speedrun's record. Before block `start` there is one lane, with ρ
    and one w: the record has two in the last four of its eleven blocks (start=8). What else it adds
    there (x_0, bigrams, skips) is not part of this rule.

    State: [attention's lane, the MLP's lane].
    """

    equation = (
        r"a_l = \rho_l a_{l-1} + w_{l,1} u_l,\quad m_l = \rho_l m_{l-1} + w_{l,2} u_l,\quad"
        r" u = \mathrm{attn}(\mathrm{norm}(a)),\ \mathrm{mlp}(\mathrm{norm}(m))"
    )
    source = "modded-nanogpt (pull request 230, 2026)"
    shipped = "records of modded-nanogpt, February 2026"
    state = "pair"
    options = {"start": whole(1, "first block with two lanes", 1)}

    def build(self, site: Site, config: ModelConfig) -> None:
        self.keep = nn.Parameter(torch.empty(()))
        self.share = nn.Parameter(torch.empty(2 if self.split(site) else 1))

    def split(self, site: Site) -> bool:
        """Whether the lanes differ after this sublayer."""
        return site.block >= self.opt.start

    def fill(self, normal: Normal) -> None:
        self.keep.fill_(1.1**0.5)
        self.share.fill_(1)
        if self.site.kind == "attn" and self.split(self.site):
            self.share[1].fill_(1.5)

    def open(self, x0: Tensor) -> list[Tensor]:
        # A copy: were both one tensor, the first block would have a compiled graph of its own.
        return [x0, x0.clone()]

    def read(self, state: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        attention, mlp = state
        if self.site.kind == "final":
            return self.prenorm((attention + mlp) / 2), state
        return self.prenorm(mlp if self.site.kind == "mlp" else attention), state

    def write(self, state: list[Tensor], u: Tensor) -> list[Tensor]:
        attention, mlp = state
        return [
            self.keep * attention + self.share[0] * u,
            self.keep * mlp + self.share[-1] * u,
        ]

    def kept(self, h: Tensor, u: Tensor) -> Tensor:
        return self.keep

    def write_params(self, site: Site) -> int:
        return 3 if self.split(site) else 2

    def coefficient(self, site: Site) -> float | None:
        return None if self.split(site) else 1.0  # one for each lane

    def carry(self, site: Site) -> float:
        return 1.1**0.5
