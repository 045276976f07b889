"""Rules with several streams, whose reads, mixes and writes are learned."""

import torch
from torch import Tensor, nn

from ..config import ModelConfig
from ..ops.norm import rms_norm
from .base import Normal, Option, Rule, Site, one_of, register, whole

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

    mixing=identity keeps A_r the identity: the streams are read and written, and never mixed.

    head=weighted reads the streams before the head as DeepSeek-V4's model code does, by
    σ(s·(rms(vec H) W) + b) per stream, W (n·d, n) = 0, b = 0 and s = 0.01 at the start: each stream
    by one half, which the norm that follows takes for the sum. (Its own start is not in that code.)
    """

    equation = r"H_l = A_r^\top H_{l-1} + B\,u_l^\top,\quad x_l = A_m^\top H_{l-1}"
    source = "Hyper-Connections (2409.19606); with sinkhorn, mHC (2512.24880)"
    state = "streams"
    matrix_names = ("dynamic",)
    at_final = True
    options = {
        "streams": whole(4, "n", 1),
        "dynamic": Option(1, "1: coefficients read the token", "0 or 1", lambda n: n in (0, 1)),
        "sinkhorn": Option(0, "1: the constrained form", "0 or 1", lambda n: n in (0, 1)),
        "mixing": one_of("learned", "A_r: learned, or the identity", "learned", "identity"),
        "head": one_of("sum", "the head's read: the sum, or a weighted one", "sum", "weighted"),
    }

    def build(self, site: Site, config: ModelConfig) -> None:
        n = self.opt.streams
        if site.kind == "final":
            if self.opt.head == "weighted":
                self.static = nn.Parameter(torch.empty(n))
                self.dynamic = nn.Parameter(torch.empty(n * site.d_model, n))
                self.scale = nn.Parameter(torch.empty(1))
            return
        # Columns: A_m (1), A_r (n), B (1), one row per stream.
        self.static = nn.Parameter(torch.empty(n, self.columns))
        if self.opt.dynamic:
            self.dynamic = nn.Parameter(torch.empty(*self._projection(site)))
            self.scale = nn.Parameter(torch.empty(self.scales))

    @property
    def mixes(self) -> bool:
        """Whether A_r is learned."""
        return self.opt.mixing == "learned"

    @property
    def columns(self) -> int:
        """Coefficients per stream: of A_m, of A_r where it is learned, of B."""
        return self.opt.streams + 2 if self.mixes else 2

    @property
    def scales(self) -> int:
        """Numbers s: of A and B, or with sinkhorn of A_m, A_r and B."""
        return 3 if self.opt.sinkhorn and self.mixes else 2

    def _projection(self, site: Site) -> tuple[int, int]:
        """Shape of W: from one stream to its own coefficients, or from all to all."""
        n = self.opt.streams
        per_stream = (site.d_model, self.columns)
        return (n * per_stream[0], n * per_stream[1]) if self.opt.sinkhorn else per_stream

    def reset(self, normal: Normal) -> None:
        super().reset(normal)
        if self.site.kind == "final":
            if self.opt.head == "weighted":
                nn.init.zeros_(self.static)
                nn.init.zeros_(self.dynamic)
                nn.init.constant_(self.scale, 0.01)
            return
        n = self.opt.streams
        pick = nn.functional.one_hot(torch.tensor((self.site.sublayer - 1) % n), n).float()
        mixing = [torch.eye(n)] if self.mixes else []
        start = torch.cat([pick[:, None], *mixing, torch.ones(n, 1)], 1)
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
        middle = n if self.mixes else 0
        if self.opt.dynamic and self.opt.sinkhorn:
            scale = torch.cat([self.scale[:1], self.scale[1:2].expand(middle), self.scale[-1:]])
            seen = rms_norm(streams.flatten(-2)) @ self.dynamic
            all_ = all_ + scale * seen.unflatten(-1, (n, self.columns))
        elif self.opt.dynamic:
            scale = torch.cat([self.scale[:1].expand(middle + 1), self.scale[1:]])  # of A, of B
            all_ = all_ + scale * torch.tanh(rms_norm(streams) @ self.dynamic)
        read, mix, spread = all_.split([1, middle, 1], -1)
        if not self.mixes:
            mix = torch.eye(n, dtype=read.dtype, device=read.device).expand(*read.shape[:-1], n)
        elif self.opt.sinkhorn:
            mix = sinkhorn(mix)
        if self.opt.sinkhorn:
            return read.sigmoid(), mix, 2 * spread.sigmoid()
        return read, mix, spread

    def read(self, state: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor] | Tensor]:
        """The final site reads the streams' sum, or `head`; elsewhere B is passed to the write."""
        if self.site.kind == "final":
            if self.opt.head == "sum":
                return self.prenorm(state.sum(-2)), state
            seen = rms_norm(state.flatten(-2)) @ self.dynamic
            weights = (self.scale * seen + self.static).sigmoid()
            return self.prenorm((weights.unsqueeze(-1) * state).sum(-2)), state
        read, mix, spread = self.coefficients(state)
        if not self.mixes:
            with torch.autocast(state.device.type, enabled=False):
                x = (read.to(state.dtype).transpose(-1, -2) @ state)[..., 0, :]
            return self.prenorm(x), (state, spread)
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
        if site.kind == "final":
            return n + n * n * site.d_model + 1 if self.opt.head == "weighted" else 0
        rows, columns = self._projection(site)
        return n * self.columns + (rows * columns + self.scales if self.opt.dynamic else 0)

    def matmul_flops(self, site: Site) -> int:
        n = self.opt.streams
        if site.kind == "final":
            return 2 * n * n * site.d_model if self.opt.head == "weighted" else 0
        rows, columns = self._projection(site)
        times = 1 if self.opt.sinkhorn else n  # W meets all streams at once, or each in turn
        project = times * rows * columns if self.opt.dynamic else 0
        mixed = n + 1 if self.mixes else 1  # rows that are made of the n streams
        return 2 * (site.d_model * n * mixed + project)

    def coefficient(self, site: Site) -> None:
        return None  # one coefficient per stream
