"""Rules that carry several streams: what a sublayer reads and where it writes are both learned."""

import torch
from torch import Tensor, nn

from ..config import ModelConfig
from ..ops import rms_norm
from .base import Normal, Option, Rule, Site, register, whole

SINKHORN_STEPS = 20


def sinkhorn(logits: Tensor) -> Tensor:
    """A (nearly) doubly stochastic matrix from logits (…, n, n): rows and columns sum to 1."""
    log = logits.float()
    for _ in range(SINKHORN_STEPS):
        log = log.log_softmax(-2).log_softmax(-1)
    return log.exp().to(logits.dtype)


@register("hyper-connections")
class HyperConnections(Rule):
    """n streams H (n, d); a sublayer reads A_mᵀH, the streams mix by A_r, and B spreads the update.

    H ← A_rᵀ H + B uᵀ. At the start A_m picks stream l mod n, A_r is the identity and B is all
    ones: every stream holds the standard residual. The head reads the sum of the streams.

    dynamic=1 adds to each coefficient s·tanh(rms(H) W), with W = 0 and s = 0.01 at the start (the
    paper's norm is LayerNorm). sinkhorn=1 constrains them as mHC (2512.24880) does: A_r made doubly
    stochastic, A_m = σ(·), B = 2σ(·); its logits' initial values here are ours, ±8 and 0, near the
    same start.
    """

    equation = r"H_l = A_r^\top H_{l-1} + B\,u_l^\top,\quad x_l = A_m^\top H_{l-1}"
    source = "Hyper-Connections (2409.19606); with sinkhorn, mHC (2512.24880)"
    state = "streams"
    matrix_names = ("dynamic",)
    options = {
        "streams": whole(4, "n", 1),
        "dynamic": Option(1, "1: coefficients read the token", "0 or 1", lambda n: n in (0, 1)),
        "sinkhorn": Option(0, "1: the constrained form", "0 or 1", lambda n: n in (0, 1)),
    }

    def build(self, site: Site, config: ModelConfig) -> None:
        n = self.opt.streams
        # Columns: A_m (1), A_r (n), B (1), one row a stream.
        self.static = nn.Parameter(torch.empty(n, n + 2))
        if self.opt.dynamic:
            self.dynamic = nn.Parameter(torch.empty(site.d_model, n + 2))
            self.scale = nn.Parameter(torch.empty(2))  # of A, of B

    def reset(self, normal: Normal) -> None:
        super().reset(normal)
        if self.site.kind == "final":
            return
        n = self.opt.streams
        pick = nn.functional.one_hot(torch.tensor((self.site.sublayer - 1) % n), n).float()
        start = torch.cat([pick[:, None], torch.eye(n), torch.ones(n, 1)], 1)
        if self.opt.sinkhorn:
            start = 16 * start - 8
            start[:, -1] = 0  # 2σ(0) = 1
        self.static.copy_(start)
        if self.opt.dynamic:
            nn.init.zeros_(self.dynamic)
            nn.init.constant_(self.scale, 0.01)

    def open(self, x0: Tensor) -> Tensor:
        """The embedding in every stream, (B, T, n, d)."""
        # Copies, not a view of stride 0: every layer then sees one layout, and compiles once.
        return x0.unsqueeze(-2).repeat(1, 1, self.opt.streams, 1)

    def coefficients(self, streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A_m (…, n, 1), A_r (…, n, n) and B (…, n, 1) for streams (B, T, n, d)."""
        n, all_ = self.opt.streams, self.static
        if self.opt.dynamic:
            scale = torch.cat([self.scale[:1].expand(n + 1), self.scale[1:]])
            all_ = all_ + scale * torch.tanh(rms_norm(streams) @ self.dynamic)
        read, mix, spread = all_.split([1, n, 1], -1)
        if self.opt.sinkhorn:
            return read.sigmoid(), sinkhorn(mix), 2 * spread.sigmoid()
        return read, mix, spread

    def read(self, state: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor] | Tensor]:
        """The final site reads the streams' sum; elsewhere B goes along to the write."""
        if self.site.kind == "final":
            return rms_norm(state.sum(-2), self.gain), state
        read, mix, spread = self.coefficients(state)
        how = torch.cat([read, mix], -1).to(state.dtype).transpose(-1, -2)
        with torch.autocast(state.device.type, enabled=False):  # the streams keep their precision
            made = how @ state  # (B, T, 1 + n, d)
        x, streams = made[..., 0, :], made[..., 1:, :]
        return rms_norm(x, self.gain), (streams, spread)

    def write(self, state: tuple[Tensor, Tensor], u: Tensor) -> Tensor:
        streams, spread = state
        return streams + spread * u.unsqueeze(-2)

    def write_params(self, site: Site) -> int:
        n = self.opt.streams
        return n * (n + 2) + ((n + 2) * site.d_model + 2 if self.opt.dynamic else 0)

    def matmul_flops(self, site: Site) -> int:
        if site.kind == "final":
            return 0
        n = self.opt.streams
        project = n * (n + 2) if self.opt.dynamic else 0
        return 2 * site.d_model * (n * (n + 1) + project)

    def coefficient(self, site: Site) -> None:
        return None  # one coefficient a stream
