"""Rules with several streams, whose reads, mixes and writes are learned."""

import torch
from torch import Tensor, nn

from ..config import ModelConfig
from ..ops.norm import rms_norm
from .base import Normal, Option, Rule, Site, register, whole

SINKHORN_STEPS = 20  # t_max of mHC


def sinkhorn(logits: Tensor) -> Tensor:
    """A (nearly) doubly stochastic matrix from logits (…, n, n): rows and columns sum to 1.

    exp(logits), then rows and columns rescaled in turn; the axis -2 comes last and is exact.
    """
    log = logits.to(torch.promote_types(logits.dtype, torch.float32))
    for _ in range(SINKHORN_STEPS):
        log = log.log_softmax(-1).log_softmax(-2)
    return log.exp().to(logits.dtype)


@register("hyper-connections")
class HyperConnections(Rule):
    """n streams H (n, d); a sublayer reads A_mᵀH, the streams mix by A_r, and B spreads the update.

    H ← A_rᵀ H + B uᵀ. At the start A_m picks stream l mod n, A_r is the identity and B is all
    ones: every stream holds the standard residual. The head reads the sum of the streams.

    dynamic=1 adds to each coefficient s·tanh(rms(H) W), with W (d, n + 2) = 0 and s = 0.01 at the
    start: each stream determines its own coefficients (the paper's norm is LayerNorm).

    sinkhorn=1 is mHC (2512.24880): the coefficients become logits of A_m = σ(·), B = 2σ(·) and of
    an A_r that 20 Sinkhorn steps make doubly stochastic (the paper's H_res is A_rᵀ). dynamic=1 then
    adds s·(rms(vec H) W) without tanh, W (n·d, n(n + 2)): all streams together determine each
    coefficient, with one s each for A_m, A_r and B. The paper gives s = 0.01, n = 4 and 20 steps
    but, as far as we have read it, no initial logits: here ±3 (stream l mod n and the diagonal +3)
    and 0 for B, as PaddleFleet sets them. All streams are equal at the start and A_r's columns
    sum to 1, so the network starts as the standard one here too.
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
        # Columns: A_m (1), A_r (n), B (1), one row per stream.
        self.static = nn.Parameter(torch.empty(n, n + 2))
        if self.opt.dynamic:
            self.dynamic = nn.Parameter(torch.empty(*self._projection(site)))
            self.scale = nn.Parameter(torch.empty(3 if self.opt.sinkhorn else 2))

    def _projection(self, site: Site) -> tuple[int, int]:
        """Shape of W: from one stream to its own n + 2 coefficients, or from all to all."""
        n = self.opt.streams
        per_stream = (site.d_model, n + 2)
        return (n * per_stream[0], n * per_stream[1]) if self.opt.sinkhorn else per_stream

    def reset(self, normal: Normal) -> None:
        super().reset(normal)
        if self.site.kind == "final":
            return
        n = self.opt.streams
        pick = nn.functional.one_hot(torch.tensor((self.site.sublayer - 1) % n), n).float()
        start = torch.cat([pick[:, None], torch.eye(n), torch.ones(n, 1)], 1)
        if self.opt.sinkhorn:
            start = 6 * start - 3
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
        if self.opt.dynamic and self.opt.sinkhorn:
            scale = torch.cat([self.scale[:1], self.scale[1:2].expand(n), self.scale[2:]])
            seen = rms_norm(streams.flatten(-2)) @ self.dynamic
            all_ = all_ + scale * seen.unflatten(-1, (n, n + 2))
        elif self.opt.dynamic:
            scale = torch.cat([self.scale[:1].expand(n + 1), self.scale[1:]])  # of A, of B
            all_ = all_ + scale * torch.tanh(rms_norm(streams) @ self.dynamic)
        read, mix, spread = all_.split([1, n, 1], -1)
        if self.opt.sinkhorn:
            return read.sigmoid(), sinkhorn(mix), 2 * spread.sigmoid()
        return read, mix, spread

    def read(self, state: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor] | Tensor]:
        """The final site reads the streams' sum; elsewhere B is passed to the write."""
        if self.site.kind == "final":
            return self.prenorm(state.sum(-2)), state
        read, mix, spread = self.coefficients(state)
        how = torch.cat([read, mix], -1).to(state.dtype).transpose(-1, -2)
        with torch.autocast(state.device.type, enabled=False):  # the streams keep their precision
            made = how @ state  # (B, T, 1 + n, d)
        x, streams = made[..., 0, :], made[..., 1:, :]
        return self.prenorm(x), (streams, spread)

    def write(self, state: tuple[Tensor, Tensor], u: Tensor) -> Tensor:
        streams, spread = state
        return streams + spread * u.unsqueeze(-2)

    def write_params(self, site: Site) -> int:
        n = self.opt.streams
        rows, columns = self._projection(site)
        scales = 3 if self.opt.sinkhorn else 2
        return n * (n + 2) + (rows * columns + scales if self.opt.dynamic else 0)

    def matmul_flops(self, site: Site) -> int:
        if site.kind == "final":
            return 0
        n = self.opt.streams
        rows, columns = self._projection(site)
        times = 1 if self.opt.sinkhorn else n  # W meets all streams at once, or each in turn
        project = times * rows * columns if self.opt.dynamic else 0
        return 2 * (site.d_model * n * (n + 1) + project)

    def coefficient(self, site: Site) -> None:
        return None  # one coefficient per stream
