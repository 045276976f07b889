"""Value rules: whether attention mixes a block's own values, or also those of earlier blocks.

    vstate = rule.begin(ids)                # block 1's, of each pass
    v = rule.added(v, x, vstate)            # where a block has values of its own
    mixed, vstate = rule.values(v, vstate)  # before attention; v is None without own values
    y = rule.after(y, mixed, vstate)        # after attention, before the output projection
    y = rule.gated(y, x)                    # where the output is gated by attention's input x

`vstate` is the state that a value rule passes from block to block within one pass.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import RRError
from ..specs import ModelConfig
from .base import Described, Normal, Option, Site, flag, one_of, register, resolve, whole


class ValueRule(Described):
    """Base of the value rules: every block uses its own values and passes nothing on.

    A value rule mixes the values that attention reads, or changes what attention puts out. Its
    subclasses define `values`, `after` or `gated`; `vstate` is what one block passes to the next
    within a pass. One that needs the token ids defines `begin`, and `added`.

    Example:
        >>> import torch, rr
        >>> config = rr.ModelConfig(64, n_layer=2, n_head=2, d_model=8, d_ff=16)
        >>> site = rr.residual.Site("attn", 1, n_layer=2, d_model=8, n_head=2)
        >>> rule = rr.residual.ValueRule(site, config)
        >>> rule.values(torch.ones(1, 2, 3, 4), None)[0].shape
        torch.Size([1, 2, 3, 4])
    """

    kind = "values"

    def __init__(self, site: Site, config: ModelConfig, **given: Any) -> None:
        super().__init__(**given)
        self.site = site

    @classmethod
    def has_own_v(cls, block: int) -> bool:
        """Whether block 1 … L has a value projection."""
        return True

    @classmethod
    def caches_v(cls, block: int) -> bool:
        """Whether block 1 … L holds values of its own in the cache; else it reads block 1's."""
        return True

    @classmethod
    def reads_ids(cls) -> bool:
        """Whether the rule needs the token ids; other libraries' attention does not get them."""
        return cls.begin is not ValueRule.begin

    def begin(self, ids: Tensor) -> Any:
        """The vstate that block 1 finds in each pass, from token ids (B, T); asked of its rule."""
        return None

    def added(self, v: Tensor, x: Tensor, vstate: Any) -> Tensor:
        """The block's own values (B, heads, T, head_dim), with anything that is added to them.

        x: attention's input, (B, T, d). Applied before `values`.
        """
        return v

    def values(self, v: Tensor | None, vstate: Any) -> tuple[Tensor, Any]:
        """Values to attend over, (B, heads, T, head_dim), and the vstate of the next block.

        v: the block's own values, or None where `has_own_v` is false. vstate: of the block before,
        in block 1 what `begin` gives, mostly None.
        """
        return v, vstate  # pyright: ignore[reportReturnType]  # each block has values of its own

    def after(self, y: Tensor, v: Tensor, vstate: Any) -> Tensor:
        """The attention output y, (B, heads, T, head_dim), before the output projection."""
        return y

    def gated(self, y: Tensor, x: Tensor) -> Tensor:
        """The attention output y, (B, heads, T, head_dim), gated by attention's input x (B, T, d).

        Applied after `after`, before the output projection.
        """
        return y

    def params(self, site: Site) -> int:
        """Trainable scalars of this rule at one attention site."""
        return 0

    def matmul_flops(self, site: Site) -> int:
        """Forward FLOPs per token of the rule's own matrix products."""
        return 0

    def saved(self, config: ModelConfig) -> tuple[int, int]:
        """(parameters, forward FLOPs per token) of a value projection that this block lacks."""
        if self.has_own_v(self.site.block):
            return 0, 0
        wide, bias = config.kv_heads * config.head_dim, config.flavour == "gpt2"
        return wide * (config.d_model + bias), 2 * wide * config.d_model


@register("own")
class Own(ValueRule):
    """V' = V_n: each block attends over its own values."""

    equation = r"V'_n = V_n"
    source = "Vaswani et al. 2017 (1706.03762)"


class Mixed(ValueRule):
    """Base of the rules V' = λ₁V₁ + λ₂V_n for n ≥ 2; block 1 is plain. V₁ is not detached.

    vstate is V₁ of this pass. Values are cached as mixed: V₁ of the current tokens is all that is
    needed of it.
    """

    def values(self, v: Tensor, vstate: Any) -> tuple[Tensor, Any]:
        if vstate is None:
            return v, v
        first, own = self.lambdas()
        return first * vstate + own * v, vstate

    def lambdas(self) -> tuple[Any, Any]:
        """(λ₁, λ₂) of this block."""
        raise TypeError(f"{type(self).__name__} has no λ: define lambdas()")


