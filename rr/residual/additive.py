"""Rules that add the update to the stream with a coefficient that does not depend on the input."""

import torch
from torch import Tensor, nn

from ..ops.norm import EPS, rms_norm
from ..specs import ModelConfig
from .base import ENDS, Normal, Option, Rule, Site, one_of, register, whole


@register("standard")
class Standard(Rule):
    """h ← h + u: the pre-norm residual of nearly every transformer since GPT-2."""

    equation = r"h_l = h_{l-1} + u_l"
    source = "He et al. 2015 (1512.03385); pre-norm: Xiong et al. 2020 (2002.04745)"
    shipped = "GPT-2, Llama, Qwen3 and most others"

    def write(self, state: Tensor, u: Tensor) -> Tensor:
        return state + u


@register("constant")
class Constant(Rule):
    """h ← h + c·u with one fixed c: the control for every rule that starts at a coefficient."""

    equation = r"h_l = h_{l-1} + c\,u_l"
    source = "the control that arXiv 2606.31859 lacks; c = 1/2 is its gates' starting point"
    options = {"c": Option(0.5, "the fixed coefficient")}

    def write(self, state: Tensor, u: Tensor) -> Tensor:
        return state + self.opt.c * u

    def coefficient(self, site: Site) -> float:
        return self.opt.c


@register("scaled")
class Scaled(Rule):
    """h ← h + ε·u with ε = λ / (N·√(L/L_ref)), a scale for looped stacks.

    N passes over L unique blocks. `law` chooses the exponent on N: the two competitors of the
    looped paper are ε = 1 ("none") and ε = 1/√N ("sqrt"), both at L = L_ref. ε multiplies what a
    branch puts out, never the carry. A checkpoint run at another N takes the ε of that N, unless
    keep_scale is set (`rr.model.at_loops`).

    init=flat keeps the initial weights equally large at every L, as in the paper, where only ε
    depends on the depth. The default also divides the branches' last weights
    by √(2L), like every rule here.
    """

    equation = r"h_l = h_{l-1} + \varepsilon\,u_l,\quad \varepsilon = \lambda N^{-1} (L/12)^{-1/2}"
    source = "Looped transformers (2606.18524)"
    options = {
        "lam": Option(1.0, "the global constant λ"),
        "reference": whole(12, "L_ref, blocks", 1),
        "law": Option(
            "linear",
            "linear (1/N), sqrt (1/√N) or none (1)",
            "linear, sqrt or none",
            lambda w: w in ("linear", "sqrt", "none"),
        ),
        "init": one_of("depth", "initial branch ends: depth (over √2L) or flat", "depth", "flat"),
    }

    def epsilon(self, site: Site) -> float:
        """ε of this stack."""
        power = {"linear": 1.0, "sqrt": 0.5, "none": 0.0}[self.opt.law]
        depth = (site.n_layer / self.opt.reference) ** 0.5
        return self.opt.lam / (site.n_loops**power * depth)

    def write(self, state: Tensor, u: Tensor) -> Tensor:
        return state + self.epsilon(self.site) * u

    def coefficient(self, site: Site) -> float:
        return self.epsilon(site)

    def branch_gain(self, site: Site) -> float:
        return 1.0 if self.opt.init == "flat" else super().branch_gain(site)


def xavier(fan_in: int, fan_out: int) -> float:
    """Glorot and Bengio's standard deviation √(2/(fan_in + fan_out))."""
    return (2 / (fan_in + fan_out)) ** 0.5


class OwnStart(Rule):
    """Base of rules whose papers define initial weights: init=paper uses those.

    init=shared, the default, keeps the embedding that all rules here share, N(0, 0.02²), so that
    the first sublayer of a rule without a pre-norm reads a stream of rms 0.028. With init=paper the
    stream starts at an rms near 1, as in the transformers of these papers: the token embedding is
    N(0, 1/d), and embeddings are multiplied by √d (Vaswani et al. 2017, Sec. 3.4; so does the code
    of Fixup, ReZero's example and torchscale for DeepNorm). Positions are learned here, N(0, 0.02²)
    before that factor. The weights of the branches are the rule's `paper_std`.
    """

    options = {
        "init": one_of(
            "shared", "initial weights: shared by all rules, or the paper's own", "shared", "paper"
        ),
    }

    def open(self, x0: Tensor) -> Tensor:
        return x0 * self.site.d_model**0.5 if self.opt.init == "paper" else x0

    def embedding_std(self) -> float:
        if self.opt.init == "paper":
            return self.site.d_model**-0.5
        return super().embedding_std()

    def paper_std(self, site: Site, part: str, fan_out: int, fan_in: int) -> float:
        """Initial standard deviation of a branch's matrix in the paper, terms as in `init_std`."""
        raise NotImplementedError

    def shared_std(self, site: Site, part: str, fan_out: int, fan_in: int) -> float:
        """The same without init=paper."""
        return super().init_std(site, part, fan_out, fan_in)

    def init_std(self, site: Site, part: str, fan_out: int, fan_in: int) -> float:
        law = self.paper_std if self.opt.init == "paper" else self.shared_std
        return law(site, part, fan_out, fan_in)


