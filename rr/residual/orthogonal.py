"""Rules that look at the angle between update and stream: orthogonal updates, delta updates."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..ops.norm import rms_norm
from ..specs import ModelConfig
from .base import Normal, Option, Rule, Site, register


@register("orthogonal")
class Orthogonal(Rule):
    """h ← h + u − s·h with s = ⟨h, u⟩ / (⟨h, h⟩ + ε) per token: only what is orthogonal is added.

    The length of the stream then never shrinks: ‖h_l‖² = ‖h_{l−1}‖² + ‖u_⊥‖², up to ε. The form
    per token and ε = 1e-6 are those of the authors' code; the paper's experiments are on images.
    """

    equation = (
        r"h_l = h_{l-1} + u_l - s_l\,h_{l-1},\quad"
        r" s_l = \frac{\langle h_{l-1}, u_l\rangle}{\langle h_{l-1}, h_{l-1}\rangle + \varepsilon}"
    )
    source = "Orthogonal Residual Updates (2505.11881)"
    options = {
        "eps": Option(1e-6, "ε", "a number above 0", lambda number: 0 < number < float("inf"))
    }

    def along(self, h: Tensor, u: Tensor) -> Tensor:
        """s: how much of h the update holds, (B, T, 1)."""
        h, u = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (h, u))  # as in delta
        return (h * u).sum(-1, keepdim=True) / (h.square().sum(-1, keepdim=True) + self.opt.eps)

    def write(self, state: Tensor, u: Tensor) -> Tensor:
        return state + (u - self.along(state, u) * state)

    def kept(self, h: Tensor, u: Tensor) -> Tensor:
        return 1 - self.along(h, u)

    def coefficient(self, site: Site) -> None:
        return None  # how much of u is left depends on where h points

    def carry(self, site: Site) -> None:
        return None


@register("delta")
class Delta(Rule):
    """h ← h + β (v − ⟨k, h⟩) k: along the update's direction k the stream is set towards v.

    k = u / ‖u‖ is all that is kept of the update; β = 2σ(w_β·rms(h) + b_β), between 0 and 2, and
    v = 4σ(w_v·h + b_v) are two numbers per token. At β = 0 nothing is written; at 1 what the stream
    had along k is replaced by v; at 2 it is reflected and added to. Weights start N(0, ¼/d), biases
    at 0, so β near 1 and v near 2: the form with one value channel, ε = 1e-5 in ‖u‖ and starts of
    the authors' code (DDL-vdim1 of yifanzhang-pro/deep-delta-learning). That leaves the bias of v
    at PyTorch's random start and has the norm's gain in rms(h); its other form holds a matrix of
    d × 4 per token.
    """

    equation = r"h_l = h_{l-1} + \beta_l\,(v_l - k_l^\top h_{l-1})\,k_l,\quad k_l = u_l / \|u_l\|"
    source = "Deep Delta Learning (2601.00417)"

    def build(self, site: Site, config: ModelConfig) -> None:
        self.step = nn.Parameter(torch.zeros(1, site.d_model))  # w_β
        self.value = nn.Parameter(torch.zeros(1, site.d_model))  # w_v
        self.bias = nn.Parameter(torch.zeros(2))  # of β, of v

    def fill(self, normal: Normal) -> None:
        normal(self.step, 0.5 * self.site.d_model**-0.5)
        normal(self.value, 0.5 * self.site.d_model**-0.5)
        self.bias.zero_()

    def beta(self, h: Tensor) -> Tensor:
        """The step along k, 0 to 2, (B, T, 1)."""
        return 2 * torch.sigmoid(F.linear(rms_norm(h), self.step, self.bias[:1]))

    def factor(self, h: Tensor, u: Tensor) -> Tensor:
        """The coefficient on u, β (v − ⟨k, h⟩) / ‖u‖, (B, T, 1); any sign."""
        u = u.to(torch.promote_types(u.dtype, torch.float32))  # in fp16 a sum of squares overflows
        length = torch.rsqrt(u.square().sum(-1, keepdim=True) + 1e-10)
        v = 4 * torch.sigmoid(F.linear(h, self.value, self.bias[1:]))
        return self.beta(h) * (v - (u * length * h).sum(-1, keepdim=True)) * length

    def write(self, state: Tensor, u: Tensor) -> Tensor:
        return state + self.factor(state, u) * u

    def write_params(self, site: Site) -> int:
        return 2 * site.d_model + 2

    def matmul_flops(self, site: Site) -> int:
        return 0 if site.kind == "final" else 4 * site.d_model

    def coefficient(self, site: Site) -> None:
        return None  # the update's length does not count
