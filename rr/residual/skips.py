"""Rules that bring one earlier state back before a block: the embedding, or a mirrored block's."""

import torch
from torch import Tensor, nn

from ..config import ModelConfig
from ..ops.norm import rms_norm
from .base import Normal, Option, Rule, Site, one_of, register
from .depth import unlooped

MODDED = "modded-nanogpt (Jordan et al. 2024)"


@register("x0-scales")
class X0Scales(Rule):
    """h ← λ_b·h + μ_b·x_0 before block b, then the standard residual in it.

    Two learned numbers per block: λ = 1 and μ = `x0` at the start. 0, modded-nanogpt's, begins as
    the standard network; nanochat started at 0.1, and now starts each block otherwise
    (start=depth): λ falls from 1.15 in the first block to 1.05 in the last, and μ from 0.20 to
    0.05. In both the embedding is normalised before the first block (embedding=rms); here it is x_0
    as it stands by default.

    State: [h, x_0].
    """

    equation = (
        r"h \leftarrow \lambda_b\,h + \mu_b\,x_0 \text{ before block } b,"
        r"\quad h_l = h_{l-1} + u_l"
    )
    source = f"{MODDED}; nanochat (Karpathy 2025)"
    state = "pair"
    options = {
        "x0": Option(0.0, "μ at the start"),
        "start": one_of("flat", "λ = 1 and μ = x0, or nanochat's, by depth", "flat", "depth"),
        "embedding": one_of("plain", "x_0 as it stands, or divided by its rms", "plain", "rms"),
    }

    def build(self, site: Site, config: ModelConfig) -> None:
        if site.kind == "attn":
            self.scales = nn.Parameter(torch.empty(2))  # λ, μ

    def reset(self, normal: Normal) -> None:
        super().reset(normal)
        if self.site.kind == "attn":
            kept, added = 1.0, self.opt.x0
            if self.opt.start == "depth":
                done = (self.site.block - 1) / max(1, self.site.n_layer - 1)
                kept, added = 1.15 - 0.10 * done, 0.20 - 0.15 * done
            self.scales.copy_(torch.tensor([kept, added]))

    def open(self, x0: Tensor) -> list[Tensor]:
        x0 = rms_norm(x0) if self.opt.embedding == "rms" else x0
        # A copy: were both one tensor, the first block would have a compiled graph of its own.
        return [x0, x0.clone()]

    def read(self, state: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        h, x0 = state
        if self.site.kind == "attn":
            h = self.scales[0] * h + self.scales[1] * x0
        return self.prenorm(h), [h, x0]

    def write(self, state: list[Tensor], u: Tensor) -> list[Tensor]:
        h, x0 = state
        return [h + u, x0]

    def write_params(self, site: Site) -> int:
        return 2 if site.kind == "attn" else 0


@register("unet")
class UNet(Rule):
    """Block L + 1 − b reads the stream plus w times what block b ≤ L/2 left: a U-net's skips.

    One learned number w per pair of blocks, 1 at the start; gate=sigmoid takes σ(w) with w = −1.5,
    as later records of modded-nanogpt do. Of an odd number of blocks the middle one has no partner.

    State: [h, the outputs of early blocks that no late one has read yet …].
    """

    equation = (
        r"h \leftarrow h + w_b\,X_b \text{ before block } L + 1 - b,\quad h_l = h_{l-1} + u_l"
    )
    source = f"{MODDED}, after U-Net (1505.04597)"
    state = "list"
    options = {"gate": one_of("number", "what w is: the number or σ of it", "number", "sigmoid")}

    def build(self, site: Site, config: ModelConfig) -> None:
        unlooped(self, site)
        if self.mirrors(site):
            self.weight = nn.Parameter(torch.empty(()))

    @staticmethod
    def mirrors(site: Site) -> bool:
        """Whether an early block's output is added before this sublayer."""
        return site.kind == "attn" and site.block > site.n_layer - site.n_layer // 2

    def reset(self, normal: Normal) -> None:
        super().reset(normal)
        if self.mirrors(self.site):
            nn.init.constant_(self.weight, -1.5 if self.opt.gate == "sigmoid" else 1.0)

    def open(self, x0: Tensor) -> list[Tensor]:
        return [x0]

    def read(self, state: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        if self.mirrors(self.site):
            h, *past, mirrored = state
            weight = self.weight.sigmoid() if self.opt.gate == "sigmoid" else self.weight
            state = [h + weight * mirrored, *past]
        return self.prenorm(state[0]), state

    def write(self, state: list[Tensor], u: Tensor) -> list[Tensor]:
        h, *past = state
        h = h + u
        early = self.site.kind == "mlp" and self.site.block <= self.site.n_layer // 2
        return [h, *past, h] if early else [h, *past]

    def write_params(self, site: Site) -> int:
        return int(self.mirrors(site))