@register("rezero")
class ReZero(OwnStart):
    """h ← h + α·f(h) with one α = 0 per branch and no norm: the identity at the start.

    At the first step only α has a gradient. norm=pre keeps the pre-norm, as the Review study's own
    code does; the original removes all norms. (Its reference code shares one α over the two
    sublayers of a block; here each branch has its own.)

    init=paper: Xavier for every matrix, as in the authors' code (`rezero.transformer`, built by
    PyTorch's nn.Transformer), which holds q, k and v as one matrix of 3d × d: √(2/4d).
    """

    equation = r"h_l = h_{l-1} + \alpha_l\,u_l,\quad \alpha_l = 0 \text{ at the start}"
    source = "ReZero (2003.04887)"
    options = {
        **OwnStart.options,
        "norm": one_of("none", "none (the original) or pre", "none", "pre"),
    }

    def build(self, site: Site, config: ModelConfig) -> None:
        self.alpha = nn.Parameter(torch.zeros(()))

    def norm_params(self, site: Site) -> int:
        return super().norm_params(site) if self.opt.norm == "pre" else 0

    def read(self, state: Tensor) -> tuple[Tensor, Tensor]:
        return super().read(state) if self.opt.norm == "pre" else (state, state)

    def write(self, state: Tensor, u: Tensor) -> Tensor:
        return state + self.alpha * u

    def fill(self, normal: Normal) -> None:
        self.alpha.zero_()

    def write_params(self, site: Site) -> int:
        return 1

    def coefficient(self, site: Site) -> float:
        return 0.0

    def paper_std(self, site: Site, part: str, fan_out: int, fan_in: int) -> float:
        return xavier(fan_in, 3 * fan_in if part in ("q", "k", "v") else fan_out)


@register("layerscale")
class LayerScale(Rule):
    """h ← h + λ ⊙ u with one learned λ per channel, small at the start; with pre-norm.

    init=0 takes the paper's value for the depth: 0.1 up to 18 blocks, 1e-5 up to 24, 1e-6 beyond.
    """

    equation = r"h_l = h_{l-1} + \lambda_l \odot u_l"
    source = "CaiT (2103.17239)"
    options = {"init": Option(0.0, "initial λ; 0 chooses it by depth")}

    def build(self, site: Site, config: ModelConfig) -> None:
        self.scale = nn.Parameter(torch.empty(site.d_model))

    def start(self, site: Site) -> float:
        """Initial λ at this depth."""
        if self.opt.init:
            return self.opt.init
        return 0.1 if site.n_layer <= 18 else 1e-5 if site.n_layer <= 24 else 1e-6

    def write(self, state: Tensor, u: Tensor) -> Tensor:
        return state + self.scale * u

    def fill(self, normal: Normal) -> None:
        self.scale.fill_(self.start(self.site))

    def write_params(self, site: Site) -> int:
        return site.d_model

    def coefficient(self, site: Site) -> float:
        return self.start(site)


@register("fixup")
class Fixup(OwnStart):
    """h ← h + s·f(h) without norms: branches end in zero, their other matrices start smaller.

    Their standard deviation is a usual one times S^(−1/(2m−2)), for S = 2L branches of m layers.
    Here the usual one is 0.02, and m = 2. Not implemented: Fixup's scalar biases before each layer,
    and the zero classifier, which a tied head cannot have.

    init=paper: Xavier is the usual one, q, k and v held as one matrix of 3d × d, and attention has
    m = 4, so S^(−1/6) for these and S^(−1/2) for the MLP's first, as in the authors' transformer
    (fairseq/modules/multihead_attention_zero.py of hongyi-zhang/Fixup).
    """

    equation = r"h_l = h_{l-1} + s_l\,u_l,\quad s_l = 1,\ u_l = 0 \text{ at the start}"
    source = "Fixup (1901.09321)"

    def build(self, site: Site, config: ModelConfig) -> None:
        self.scale = nn.Parameter(torch.ones(()))

    def norm_params(self, site: Site) -> int:
        return 0

    def read(self, state: Tensor) -> tuple[Tensor, Tensor]:
        return state, state

    def write(self, state: Tensor, u: Tensor) -> Tensor:
        return state + self.scale * u

    def fill(self, normal: Normal) -> None:
        self.scale.fill_(1)

    def write_params(self, site: Site) -> int:
        return 1

    def branch_gain(self, site: Site) -> float:
        return 0.0

    def shared_std(self, site: Site, part: str, fan_out: int, fan_in: int) -> float:
        return 0.0 if part in ENDS else 0.02 * (2 * site.n_layer) ** -0.5

    def paper_std(self, site: Site, part: str, fan_out: int, fan_in: int) -> float:
        if part in ENDS:
            return 0.0
        attention = part in ("q", "k", "v")
        m = 4 if attention else 2
        shrunk = (2 * site.n_layer) ** (-1 / (2 * m - 2))
        return shrunk * xavier(fan_in, 3 * fan_in if attention else fan_out)