@register("identity")
class Identity(Mixed):
    """V' = ½V₁ + ½V_n: Identity-ResFormer, as in the released code."""

    equation = r"V'_n = \tfrac12 V_1 + \tfrac12 V_n"
    source = "ResFormer (2410.17897), v1 and the released code"

    def lambdas(self) -> tuple[float, float]:
        return 0.5, 0.5


@register("constant")
class ConstantValues(Mixed):
    """V' = λV₁ + V_n with a fixed λ; 2 was the best of the paper's sweep.

    It is written `constant-resformer`. Ids, records and tables have its older name, `constant`, in
    which it is easily taken for the residual rule h + ½u.
    """

    equation = r"V'_n = \lambda V_1 + V_n"
    source = "Constant-ResFormer (2410.17897)"
    options = {"lam": Option(2.0, "λ"), "own": Option(1.0, "coefficient on V_n")}

    def lambdas(self) -> tuple[float, float]:
        return self.opt.lam, self.opt.own


@register("sparse")
class Sparse(Mixed):
    """V' = λV₁ + V_n in the last `blocks` blocks only; the paper's are 6–8 of 8 with λ = 5.

    blocks=0 takes ⌈3L/8⌉, which is 3 of 8.
    """

    equation = r"V'_n = \lambda V_1 + V_n \text{ in the last blocks, else } V_n"
    source = "Sparse-ResFormer (2410.17897, v5)"
    options = {
        "lam": Option(5.0, "λ"),
        "blocks": whole(0, "how many last blocks; 0: ⌈3L/8⌉", 0),
    }

    lam: Tensor

    def __init__(self, site: Site, config: ModelConfig, **given: Any) -> None:
        super().__init__(site, config, **given)
        last = self.opt.blocks or math.ceil(3 * site.n_layer / 8)
        first = self.opt.lam if site.block > site.n_layer - last else 0.0
        # A buffer: a number that differs between blocks would compile each block anew.
        self.register_buffer("lam", torch.tensor(first), persistent=False)

    def lambdas(self) -> tuple[Tensor, float]:
        return self.lam, 1.0


@register("learnable")
class Learnable(Mixed):
    """V' = λ₁V₁ + λ₂V_n, two learned scalars per block, both ½ at the start."""

    equation = r"V'_n = \lambda_{n,1} V_1 + \lambda_{n,2} V_n"
    source = "Learnable-ResFormer (2410.17897, v5)"

    def __init__(self, site: Site, config: ModelConfig, **given: Any) -> None:
        super().__init__(site, config, **given)
        if site.block > 1:
            self.lam = nn.Parameter(torch.empty(2))

    def fill(self, normal: Normal) -> None:
        if self.site.block > 1:
            self.lam.fill_(0.5)

    def lambdas(self) -> tuple[Tensor, Tensor]:
        return self.lam[0], self.lam[1]

    def params(self, site: Site) -> int:
        return 2 if site.block > 1 else 0


@register("learnable-plus")
class LearnablePlus(ValueRule):
    """V' = λ₁V₁ + λ₂V_n with λ_{n,1} = s·softmax(λ')_n: the blocks share one budget s of V₁.

    The softmax runs over blocks 2 … L. s starts at L and each λ_{n,2} at ½. The initial λ' was not
    found in the sources; here it is 0, so that every λ_{n,1} starts at L/(L − 1), about 1.

    Block 1 owns s and λ' and passes s·softmax(λ'), (L − 1,), on with V₁: vstate is both. So each
    block can be compiled, sharded and recomputed on its own.
    """

    equation = r"V'_n = s\,\mathrm{softmax}(\lambda')_n\, V_1 + \lambda_{n,2} V_n"
    source = "Learnable-ResFormer-Plus (2410.17897, v5)"

    def __init__(self, site: Site, config: ModelConfig, **given: Any) -> None:
        super().__init__(site, config, **given)
        if site.block == 1:
            self.budget = nn.Parameter(torch.empty(1))  # s
            self.share = nn.Parameter(torch.empty(site.n_layer - 1))  # λ'
        else:
            self.own = nn.Parameter(torch.empty(1))  # λ_{n,2}
            # A buffer: a number that differs between blocks would compile each block anew.
            self.register_buffer("where", torch.tensor([site.block - 2]), persistent=False)

    def fill(self, normal: Normal) -> None:
        if self.site.block == 1:
            self.budget.fill_(self.site.n_layer)
            self.share.zero_()
        else:
            self.own.fill_(0.5)

    def values(self, v: Tensor, vstate: Any) -> tuple[Tensor, Any]:
        if vstate is None:
            return v, (v, self.budget * self.share.softmax(0))
        first, budgets = vstate
        # Numbers without a dimension: they leave the values in their own precision.
        return budgets.index_select(0, self.where)[0] * first + self.own[0] * v, vstate

    def params(self, site: Site) -> int:
        return site.n_layer if site.block == 1 else 1


