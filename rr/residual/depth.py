"""Rules that look back: a sublayer or block reads earlier outputs, not only their sum.

Their state is a list that grows with depth, so that the whole stack compiles as one graph.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import RRError
from ..ops.norm import EPS, rms_norm
from ..specs import ModelConfig
from .base import Normal, Option, Rule, Site, flag, one_of, register, whole


def unlooped(rule: Rule, site: Site) -> None:
    """Raise RRError unless the stack is passed once: each look-back weight belongs to one depth."""
    if site.n_loops != 1:
        raise RRError(f"{rule.name} mixes fixed depths and needs loops=1, got {site.n_loops}")


def depth_weights(values: Tensor, query: Tensor, key_gain: Tensor) -> Tensor:
    """α = softmax_i(queryᵀ rms(v_i) ⊙ key_gain) over sources v (sources, B, T, d): (…, 1)."""
    return (rms_norm(values, key_gain) * query).sum(-1, keepdim=True).softmax(0)


@register("denseformer")
class DenseFormer(Rule):
    """After block i the stream is a weighted sum of all block outputs so far.

    Y_i = Σ_{j=0..i} α_ij X_j, X_{i+1} = B_{i+1}(Y_i), X_0 the embedding; α_ii = 1 and the others 0
    at the start, so it begins as the standard residual. period=p mixes after every p-th block only;
    dilation=k reaches every k-th output back from the own one.

    dynamic=1 adds to α_ij a number for each token, GELU(rms(X_i) W_1) W_2 with W_2 = 0 at the
    start: the residual stream of MUDD (2502.12170). Whole MUDD makes such a mix of its own for each
    of queries, keys and values, too; here a sublayer gets one input, so these three are left out.
    By one comparison (hyper-connection-factory, on a laptop) that keeps two fifths of its gain.
    W_1 (d, K) ~ N(0, 1/d), K the multiple of 64 above four times the mixed outputs.

    State: [Y, or the stream inside a block; X_0, X_1, …].
    """

    equation = r"Y_i = \sum_{j=0}^{i} \alpha_{ij} X_j,\quad X_{i+1} = B_{i+1}(Y_i)"
    source = "DenseFormer (2402.02622); with dynamic, MUDDFormer (2502.12170)"
    state = "list"
    matrix_names = ("first", "second")
    options = {
        "dynamic": flag(0, "1: weights that each token changes, MUDD's residual stream"),
        "dilation": whole(1, "k: reach every k-th output", 1),
        "period": whole(1, "p: mix after every p-th block", 1),
    }

    def build(self, site: Site, config: ModelConfig) -> None:
        unlooped(self, site)
        self.reach = self._reach(site)
        if self.reach:
            self.alpha = nn.Parameter(torch.empty(len(self.reach)))
            if self.opt.dynamic:
                hidden = self._hidden(site)
                self.first = nn.Parameter(torch.empty(hidden, site.d_model))
                self.second = nn.Parameter(torch.empty(len(self.reach), hidden))

    def _hidden(self, site: Site) -> int:
        """K: width of what computes the token's part of the weights; 0 where there is none."""
        reach = len(self._reach(site))
        return (4 * reach // 64 + 1) * 64 if reach and self.opt.dynamic else 0

    def _reach(self, site: Site) -> list[int]:
        """Indices j of the outputs that are mixed at this site, its own last."""
        if site.kind != "mlp" or site.block % self.opt.period:
            return []
        return list(range(site.block, -1, -self.opt.dilation))[::-1]

    def fill(self, normal: Normal) -> None:
        if self.reach:
            self.alpha.zero_()
            self.alpha[-1:].fill_(1)
            if self.opt.dynamic:
                normal(self.first, self.site.d_model**-0.5)
                self.second.zero_()

    def open(self, x0: Tensor) -> list[Tensor]:
        return [x0, x0]

    def read(self, state: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        return self.prenorm(state[0]), state

    def write(self, state: list[Tensor], u: Tensor) -> list[Tensor]:
        h, *past = state
        h = h + u
        if self.site.kind == "attn":
            return [h, *past]
        past = [*past, h]
        if self.reach:
            mix: Any = sum(a * past[j] for a, j in zip(self.alphas(h), self.reach, strict=True))
            return [mix, *past]
        return [h, *past]

    def alphas(self, h: Tensor) -> Any:
        """α_ij, the weight of each output that is mixed: numbers, or one per token (B, T, 1)."""
        if not self.opt.dynamic:
            return self.alpha
        seen = F.gelu(F.linear(rms_norm(h), self.first))
        per_token = F.linear(seen, self.second).to(h.dtype) + self.alpha
        return per_token.unsqueeze(-1).unbind(-2)

    def write_params(self, site: Site) -> int:
        reach = len(self._reach(site))
        return reach + self._hidden(site) * (site.d_model + reach)

    def matmul_flops(self, site: Site) -> int:
        return 2 * self._hidden(site) * (site.d_model + len(self._reach(site)))


@register("attnres")
class AttnRes(Rule):
    """Each sublayer attends over the updates of all earlier ones: softmax over depth per token.

    Sources v_0 (embedding), v_1, …: the *updates*, not their sums. Keys are normalised, values are
    raw; the query w_l is learned, the same for every token, and zero at the start, so that the
    softmax is uniform. A uniform mean is the sum up to a factor, which the pre-norm takes out: at
    the start the network computes exactly the standard one.

    size=m groups the sublayers into blocks of m: a block's updates are summed into one source, and
    within the block the partial sum is a source of its own, empty at the block's first sublayer
    (the embedding does not seed it). The last block may be shorter, as Kimi-K3's is. size=1 is the
    full form, size=2L one block. The head reads one
    more aggregate, with its own query. query=zero learns none and stays at the mean: the control.

    The norm divides by √(mean(x²) + ε₀). A mean of k sources is k times smaller than their sum, so
    that the same ε₀ weighs k² times as much: where the stream is small, as at GPT-2's initial
    scale, the start is only roughly the standard network. neutral=1 takes ε₀/k², which makes it
    exact at every scale. (Which ε the paper used we do not know.)

    block=m is another reading of the block form (flash-linear-attention's pull request 880
    describes it; its merged code attends at every sublayer, as `size` does): only the first
    sublayer of a block of m, and the head, attend, to x_0 and the sums of whole blocks; within a
    block the mean a they read is a stream, a + Σu, with the standard pre-norm residual. A block's
    source is its Σu. The mean counts once against the block's updates, so that with k sources the
    start weighs these k times as much as the standard network does. State in a block: [x_0, sums of
    earlier blocks …, a, Σu].
    """

    equation = (
        r"x_l = \sum_{i<l} \alpha_{i \to l} v_i,\quad "
        r"\alpha_{i \to l} = \mathrm{softmax}_i(w_l^\top \mathrm{RMSNorm}_l(v_i))"
    )
    source = "Attention Residuals (2603.15031)"
    shipped = "Kimi-K3: the block form (llama.cpp, pull request 26185)"
    state = "list"
    at_final = True
    options = {
        "size": Option(
            1, "sublayers per block; 1 is the full form", "an integer ≥ 1", lambda n: n > 0
        ),
        "query": one_of("learned", "learned, or zero for a uniform mean", "learned", "zero"),
        "neutral": flag(0, "1: ε₀ over the squared number of sources"),
        "block": whole(0, "sublayers per block that attends at its first alone; 0: all attend", 0),
    }

    def build(self, site: Site, config: ModelConfig) -> None:
        unlooped(self, site)
        for name, size in (("size", self.opt.size), ("block", self.opt.block or 1)):
            if size > 2 * site.n_layer:
                raise RRError(
                    f"attnres: {name} must be at most the {2 * site.n_layer} sublayers, got {size}"
                )
        if self.opt.block and (self.opt.size > 1 or self.opt.neutral):
            raise RRError("attnres: block is a form of its own: leave size and neutral out")
        if self.learned and self.attends(site):
            self.query = nn.Parameter(torch.zeros(site.d_model))
            self.key_gain = nn.Parameter(torch.ones(site.d_model))

    @property
    def learned(self) -> bool:
        """Whether there is a query to learn."""
        return self.opt.query == "learned"

    def attends(self, site: Site) -> bool:
        """Whether this site attends; with `block` not every one does."""
        first = site.kind == "final" or (site.sublayer - 1) % (self.opt.block or 1) == 0
        return not self.opt.block or first

    def fill(self, normal: Normal) -> None:
        if self.learned and self.attends(self.site):
            self.query.zero_()
            self.key_gain.fill_(1)

    def open(self, x0: Tensor) -> list[Tensor]:
        return [x0]

    def weights(self, state: list[Tensor]) -> Tensor:
        """α over the sources, (sources, B, T, 1)."""
        if not self.learned:
            return torch.full_like(torch.stack(state)[..., :1], 1 / len(state))
        return depth_weights(torch.stack(state), self.query, self.key_gain)

    def mean(self, sources: list[Tensor]) -> Tensor:
        """Σ α v, (B, T, d)."""
        return (self.weights(sources) * torch.stack(sources)).sum(0)

    def read(self, state: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        if self.opt.block:
            if not self.attends(self.site):
                return self.prenorm(state[-2] + state[-1]), state
            sources = state if len(state) == 1 else [*state[:-2], state[-1]]
            mixed = self.mean(sources)
            return self.prenorm(mixed), [*sources, mixed]
        mixed = self.mean(state)
        eps = EPS / len(state) ** 2 if self.opt.neutral else EPS
        return self.prenorm(mixed, eps), state

    def write(self, state: list[Tensor], u: Tensor) -> list[Tensor]:
        u = u.to(state[0].dtype)  # the stream keeps its precision under autocast
        if (self.site.sublayer - 1) % (self.opt.block or self.opt.size) == 0:
            return [*state, u]
        return [*state[:-1], state[-1] + u]

    def write_params(self, site: Site) -> int:
        return 2 * site.d_model if self.learned and self.attends(site) else 0

    def coefficient(self, site: Site) -> None:
        return None  # a softmax gives a mean; only after the next norm is it the standard sum
