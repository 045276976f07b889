"""Rules with several streams, whose reads, mixes and writes are learned."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import RRError
from ..ops.norm import rms_norm
from ..specs import ModelConfig
from .base import EPSILON, Normal, Rule, Site, flag, one_of, register, whole

SINKHORN_STEPS = 20  # t_max of mHC


def sinkhorn(logits: Tensor, eps: float = 0.0) -> Tensor:
    """A (nearly) doubly stochastic matrix from logits (…, n, n): rows and columns sum to 1.

    exp(logits), then rows and columns rescaled in turn; the axis -2 comes last and is exact. eps
    above 0 is added to the first rows and to each sum, as in DeepSeek-V4's code.
    """
    if eps:
        m = logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1) + eps
        for step in range(SINKHORN_STEPS):
            m = m / (m.sum(-1, keepdim=True) + eps) if step else m
            m = m / (m.sum(-2, keepdim=True) + eps)
        return m.to(logits.dtype)
    log = logits.to(torch.promote_types(logits.dtype, torch.float32))
    for _ in range(SINKHORN_STEPS):
        log = log.log_softmax(-1).log_softmax(-2)
    return log.exp().to(logits.dtype)


def opened(x0: Tensor, streams: int) -> Tensor:
    """The embedding (B, T, d) in every stream, (B, T, n, d)."""
    # Copies, not a view of stride 0: every layer then sees one layout, and compiles once.
    return x0.unsqueeze(-2).repeat(1, 1, streams, 1)


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

    start, with sinkhorn=1, names who starts so; in each all logits are 0, so that A_m is ½, A_r 1/n
    and B 1: every mix is the mean of the streams, and only the random W tells them apart.

        start=transformers   W ~ N(0, 0.02²), s = 1      DeepSeek-V4 in Transformers
        start=megatron       W as Xavier's uniform, s = 0.01      Megatron-LM's mHC
        start=published      W ~ N(0, 0.02²), s = 0.01   nobody's: the name that recorded runs have

    head=sigmoid reads the streams before the head with weights of their own (DeepSeek-V4's
    HyperHead): Σ_j σ(s·(rms(vec H) W_h) + b)_j H_j, W_h (n·d, n), started as the sublayers' A_m is
    under the same options, but with b = 0.

    single=1, with sinkhorn=1, is DeepSeek-V4.1's single-pass mHC (2609.19969, Sec. 2.4.1): a
    sublayer reads Σ_j (A_m)_j H_j with the A_m that the sublayer *before* it computed, from its own
    streams, so that one pass over the streams writes them and makes the next input. The first
    sublayer reads stream 1, and the head what the last A_m gives: it has no weights of its own. The
    state is that input and the n streams, (B, T, 1 + n, d).

    mix=identity freezes A_r at the identity: no parameters, no mixing, H ← H + B uᵀ.

    eps is inside all norms of the rule; with sinkhorn=1 it is also added to A_m, the head's weights
    and the sums of Sinkhorn's steps, as in DeepSeek-V4's code, which has 1e-6.

    mHC as DeepSeek-V4 has it in Transformers:
    `hyper-connections:sinkhorn=1,start=transformers,head=sigmoid,eps=1e-6`.
    """

    equation = r"H_l = A_r^\top H_{l-1} + B\,u_l^\top,\quad x_l = A_m^\top H_{l-1}"
    source = "Hyper-Connections (2409.19606); with sinkhorn, mHC (2512.24880)"
    shipped = (
        "DeepSeek-V4: mHC with the head's own weights (deepseek_v4 in Transformers); "
        "DeepSeek-V4.1-Flash: single-pass mHC (Megatron-LM's branch)"
    )
    state = "streams"
    matrix_names = ("dynamic",)
    options = {
        "streams": whole(4, "n", 1),
        "dynamic": flag(1, "1: coefficients read the token"),
        "sinkhorn": flag(0, "1: the constrained form"),
        "mix": one_of("learned", "A_r: learned, or frozen at the identity", "learned", "identity"),
        "start": one_of(
            "standard",
            "initial coefficients of the constrained form",
            "standard",
            "published",
            "transformers",
            "megatron",
        ),
        **EPSILON,
        "single": flag(0, "1: each A_m serves the sublayer that follows"),
        "head": one_of("sum", "what the head reads of the streams", "sum", "sigmoid"),
    }

    @property
    def at_final(self) -> bool:
        """Whether the read before the head has parameters of its own."""
        return self.opt.head == "sigmoid"

    def build(self, site: Site, config: ModelConfig) -> None:
        if self.opt.start != "standard" and not self.opt.sinkhorn:
            raise RRError(f"hyper-connections: start={self.opt.start} is of the form sinkhorn=1")
        if self.opt.single and (not self.opt.sinkhorn or self.at_final):
            raise RRError("hyper-connections: single=1 is of the form sinkhorn=1, with head=sum")
        columns = sum(self._widths(site))
        self.static = nn.Parameter(torch.empty(self.opt.streams, columns))
        if self.opt.dynamic:
            self.dynamic = nn.Parameter(torch.empty(*self._projection(site)))
            self.scale = nn.Parameter(torch.empty(self._scales(site)))

    def _widths(self, site: Site) -> tuple[int, int, int]:
        """Columns of A_m, A_r and B: one row of coefficients per stream."""
        if site.kind == "final":
            return 1, 0, 0
        return 1, 0 if self.opt.mix == "identity" else self.opt.streams, 1

    def _projection(self, site: Site) -> tuple[int, int]:
        """Shape of W: from one stream to its own coefficients, or from all to all."""
        n, columns = self.opt.streams, sum(self._widths(site))
        return (n * site.d_model, n * columns) if self._together(site) else (site.d_model, columns)

    def _together(self, site: Site) -> bool:
        """Whether all streams together determine each coefficient."""
        return bool(self.opt.sinkhorn) or site.kind == "final"

    def _scales(self, site: Site) -> int:
        """Numbers s: of A (with its mix) and B, or one for each of A_m, A_r and B."""
        read, mix, spread = self._widths(site)
        return 1 + bool(spread) + bool(mix and self.opt.sinkhorn)

    def fill(self, normal: Normal) -> None:
        final = self.site.kind == "final"
        n = self.opt.streams
        if final or self.opt.start != "standard":
            self.static.zero_()
        else:
            pick = F.one_hot(torch.tensor((self.site.sublayer - 1) % n), n).float()
            mix = torch.eye(n)[:, : self._widths(self.site)[1]]
            start = torch.cat([pick[:, None], mix, torch.ones(n, 1)], 1)
            if self.opt.sinkhorn:
                start = 6 * start - 3
                start[:, -1] = 0  # 2σ(0) = 1
            self.static.copy_(start)
        if self.opt.dynamic:
            if self.opt.start == "standard":
                self.dynamic.zero_()
            elif self.opt.start == "megatron":
                normal(self.dynamic, 1.0)  # erf(z/√2) of a normal z is uniform between -1 and 1
                bound = (6 / sum(self.dynamic.shape)) ** 0.5
                self.dynamic.copy_(bound * torch.erf(self.dynamic / 2**0.5))
            else:
                normal(self.dynamic, 0.02)
            self.scale.fill_(1.0 if self.opt.start == "transformers" else 0.01)

    def open(self, x0: Tensor) -> Tensor:
        """The embedding in every stream, (B, T, n, d); with single=1 in the first input, too."""
        return opened(x0, self.opt.streams + self.opt.single)

    def streams(self, state: Tensor) -> Tensor:
        return state[..., self.opt.single :, :]

    def _coefficients(self, streams: Tensor) -> Tensor:
        """A_m, A_r and B side by side, (…, n, columns), before they are constrained."""
        if not self.opt.dynamic:
            return self.static
        read, mix, spread = self._widths(self.site)
        if self._together(self.site):
            parts = [width for width in (read, mix, spread) if width]
            seen = (rms_norm(streams.flatten(-2), eps=self.eps) @ self.dynamic).unflatten(
                -1, (self.opt.streams, sum(parts))
            )
        else:
            parts = [read + mix, spread]
            seen = torch.tanh(rms_norm(streams, eps=self.eps) @ self.dynamic)
        scale = torch.cat([s.expand(k) for s, k in zip(self.scale, parts, strict=True)])
        return self.static + scale * seen

    def coefficients(self, streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A_m (…, n, 1), A_r (…, n, n) and B (…, n, 1) for a state as `open` has it."""
        read, mix, spread = self._coefficients(self.streams(streams)).split(
            list(self._widths(self.site)), -1
        )
        if self.opt.mix == "identity":
            mix = torch.eye(self.opt.streams, dtype=read.dtype, device=read.device)
            mix = mix.expand(*read.shape[:-1], -1)
        elif self.opt.sinkhorn:
            mix = sinkhorn(mix, self.opt.eps)
        if self.opt.sinkhorn:
            return read.sigmoid() + self.opt.eps, mix, 2 * spread.sigmoid()
        return read, mix, spread

    def head_weights(self, streams: Tensor) -> Tensor:
        """Weight of each stream in what the head reads, (…, n, 1)."""
        if self.opt.head == "sum":
            return torch.ones_like(streams[..., :1])
        return self._coefficients(streams).sigmoid() + self.opt.eps

    def read(self, state: Tensor) -> tuple[Tensor, tuple[Tensor, ...] | Tensor]:
        """At the final site the head's read; elsewhere B is passed to the write."""
        if self.site.kind == "final":
            if self.opt.single:
                return self.prenorm(state[..., 0, :]), state
            if self.opt.head == "sum":
                return self.prenorm(state.sum(-2)), state
            return self.prenorm((self.head_weights(state) * state).sum(-2)), state
        read, mix, spread = self.coefficients(state)
        if self.opt.single:
            streams = self.streams(state)
            if self.opt.mix != "identity":
                with torch.autocast(state.device.type, enabled=False):
                    streams = mix.to(state.dtype).transpose(-1, -2) @ streams
            return self.prenorm(state[..., 0, :]), (streams, spread, read)
        if self.opt.mix == "identity":
            return self.prenorm((read * state).sum(-2)), (state, spread)
        mixing = torch.cat([read, mix], -1).to(state.dtype).transpose(-1, -2)
        with torch.autocast(state.device.type, enabled=False):  # the streams keep their precision
            mixed = mixing @ state  # (B, T, 1 + n, d)
        x, streams = mixed[..., 0, :], mixed[..., 1:, :]
        return self.prenorm(x), (streams, spread)

    def write(self, state: tuple[Tensor, ...], u: Tensor) -> Tensor:
        streams, spread, *following = state
        streams = streams + spread * u.unsqueeze(-2)
        if not following:
            return streams
        (read,) = following
        return torch.cat([(read * streams).sum(-2, keepdim=True), streams], -2)

    def write_params(self, site: Site) -> int:
        rows, columns = self._projection(site)
        static = self.opt.streams * sum(self._widths(site))
        return static + (rows * columns + self._scales(site) if self.opt.dynamic else 0)

    def matmul_flops(self, site: Site) -> int:
        if site.kind == "final" and not self.at_final:
            return 0
        n, mix = self.opt.streams, self._widths(site)[1]
        rows, columns = self._projection(site)
        times = 1 if self._together(site) else n  # W meets all streams at once, or each in turn
        project = times * rows * columns if self.opt.dynamic else 0
        read_and_mix = site.d_model * n * (n + 1 - self.opt.single) if mix else 0
        return 2 * (read_and_mix + project)

    def coefficient(self, site: Site) -> None:
        return None  # one coefficient per stream


@register("gated-residual")
class GatedResidual(Rule):
    """n streams; a low-rank gate reads each channel of each, one number per stream writes.

    With X_j = rms(H_j) ⊙ g_j, the n normalised streams with gains of their own, and X all of them:

        x   = (1/n) Σ_j w_j ⊙ X_j,   w = σ(W_up silu(W_down X / n)),   w (n, d)
        H_j ← H_j + 2σ(W_in X / n)_j · u

    W_down (r, n·d), W_up (n·d, r), W_in (n, n·d), no biases; rank=0 takes r = d/8, the released
    model's 320 of 2,560. The streams never mix. The gate is a Review gate that reads the state
    alone, and that reads instead of writing. There is no pre-norm beside X; the head reads by
    weights of its own in the same way.

    All matrices start N(0, 0.02²), gains at 1 (Megatron's port; how the model itself was started is
    not published): reads near ½, writes near 1, so that the network starts near the standard one.
    The model has eps=1e-6, and stores a gain as 1 + w.
    """

    equation = (
        r"x_l = \tfrac1n \sum_j w_{l,j} \odot \mathrm{rms}(H_{l-1,j}),\quad "
        r"H_{l,j} = H_{l-1,j} + 2\sigma(W_{\mathrm{in}} X / n)_j\,u_l"
    )
    source = "Qwen3.8-Flash-Next (qwen4_exp in Transformers, 2026)"
    shipped = "Qwen3.8-Flash-Next (qwen4_exp in Transformers)"
    state = "streams"
    at_final = True
    matrix_names = ("down", "up", "inject")
    options = {
        "streams": whole(4, "n", 1),
        "rank": whole(0, "r of the gate that reads; 0: a d/8, at least 1", 0),
        **EPSILON,
    }

    def build(self, site: Site, config: ModelConfig) -> None:
        n, d, rank = self.opt.streams, site.d_model, self.rank(site)
        if site.norm:
            self.gain = nn.Parameter(torch.ones(n, d))
        self.down = nn.Parameter(torch.empty(rank, n * d))
        self.up = nn.Parameter(torch.empty(n * d, rank))
        if site.kind != "final":
            self.inject = nn.Parameter(torch.empty(n, n * d))

    def rank(self, site: Site) -> int:
        """r of the gate that reads."""
        return self.opt.rank or max(1, site.d_model // 8)

    def norm_params(self, site: Site) -> int:
        return self.opt.streams * site.d_model if site.norm else 0

    def fill(self, normal: Normal) -> None:
        normal(self.down, 0.02)
        normal(self.up, 0.02)
        if self.site.kind != "final":
            normal(self.inject, 0.02)

    def open(self, x0: Tensor) -> Tensor:
        """The embedding in every stream, (B, T, n, d)."""
        return opened(x0, self.opt.streams)

    def normed(self, streams: Tensor) -> Tensor:
        """X: every stream normalised, with its gain, (B, T, n, d)."""
        x = rms_norm(streams, eps=self.eps)
        return x * self.gain if self.site.norm else x

    def weights(self, x: Tensor) -> Tensor:
        """w: the gate that reads, from X, (B, T, n, d)."""
        n = self.opt.streams
        low = F.silu(F.linear(x.flatten(-2), self.down) / n)
        return F.linear(low, self.up).sigmoid().unflatten(-1, (n, -1))

    def read(self, state: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor] | Tensor]:
        """The gated mean of the streams; the write gates are passed on to the write."""
        x = self.normed(state)
        seen = (self.weights(x) * x).mean(-2)
        if self.site.kind == "final":
            return seen, state
        inject = 2 * torch.sigmoid(F.linear(x.flatten(-2), self.inject) / self.opt.streams)
        return seen, (state, inject.unsqueeze(-1))

    def write(self, state: tuple[Tensor, Tensor], u: Tensor) -> Tensor:
        streams, inject = state
        return streams + inject * u.unsqueeze(-2)

    def write_params(self, site: Site) -> int:
        n, wide = self.opt.streams, self.opt.streams * site.d_model
        return 2 * self.rank(site) * wide + (0 if site.kind == "final" else n * wide)

    def matmul_flops(self, site: Site) -> int:
        return 2 * self.write_params(site)

    def coefficient(self, site: Site) -> None:
        return None  # one coefficient per stream