@register("dense")
class Dense(ValueRule):
    """V' = Σ_{i ≤ n} λ_ni V_i: every earlier block's values. Starts as the plain model.

    The paper's tables have it lose to V₁ alone. Here λ_nn = 1 and the others 0 at the start. The
    caption of the paper's Figure 5 is reported to give λ = 1; that caption was not read for this
    package, nor to which of the λ it applies. vstate is the list of V₁ … V_n.
    """

    equation = r"V'_n = \sum_{i \le n} \lambda_{n,i} V_i"
    source = "Dense-ResFormer (2410.17897, v5)"

    def __init__(self, site: Site, config: ModelConfig, **given: Any) -> None:
        super().__init__(site, config, **given)
        if site.block > 1:
            self.lam = nn.Parameter(torch.empty(site.block))

    def fill(self, normal: Normal) -> None:
        if self.site.block > 1:
            self.lam.zero_()
            self.lam[-1:].fill_(1)

    def values(self, v: Tensor, vstate: Any) -> tuple[Tensor, Any]:
        if vstate is None:
            return v, [v]
        every = [*vstate, v]
        mixed: Any = sum(lam * value for lam, value in zip(self.lam, every, strict=True))
        return mixed, every

    def params(self, site: Site) -> int:
        return site.block if site.block > 1 else 0


@register("svformer")
class SVFormer(ValueRule):
    """V' = V₁ in every block: blocks 2 … L have no value projection, and their caches no values.

    Per token the caches hold (L + 1)·d_kv elements instead of 2L·d_kv.
    """

    equation = r"V'_n = V_1"
    source = "SVFormer (2410.17897)"

    @classmethod
    def has_own_v(cls, block: int) -> bool:
        return block == 1

    @classmethod
    def caches_v(cls, block: int) -> bool:
        return block == 1

    def values(self, v: Tensor | None, vstate: Any) -> tuple[Tensor, Any]:
        mine: Any = v if vstate is None else vstate  # block 1 has values, the others V₁
        return mine, mine


@register("neutreno")
class NeuTRENO(Mixed):
    """U = A V_n + λ(V₁ − V_n) before the output projection; residual=1 mixes ½V₁ + ½V_n first.

    λ = 0.4 alone, as the authors have it. residual=1 keeps 0.4 unless lam is given, where their
    code takes 0.2: `neutreno:residual=1,lam=0.2`. The sum needs one value head per query head.
    """

    equation = r"U_n = A_n V_n + \lambda (V_1 - V_n)"
    source = "NeuTRENO (2312.00751), as in the code of 2410.17897"
    options = {
        "lam": Option(0.4, "λ"),
        "residual": flag(0, "1: mix the values as `identity` does, too"),
    }

    def __init__(self, site: Site, config: ModelConfig, **given: Any) -> None:
        super().__init__(site, config, **given)
        if config.kv_heads != config.n_head:
            raise RRError(
                f"neutreno adds values to the output of {config.n_head} heads but there are "
                f"{config.kv_heads} value heads: set n_kv_head = n_head"
            )

    def lambdas(self) -> tuple[float, float]:
        return (0.5, 0.5) if self.opt.residual else (0.0, 1.0)

    def after(self, y: Tensor, v: Tensor, vstate: Any) -> Tensor:
        return y + self.opt.lam * (vstate - v)


