"""Rules that bring earlier states back before a block: the embedding, or a mirrored block's."""

import torch
from torch import Tensor, nn

from ..errors import RRError
from ..ops.norm import rms_norm
from ..specs import ModelConfig
from .base import RATE, Normal, Option, Rule, Site, flag, one_of, register
from .depth import depth_weights, unlooped

MODDED = "modded-nanogpt (Jordan et al. 2024)"


@register("x0-scales")
class X0Scales(Rule):
    """h ← λ_b·h + μ_b·x_0 before block b, then the standard residual in it.

    Two learned numbers per block: λ = 1 and μ = `x0` at the start. 0, modded-nanogpt's, begins as
    the standard network; nanochat started at 0.1. start=nanochat takes what it starts with now (its
    gpt.py of July 2026): λ falls evenly from 1.15 in the first block to 1.05 in the last, μ from
    0.20 to 0.05. In both the embedding is normalised before the first block (embedding=rms); here
    it is x_0 as it stands by default.

    rate is the factor of λ's learning rate, rate_x0 of μ's. In nanochat λ has 0.005 and μ 0.5 where
    the matrices have 0.02: `start=nanochat,embedding=rms,rate=0.25,rate_x0=25` at --lr 0.02. (Its
    λ also decays a little, and its AdamW has other betas there.)

    State: [h, x_0].
    """

    equation = (
        r"h \leftarrow \lambda_b\,h + \mu_b\,x_0 \text{ before block } b,"
        r"\quad h_l = h_{l-1} + u_l"
    )
    source = f"{MODDED}; nanochat (Karpathy 2025)"
    shipped = "nanochat (nanochat/gpt.py); modded-nanogpt's records"
    state = "pair"
    options = {
        "x0": Option(0.0, "μ at the start"),
        "start": one_of(
            "flat", "λ = 1 and μ = x0 at the start, or nanochat's by depth", "flat", "nanochat"
        ),
        "embedding": one_of("plain", "x_0 as it stands, or divided by its rms", "plain", "rms"),
        "rate_x0": RATE["rate"]._replace(meaning="factor of μ's learning rate; 0: that of λ"),
    }

    def build(self, site: Site, config: ModelConfig) -> None:
        if self.opt.x0 and self.opt.start != "flat":
            raise RRError(f"x0-scales: start={self.opt.start} brings its own μ: leave x0 out")
        if site.kind == "attn":
            # λ, μ; apart where μ has a rate of its own
            self.scales = nn.Parameter(torch.empty(1 if self.opt.rate_x0 else 2))
            if self.opt.rate_x0:
                self.mu = nn.Parameter(torch.empty(1))

    def fill(self, normal: Normal) -> None:
        if self.site.kind == "attn":
            start = torch.tensor(self.start(self.site))
            self.scales.copy_(start[: len(self.scales)])
            if self.opt.rate_x0:
                self.mu.copy_(start[1:])

    def own_rates(self) -> dict[str, float]:
        rates = super().own_rates()
        return rates | ({"mu": self.opt.rate_x0} if "mu" in dict(self.named_parameters()) else {})

    def start(self, site: Site) -> tuple[float, float]:
        """Initial λ and μ of this block."""
        if self.opt.start == "flat":
            return 1.0, self.opt.x0
        depth = (site.block - 1) / max(1, site.n_layer - 1)  # 0 in the first block, 1 in the last
        return 1.15 - 0.10 * depth, 0.20 - 0.15 * depth

    def open(self, x0: Tensor) -> list[Tensor]:
        x0 = rms_norm(x0) if self.opt.embedding == "rms" else x0
        # A copy: were both one tensor, the first block would have a compiled graph of its own.
        return [x0, x0.clone()]

    def read(self, state: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        h, x0 = state
        if self.site.kind == "attn":
            mu = self.mu[0] if self.opt.rate_x0 else self.scales[1]
            h = self.scales[0] * h + mu * x0
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
    adds=own is a control of size: the late block adds w times the stream it has, so that the stream
    grows as with skips, but nothing comes from an early block.

    State: [h, the outputs of early blocks that no late one has read yet …].
    """

    equation = (
        r"h \leftarrow h + w_b\,X_b \text{ before block } L + 1 - b,\quad h_l = h_{l-1} + u_l"
    )
    source = f"{MODDED}, after U-Net (1505.04597)"
    shipped = "modded-nanogpt's earlier records; one skip is left"
    state = "list"
    options = {
        "gate": one_of("number", "what w is: the number or σ of it", "number", "sigmoid"),
        "adds": one_of("early", "X_b: the mirrored block's output, or h itself", "early", "own"),
    }

    def build(self, site: Site, config: ModelConfig) -> None:
        unlooped(self, site)
        if self.mirrors(site):
            self.weight = nn.Parameter(torch.empty(()))

    @staticmethod
    def mirrors(site: Site) -> bool:
        """Whether an early block's output is added before this sublayer."""
        return site.kind == "attn" and site.block > site.n_layer - site.n_layer // 2

    def fill(self, normal: Normal) -> None:
        if self.mirrors(self.site):
            self.weight.fill_(-1.5 if self.opt.gate == "sigmoid" else 1.0)

    def skip(self) -> Tensor:
        """w, what the mirrored output is multiplied by."""
        return self.weight.sigmoid() if self.opt.gate == "sigmoid" else self.weight

    def open(self, x0: Tensor) -> list[Tensor]:
        return [x0]

    def read(self, state: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        if self.mirrors(self.site):
            h, *past, mirrored = state
            added = mirrored if self.opt.adds == "early" else h
            state = [h + self.skip() * added, *past]
        return self.prenorm(state[0]), state

    def write(self, state: list[Tensor], u: Tensor) -> list[Tensor]:
        h, *past = state
        h = h + u
        early = self.site.kind == "mlp" and self.site.block <= self.site.n_layer // 2
        return [h, *past, h] if early else [h, *past]

    def write_params(self, site: Site) -> int:
        return int(self.mirrors(site))


@register("scales-skips")
class ScalesSkips(UNet):
    """x0-scales and U-net skips in one rule; attnres=1 adds attention over the blocks' updates.

    Before block b: h ← λ_b·h + μ_b·x_0 + w_b·X_{L+1−b}, the last term in the later half of the
    blocks only, where X_b is what block b left. At the start λ = 1 and μ = 0, as in `x0-scales`,
    and w as in `unet`: the speedruns' baseline, to which others add.

    attnres=1 first replaces h by k Σ_i α_i v_i over its k parts, v_0 = x_0 and v_i what h gained
    from before to after block i − the scales and skips of that block included − with α as in
    `attnres` (2603.15031): one query per block, 0 at the start, and k times a uniform mean is
    the sum h, so that it starts as the baseline without it. People who ask whether AttnRes still
    helps such a baseline (nanochat 646) add it in ways of their own; this form is this package's.

    State: [h, h before the block, X_1 … of the early half, v_0, v_1 …]; v only with attnres=1.
    """

    equation = (
        r"h \leftarrow \lambda_b\,h + \mu_b\,x_0 + w_b\,X_{L+1-b},"
        r"\quad h_l = h_{l-1} + u_l"
    )
    source = f"{MODDED}; with attnres, Attention Residuals (2603.15031)"
    shipped = ""
    options = UNet.options | {"attnres": flag(0, "1: attend over the updates of blocks")}

    def build(self, site: Site, config: ModelConfig) -> None:
        super().build(site, config)
        if site.kind == "attn":
            self.scales = nn.Parameter(torch.empty(2))  # λ, μ
            if self.opt.attnres:
                self.query = nn.Parameter(torch.zeros(site.d_model))
                self.key_gain = nn.Parameter(torch.ones(site.d_model))

    def fill(self, normal: Normal) -> None:
        super().fill(normal)
        if self.site.kind == "attn":
            self.scales.copy_(torch.tensor([1.0, 0.0]))
            if self.opt.attnres:
                self.query.zero_()
                self.key_gain.fill_(1)

    def open(self, x0: Tensor) -> list[Tensor]:
        return [x0, x0, x0]

    def read(self, state: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        if self.site.kind != "attn":
            return self.prenorm(state[0]), state
        h, _, *past = state
        early = min(self.site.block - 1, self.site.n_layer // 2)
        outputs, parts = past[:early], past[early:]
        x0 = parts[0]
        if self.opt.attnres:
            values = torch.stack(parts)
            alpha = depth_weights(values, self.query, self.key_gain)
            h = len(parts) * (alpha * values).sum(0)
        h = self.scales[0] * h + self.scales[1] * x0
        if self.mirrors(self.site):
            mirrored = outputs[self.site.n_layer - self.site.block]
            h = h + self.skip() * (mirrored if self.opt.adds == "early" else h)
        return self.prenorm(h), [h, state[0], *past]

    def write(self, state: list[Tensor], u: Tensor) -> list[Tensor]:
        h, began, *past = state
        h = h + u
        if self.site.kind == "attn":
            return [h, began, *past]
        before = min(self.site.block - 1, self.site.n_layer // 2)
        outputs, parts = past[:before], past[before:]
        if self.site.block <= self.site.n_layer // 2:
            outputs = [*outputs, h]
        if self.opt.attnres:
            parts = [*parts, h - began]
        return [h, began, *outputs, *parts]

    def write_params(self, site: Site) -> int:
        if site.kind != "attn":
            return 0
        return 2 + super().write_params(site) + (2 * site.d_model if self.opt.attnres else 0)