class PostNorm(Rule):
    """Base of h ← norm(α·h + u): the norm of the write divides both by one length."""

    def alpha(self, site: Site) -> float:
        """Carry before the norm."""
        raise TypeError(f"{type(self).__name__} has no α: define alpha(site)")

    def write_gain(self) -> Tensor:
        """The gain of the norm that ends a write, (d,)."""
        return self.gain

    def write(self, state: Tensor, u: Tensor) -> Tensor:
        return rms_norm(self.alpha(self.site) * state + u, self.write_gain())

    def kept(self, h: Tensor, u: Tensor) -> Tensor:
        alpha = self.alpha(self.site)
        square = (alpha * h + u).pow(2).mean(-1, keepdim=True)
        return alpha * self.write_gain() * torch.rsqrt(square + EPS)

    def coefficient(self, site: Site) -> None:
        return None  # the norm divides both by a length that depends on the input

    def carry(self, site: Site) -> None:
        return None


@register("deepnorm")
class DeepNorm(OwnStart, PostNorm):
    """h ← norm(α·h + u): post-norm with a larger carry and smaller branches.

    Decoder-only constants for M = L·N blocks: α = (2M)^¼ and β = (8M)^(−¼), where β multiplies the
    Xavier gain of the value, output and MLP matrices. Here norm is RMSNorm, as everywhere in `rr`;
    the paper's is LayerNorm. No norm stands before the head: the last write has normalised.

    The branches start as published in any case; init=paper changes the embedding alone. (Of
    flavour llama, which the paper lacks, gate and up count as one matrix of 2·d_ff rows.)
    """

    equation = r"h_l = \mathrm{norm}(\alpha\,h_{l-1} + u_l),\quad \alpha = (2M)^{1/4}"
    source = "DeepNet (2203.00555)"

    def norm_params(self, site: Site) -> int:
        return 0 if site.kind == "final" else site.d_model

    def alpha(self, site: Site) -> float:
        """Carry before the norm."""
        return (2 * site.n_layer * site.n_loops) ** 0.25

    def read(self, state: Tensor) -> tuple[Tensor, Tensor]:
        return state, state

    def branch_gain(self, site: Site) -> float:
        return (8 * site.n_layer * site.n_loops) ** -0.25

    def paper_std(self, site: Site, part: str, fan_out: int, fan_in: int) -> float:
        return xavier(fan_in, fan_out) * (1.0 if part in ("q", "k") else self.branch_gain(site))

    shared_std = paper_std


@register("keel")
class Keel(PostNorm):
    """h ← norm(α·h + f(norm(h))): post-norm on a highway whose constant α is the number of layers.

    α = S = 2·L·N, the sublayers of the stack, unless `alpha` gives another number. The branch reads
    the stream through a norm of its own, so that a write changes the stream by about 1/S and the
    norm after it divides out the α. Both norms have gains. No norm stands before the head: the last
    write has normalised. The weights start as everywhere here; the paper asks for no special start.

    The paper trains more than 1,000 layers so. Here norm is RMSNorm, and S counts attention and
    MLP as one layer each; no code of the authors' was public when this was written.
    """

    equation = r"h_l = \mathrm{norm}(\alpha\,h_{l-1} + u_l),\quad \alpha = S"
    source = "Keel (2601.19895)"
    options = {
        "alpha": Option(
            0.0, "α; 0: the number of sublayers", "a number ≥ 0", lambda a: 0 <= a < 1e9
        )
    }

    def build(self, site: Site, config: ModelConfig) -> None:
        self.out_gain = nn.Parameter(torch.ones(site.d_model))

    def norm_params(self, site: Site) -> int:
        return 0 if site.kind == "final" else super().norm_params(site)

    def alpha(self, site: Site) -> float:
        """Carry before the norm."""
        return self.opt.alpha or 2 * site.n_layer * site.n_loops

    def read(self, state: Tensor) -> tuple[Tensor, Tensor]:
        return (state, state) if self.site.kind == "final" else super().read(state)

    def write_gain(self) -> Tensor:
        return self.out_gain

    def fill(self, normal: Normal) -> None:
        self.out_gain.fill_(1)

    def write_params(self, site: Site) -> int:
        return site.d_model