@register("gated-attention")
class GatedAttention(ValueRule):
    """y ← y ⊙ σ(W x): a gate from attention's input x on its output y, before the projection W_o.

    x is the normalised state that queries are computed from, so the gate is a Review gate that
    reads the state and lets part of an update pass, but inside the branch. Values are a block's
    own. granularity=channel, one gate per channel of each head, W (H·e, d), is the paper's best
    form; head is one per head, W (H, d). No bias; W ~ N(0, 0.02²), as rows of the query projection,
    which hold it in the authors' code: gates start near ½.
    """

    equation = r"Y'_n = Y_n \odot \sigma(W x_n)"
    source = "Gated Attention (2505.06708)"
    shipped = (
        "Qwen3-Next, Qwen3.5 and Qwen3.8-Flash-Next (per channel; qwen3_next, qwen3_5 and "
        "qwen4_exp in Transformers); Kimi-K3 (second-hand)"
    )
    matrix_names = ("weight",)
    options = {"granularity": one_of("channel", "who shares a gate", "channel", "head")}

    def __init__(self, site: Site, config: ModelConfig, **given: Any) -> None:
        super().__init__(site, config, **given)
        self.weight = nn.Parameter(torch.empty(self.width(site), site.d_model))

    def width(self, site: Site) -> int:
        """Gates per token: d or H."""
        return site.d_model if self.opt.granularity == "channel" else site.n_head

    def fill(self, normal: Normal) -> None:
        normal(self.weight, 0.02)

    def gated(self, y: Tensor, x: Tensor) -> Tensor:
        if self.opt.granularity == "channel" and y.shape[1] * y.shape[-1] != len(self.weight):
            heads = f"{y.shape[1]} heads of {y.shape[-1]} do not make a width of {len(self.weight)}"
            raise RRError(f"gated-attention: {heads}: use granularity=head")
        gate = F.linear(x.to(self.weight.dtype), self.weight).sigmoid()
        return y * gate.unflatten(-1, (self.site.n_head, -1)).transpose(1, 2)

    def params(self, site: Site) -> int:
        return self.width(site) * site.d_model

    def matmul_flops(self, site: Site) -> int:
        return 2 * self.width(site) * site.d_model


GATE_CHANNELS = 12  # of attention's input, which the gate of a value embedding sees


@register("embeddings")
class Embeddings(ValueRule):
    """V' = V_n + g ⊙ E_n[token]: every second block adds values that are looked up by the token.

    E_n (V, H_kv·e) is a table of the block's own, as large as the token embedding where every query
    head has its values; it adds no product. g = 3σ(W x_1…12), one number per value head from the
    first 12 channels of attention's input. Blocks L, L − 2, … have a table, the others are plain.

    W starts uniform from 0 to 0.02, so that g is a little above 3/2, and E_n ~ N(0, 0.02²·d), as
    large as V_n: nanochat's start since August 2026 (commit 437943b: E ~ N(0, 1) beside a W_v of
    1/√d; here W_v ~ N(0, 0.02²)). modded-nanogpt (August 2026) has tables in its second, third and
    last three blocks, which start at 0.01·N(0, 1); the gate of all but the last is 2σ, starts at 1,
    and sees six channels of x and six of the table's row.

    rate is the factor of the tables' learning rate. In nanochat it is 5 at width 768, 0.1 where the
    matrices have 0.02; the gates are among the matrices.

    vstate is the token ids.
    """

    equation = r"V'_n = V_n + g_n \odot E_n[\mathrm{token}],\quad g_n = 3\sigma(W x_n)"
    source = "nanochat (Karpathy 2025); modded-nanogpt (Jordan et al. 2024)"
    shipped = "nanochat (nanochat/gpt.py); modded-nanogpt's records"
    matrix_names = ("weight",)

    def __init__(self, site: Site, config: ModelConfig, **given: Any) -> None:
        super().__init__(site, config, **given)
        self.heads, self.vocab = config.kv_heads, config.vocab_size
        self.seen, self.width = min(GATE_CHANNELS, site.d_model), config.kv_heads * config.head_dim
        self.has_table = (site.n_layer - site.block) % 2 == 0
        if self.has_table:
            self.table = nn.Parameter(torch.empty(self.vocab, self.width))
            self.weight = nn.Parameter(torch.empty(self.heads, self.seen))

    def fill(self, normal: Normal) -> None:
        if self.has_table:
            normal(self.table, 0.02 * self.site.d_model**0.5)
            normal(self.weight, 1.0)
            self.weight.copy_(0.02 * torch.special.ndtr(self.weight))  # uniform, as it falls

    def own_rates(self) -> dict[str, float]:
        return {name: rate for name, rate in super().own_rates().items() if name == "table"}

    def begin(self, ids: Tensor) -> Tensor:
        return ids

    def added(self, v: Tensor, x: Tensor, vstate: Any) -> Tensor:
        if not self.has_table:
            return v
        gate = 3 * F.linear(x[..., : self.seen].to(self.weight.dtype), self.weight).sigmoid()
        looked_up = F.embedding(vstate, self.table).unflatten(-1, (self.heads, -1))
        return v + (gate.unsqueeze(-1) * looked_up).transpose(1, 2).to(v.dtype)

    def params(self, site: Site) -> int:
        return self.vocab * self.width + self.heads * self.seen if self.has_table else 0

    def matmul_flops(self, site: Site) -> int:
        return 2 * self.heads * self.seen if self.has_table else 0


def make_values(spec: str, site: Site, config: ModelConfig) -> ValueRule:
    """The value rule that `spec` names, at one attention site."""
    cls, options = resolve(spec, kind="values")
    return cls(site, config, **options)
