"""Where the norm of a sublayer stands: before it, behind it, around it, or behind the sum."""

import torch
from torch import Tensor, nn

from ..errors import RRError
from ..ops.norm import rms_norm
from ..specs import ModelConfig
from .base import EPSILON, Normal, Rule, Site, flag, one_of, register


@register("norm-place")
class NormPlace(Rule):
    """h ← h + n_2(f(n_1(h))), and three other places of the norm; n is rms(x) ⊙ gain.

        place=both     h ← h + n_2(f(n_1(h)))       Gemma 2, 3 and 4: the sandwich, or peri-norm
        place=output   h ← h + n_2(f(h))            OLMo 2 and 3
        place=stream   h ← n(h + f(h))              the transformer of 2017: post-norm
        place=depth    h ← h + f(n_1(h)/√l)         LayerNorm scaling; l counts blocks from 1

    `standard` is h + f(n_1(h)), and `keel` n_2(S·h + f(n_1(h))). A gain before the head follows in
    each case but place=stream, whose last write has normalised.

    scalar=1 multiplies the stream by a learned number s after each block, 1 at the start: Gemma 4's
    `layer_scalar`. In Transformers it is a buffer, read from the checkpoint; how it was trained is
    not published, and here it is a parameter without weight decay.

    Weights start as everywhere here. n_2 divides out how large the last weights of a branch are, so
    that a first update has an rms of nearly 1, in a stream that starts at 0.03.

    Gemma has 1e-6 inside its norms (eps=1e-6), OLMo 3 has 1e-5 as here. Where the branch
    normalises its input itself (norm=False), only place=both is what it says, and the others raise
    RRError.
    """

    equation = r"h_l = h_{l-1} + n_2(f(n_1(h_{l-1})))"
    source = (
        "Gemma 2 (2408.00118), OLMo 2 (2501.00656); post-norm: Vaswani et al. 2017 (1706.03762); "
        "LayerNorm scaling (2502.05795)"
    )
    shipped = "Gemma 2 to 4, OLMo 2 and 3 (gemma3, gemma4, olmo3 in Transformers)"
    options = EPSILON | {
        "place": one_of(
            "both", "where the norm stands, as above", "both", "output", "stream", "depth"
        ),
        "scalar": flag(0, "1: a learned number scales the stream after each block"),
    }

    scale: Tensor  # 1/√l

    def build(self, site: Site, config: ModelConfig) -> None:
        if not site.norm and self.opt.place != "both":
            raise RRError(
                f"norm-place: place={self.opt.place} needs branches that read the stream as it "
                "is, and these normalise it: use place=both, or norm=True with branches that do not"
            )
        if self.opt.place == "depth":
            # a buffer: as a Python number it would compile each block anew
            self.register_buffer("scale", torch.tensor(site.block**-0.5), persistent=False)
        else:
            self.out_gain = nn.Parameter(torch.ones(site.d_model))
        if self.scales(site):
            self.scalar = nn.Parameter(torch.ones(()))

    def scales(self, site: Site) -> bool:
        """Whether the stream is scaled after this sublayer, the last one of its block."""
        return bool(self.opt.scalar) and site.kind == "mlp"

    def norm_params(self, site: Site) -> int:
        unread = ("stream",) if site.kind == "final" else ("stream", "output")
        return 0 if self.opt.place in unread else super().norm_params(site)

    def fill(self, normal: Normal) -> None:
        if self.opt.place == "depth":
            self.scale.fill_(self.site.block**-0.5)
        else:
            self.out_gain.fill_(1)
        if self.scales(self.site):
            self.scalar.fill_(1)

    def read(self, state: Tensor) -> tuple[Tensor, Tensor]:
        if not self.norm_params(self.site) and self.site.norm:
            return state, state
        x = self.prenorm(state)
        return (x * self.scale if self.shrinks else x), state

    @property
    def shrinks(self) -> bool:
        """Whether what this sublayer reads is divided by √l."""
        return self.opt.place == "depth" and self.site.kind != "final"

    def write(self, state: Tensor, u: Tensor) -> Tensor:
        if self.opt.place == "stream":
            h = rms_norm(state + u, self.out_gain, self.eps)
        else:
            h = state + (u if self.shrinks else rms_norm(u, self.out_gain, self.eps))
        return self.scalar * h if self.scales(self.site) else h

    def kept(self, h: Tensor, u: Tensor) -> Tensor | float:
        kept = self.scalar if self.scales(self.site) else 1.0
        if self.opt.place != "stream":
            return kept
        square = (h + u).pow(2).mean(-1, keepdim=True)
        return kept * self.out_gain * torch.rsqrt(square + self.eps)

    def write_params(self, site: Site) -> int:
        if site.kind == "final":
            return 0
        return (0 if self.opt.place == "depth" else site.d_model) + self.scales(site)

    def coefficient(self, site: Site) -> float | None:
        return 1.0 if self.opt.place == "depth" else None  # a norm divides u by its length

    def carry(self, site: Site) -> float | None:
        return None if self.opt.place == "stream" else 1.0
