"""The decoder-only transformer, independent of its residual rule.

    x0 = token + position → state = open(x0)
    for each pass, for each layer: state, vstate = layer(state, vstate)
    logits = read_final(state) · Eᵀ                     (head tied to the embedding E)

Shapes: B windows, T tokens, d channels, H heads of e = d/H channels, V vocabulary rows.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ..errors import RRError
from ..ops import attention, blocked_attention, cross_entropy
from ..ops.kernels import DEFAULT, Kernels
from ..residual import Residuals, Rule, Site
from ..residual.values import make_values
from ..specs import ModelConfig


class KVCache:
    """Keys and values of one (pass, layer) during generation.

    `v_of` is the cache whose values this one uses instead of its own (SVFormer).
    """

    def __init__(self, v_of: "KVCache | None" = None) -> None:
        self.k: Tensor | None = None
        self.v: Tensor | None = None
        self.v_of = v_of

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values (B, H_kv, T, e); returns all of them, (B, H_kv, past + T, e)."""
        self.k = k if self.k is None else torch.cat([self.k, k], 2)
        if self.v_of is not None:  # the other cache has these tokens already
            assert self.v_of.v is not None
            return self.k, self.v_of.v
        self.v = v if self.v is None else torch.cat([self.v, v], 2)
        return self.k, self.v

    @property
    def nbytes(self) -> int:
        """Bytes of this cache, without those of `v_of`."""
        return sum(t.nbytes for t in (self.k, self.v) if t is not None)


def turns(x: Tensor, head_dim: int, past: int = 0) -> Tensor:
    """cos and sin of the rotary angles (RoPE, θ = 10⁴) of x (…, T, d): (2, T, e/2).

    Position p turns pair i by p·θ^(−2i/e); x starts at position `past`. The angles are exact to
    float64's rounding and kept in float32, or in x's dtype where that is wider. They are made once
    for all layers, outside what is compiled: a kernel that made them again for each element would
    spend its time in float64, of which most GPUs have little.
    """
    half, device = head_dim // 2, "cpu" if x.device.type == "mps" else x.device
    pairs = torch.arange(half, dtype=torch.float64, device=device)
    position = torch.arange(past, past + x.shape[-2], dtype=torch.float64, device=device)
    angle = torch.outer(position, 1e4 ** (-pairs / half))
    wide = torch.promote_types(x.dtype, torch.float32)
    return torch.stack([angle.cos(), angle.sin()]).to(x.device, wide)


def rotate(x: Tensor, turns: Tensor) -> Tensor:
    """Rotary positions on queries or keys x, (B, H, T, e): pairs are channel i and i + e/2."""
    cos, sin = turns
    a, b = x.to(turns.dtype).chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


class Attention(nn.Module):
    """Causal multi-head attention with a value rule."""

    kernels: Kernels = DEFAULT  # set by `Model.use`

    def __init__(self, config: ModelConfig, site: Site) -> None:
        super().__init__()
        d, kv = config.d_model, config.kv_heads * config.head_dim
        self.heads, self.rotary = config.n_head, config.flavour == "llama"
        self.head_dim = config.head_dim
        self.grouped = config.kv_heads != config.n_head
        self.rule = make_values(config.values, site, config)
        self.own_v = self.rule.has_own_v(site.block)
        self.parts = {"q": d, "k": kv} | ({"v": kv} if self.own_v else {})  # rows of qkv
        self.qkv = nn.Linear(d, sum(self.parts.values()), bias=not self.rotary)
        self.out = nn.Linear(d, d, bias=not self.rotary)

    def forward(
        self,
        x: Tensor,
        vstate: Any = None,
        cache: KVCache | None = None,
        angles: Tensor | None = None,
    ):
        """x (B, T, d) -> update (B, T, d), vstate. angles: `turns`, where they are made already."""
        split = self.qkv(x).split(list(self.parts.values()), -1)
        q, k, *own = (t.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for t in split)
        if self.rotary:
            if angles is None:
                past = cache.k.shape[2] if cache is not None and cache.k is not None else 0
                angles = turns(x, self.head_dim, past)
            q, k = rotate(q, angles), rotate(k, angles)
        v = self.rule.added(own[0], x, vstate) if self.own_v else None
        v, vstate = self.rule.values(v, vstate)
        causal, mask = True, None
        mixed = v
        if cache is not None:
            k, mixed = cache.append(k, v)
            causal = q.shape[2] == k.shape[2]
            if not causal and q.shape[2] > 1:
                mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=x.device)
                mask = mask.tril(k.shape[2] - q.shape[2])
        if self.kernels.attention == "blocks" and cache is None and torch.is_grad_enabled():
            y = blocked_attention(q, k, mixed)
        else:
            y = attention(q, k, mixed, attn_mask=mask, is_causal=causal, enable_gqa=self.grouped)
        y = self.rule.gated(self.rule.after(y, v, vstate), x)
        return self.out(y.transpose(1, 2).flatten(2)), vstate


class MLP(nn.Module):
    """d → d_ff → d: with the exact GELU (gpt2) or SwiGLU (llama)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gated = config.flavour == "llama"
        wide = 2 * config.d_ff if self.gated else config.d_ff
        self.up = nn.Linear(config.d_model, wide, bias=not self.gated)
        self.down = nn.Linear(config.d_ff, config.d_model, bias=not self.gated)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, T, d) -> update (B, T, d)."""
        if self.gated:
            gate, up = self.up(x).chunk(2, -1)
            return self.down(F.silu(gate) * up)
        return self.down(F.gelu(self.up(x)))


class Layer(nn.Module):
    """One block, attention and MLP, each with its rule.

    The unit of compilation, sharding, recomputation and looping. body: a layer whose attention and
    MLP are shared by this one, which belongs to a later pass and has rules of its own.
    """

    kernels: Kernels = DEFAULT  # set by `Model.use`

    def __init__(
        self,
        config: ModelConfig,
        rules: tuple[Rule, Rule],
        body: "Layer | None" = None,
    ) -> None:
        super().__init__()
        self.attn_rule, self.mlp_rule = rules
        self.attn = Attention(config, self.attn_rule.site) if body is None else body.attn
        self.mlp = MLP(config) if body is None else body.mlp

    def forward(
        self,
        state: Any,
        vstate: Any = None,
        cache: KVCache | None = None,
        angles: Tensor | None = None,
    ):
        """Map the stream's state and the value state through this block.

        With recompute="layer" training keeps these two alone, and the backward pass computes the
        block once more.
        """
        if self.kernels.recompute == "layer" and cache is None and torch.is_grad_enabled():
            # nothing here is random
            return checkpoint(
                self._through,
                state,
                vstate,
                None,
                angles,
                use_reentrant=False,
                preserve_rng_state=False,
            )
        return self._through(state, vstate, cache, angles)

    def _through(self, state: Any, vstate: Any, cache: KVCache | None, angles: Tensor | None):
        state, vstate = self.attn_rule.sublayer(state, self.attn, vstate, cache, angles)
        return self.mlp_rule.sublayer(state, self.mlp), vstate

    @property
    def rules(self) -> tuple[Rule, Rule]:
        """The two residual rules, attention first."""
        return self.attn_rule, self.mlp_rule


class Stack(nn.Module):
    """All layers of all passes, from the embeddings to the head's input.

    The unit of compilation where the state between blocks grows with depth. It has no parameters of
    its own: its layers are registered in the model.
    """

    def __init__(self, passes: list[list[Layer]], final_rule: Rule) -> None:
        super().__init__()
        self.members = passes, final_rule  # in a tuple, which torch does not search for modules

    def forward(
        self,
        x0: Tensor,
        caches: list[KVCache] | None = None,
        angles: Tensor | None = None,
        first_vstate: Any = None,
    ) -> Tensor:
        """Embeddings (B, T, d) -> the head's input, (B, T, d).

        angles: `turns`. first_vstate: the value state at the start of each pass.
        """
        passes, final_rule = self.members
        state = final_rule.open(x0)
        for n, layers in enumerate(passes):
            vstate = first_vstate
            for i, layer in enumerate(layers):
                cache = caches[n * len(layers) + i] if caches else None
                state, vstate = layer(state, vstate, cache, angles)
        return final_rule.read(state)[0]


class Model(nn.Module):
    """A decoder-only language model of the given shape; `rr.model.initialise` gives it its weights.

        x0 = token + position;  state = open(x0)
        for each pass, for each layer: state, vstate = layer(state, vstate)
        logits = read_final(state) · Eᵀ                 (head tied to the embedding E)

    model(ids) takes token ids (B, T), int64, and returns logits (B, T, vocab_size);
    model(ids, targets), targets (B, T), the mean loss in nats per token.

    config: the shape. kernels: which implementations its layers compute with; the default is the
    reference gate, the loss in chunks, activations kept, and torch's attention. Raises RRError for
    an unknown rule, and for options that do not fit the shape.

    Example:
        >>> import rr
        >>> config = rr.ModelConfig(64, n_layer=2, n_head=2, d_model=8, d_ff=16)
        >>> sum(p.numel() for p in rr.Model(config).parameters())
        3736
    """

    kernels: Kernels  # as `use` has set them

    def __init__(self, config: ModelConfig, kernels: Kernels = DEFAULT) -> None:
        super().__init__()
        self.config = config
        self.token = nn.Embedding(config.padded_vocab, config.d_model)
        if config.flavour == "gpt2":
            self.position = nn.Embedding(config.seq_len, config.d_model)
        if not config.tied:
            self.head = nn.Linear(config.d_model, config.padded_vocab, bias=False)
        residuals, depth = Residuals.of(config), config.n_layer
        self.per_pass, pairs = residuals.per_pass, residuals.pairs
        self.layers: Any = nn.ModuleList(Layer(config, rules) for rules in pairs[:depth])
        self.final_rule = residuals.final
        # Layers of the second pass on, where each has rules of its own. Plain lists: attention and
        # MLP are registered once, in `layers`.
        self._later_passes = [
            [Layer(config, pairs[n + i], self.layers[i]) for i in range(depth)]
            for n in range(depth, len(pairs), depth)
        ]
        self.later_rules: Any = nn.ModuleList(
            rule for layers in self._later_passes for layer in layers for rule in layer.rules
        )
        self.stack = Stack(self.passes, self.final_rule)
        self.use(kernels)

    def use(self, kernels: Kernels) -> None:
        """Compute with these implementations from here on; results agree up to rounding.

        To be called before the model is compiled.
        """
        attention = (layer.attn for layer in self.layers)
        for module in (self, *self.every_layer, *attention):
            module.kernels = kernels

    @property
    def head_weight(self) -> Tensor:
        """The head's weight, (padded_vocab, d): the embedding where it is tied."""
        return self.token.weight if self.config.tied else self.head.weight

    @property
    def passes(self) -> list[list[Layer]]:
        """The layers of each pass, bottom to top: the same ones N times, or with their own rules.

        Passes differ in which module is called, not in what a module does: all layers of all
        passes share one compiled graph.
        """
        first = list(self.layers)
        return [first, *self._later_passes] if self.per_pass else [first] * self.config.n_loops

    @property
    def every_layer(self) -> list[Layer]:
        """Each layer once, bottom to top; pass by pass where each pass has its own rules."""
        return [*self.layers, *(layer for again in self._later_passes for layer in again)]

    @property
    def rules(self) -> list[Rule]:
        """Every sublayer's residual rule, in the order of `every_layer`."""
        return [rule for layer in self.every_layer for rule in layer.rules]

    def hidden(self, idx: Tensor, caches: list[KVCache] | None = None, past: int = 0) -> Tensor:
        """Token ids (B, T) -> the head's input, (B, T, d).

        caches: as `caches()` makes them, to which the keys and values of these tokens are appended;
        None: attention within idx alone. past: tokens that the caches hold already. Raises RRError
        for more than seq_len tokens in all.
        """
        if past + idx.shape[1] > self.config.seq_len:
            raise RRError(
                f"expected at most seq_len = {self.config.seq_len} tokens, got "
                f"{past + idx.shape[1]}"
            )
        x0, angles, first_vstate = self.embed(idx, past)
        return self.stack(x0, caches, angles, first_vstate)

    def embed(self, idx: Tensor, past: int = 0) -> tuple[Tensor, Tensor | None, Any]:
        """Token ids (B, T) at position `past` on -> what the stack starts from.

        The embeddings x0 (B, T, d), the rotary angles (`turns`; None with learned positions), and
        the value state at the start of each pass.
        """
        x0, first_vstate = self.token(idx), self.layers[0].attn.rule.begin(idx)
        if self.config.flavour == "gpt2":
            positions = torch.arange(past, past + idx.shape[1], device=idx.device)
            return x0 + self.position(positions), None, first_vstate
        return x0, turns(x0, self.config.head_dim, past), first_vstate

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> Tensor:
        """Ids (B, T) -> logits (B, T, vocab_size); with targets (B, T), `loss`."""
        x = self.hidden(idx)
        if targets is None:
            return F.linear(x, self.head_weight)[..., : self.config.vocab_size]
        return self.loss(x, targets)

    def loss(self, x: Tensor, targets: Tensor) -> Tensor:
        """The mean loss in nats per token, from the output of `hidden` and targets (B, T)."""
        given = x.flatten(0, 1), self.head_weight, targets.flatten(), self.config.vocab_size
        if self.kernels.loss == "whole":
            return cross_entropy.whole_cross_entropy(*given)
        return cross_entropy.linear_cross_entropy(*given, fused=self.kernels.loss == "fused")

    def caches(self) -> list[KVCache]:
        """Empty caches for `hidden`, one per (pass, layer).

        Layers that use block 1's values store none.
        """
        caches: list[KVCache] = []
        for _ in range(self.config.n_loops):
            first = KVCache()
            for layer in self.layers:
                shares = not layer.attn.rule.caches_v(layer.attn_rule.site.block)
                is_first = layer is self.layers[0]
                caches.append(first if is_first else KVCache(v_of=first if shares else None))
        return caches

    @torch.no_grad()
    def generate(
        self,
        idx: Tensor,
        n_tokens: int,
        temperature: float = 1.0,
        top_k: int | None = None,
        generator: torch.Generator | None = None,
        stop: int | None = None,
        cached: bool = True,
    ) -> Tensor:
        """Continue ids (1, T) by up to n_tokens, up to seq_len in all. Returns ids (1, T + more).

        temperature: divides the logits; 0 takes the most probable token. top_k: draw from the k
        most probable alone. generator: of the draws, on the CPU. stop: a token id that ends the
        text early. cached: False recomputes every step: slower, with the same tokens.
        RRError where logits are not finite, temperature < 0 or top_k < 1, for ids beyond seq_len,
        and for several rows with a `stop`, which each would reach at another step.
        """
        if idx.shape[1] > self.config.seq_len or (stop is not None and len(idx) > 1):
            wanted = f"(rows, T) with T at most seq_len {self.config.seq_len}, one row with stop"
            raise RRError(f"ids must be {wanted}, got {tuple(idx.shape)}")
        if temperature < 0 or (top_k is not None and top_k < 1):
            raise RRError(f"give temperature ≥ 0 and top_k ≥ 1, got {temperature} and {top_k}")
        caches = self.caches()
        for _ in range(min(n_tokens, self.config.seq_len - idx.shape[1])):
            past = caches[0].k.shape[2] if cached and caches[0].k is not None else 0
            x = self.hidden(idx[:, past:], caches if cached else None, past)[:, -1]
            logits = F.linear(x, self.head_weight)[:, : self.config.vocab_size].float()
            if not logits.isfinite().all():
                raise RRError("the model's logits are not finite, as after a diverged run: no text")
            if temperature == 0:
                choice = logits.argmax(-1, keepdim=True)
            else:
                if top_k is not None:
                    best, at = logits.topk(min(top_k, logits.shape[-1]))
                    logits = torch.full_like(logits, -torch.inf).scatter(-1, at, best)
                p = (logits / temperature).softmax(-1).cpu()
                choice = torch.multinomial(p, 1, generator=generator).to(idx.device)
            idx = torch.cat([idx, choice], 1)
            if stop is not None and choice.item() == stop:
                break
        return idx


def at_loops(model: Model, loops: int, keep_scale: bool = False) -> Model:
    """A copy of `model` with the same weights whose stack is passed `loops` times.

    loops: N, passes of the copy. keep_scale: where a rule's scale depends on N (`scaled`, `keel`
    …) it is that of the new N; with True the one that it was trained at. Raises RRError where
    parameters belong to one number of passes: rules that mix fixed depths, and per_pass=1.

    Example:
        >>> import rr
        >>> config = rr.ModelConfig(64, n_layer=2, n_head=2, d_model=8, d_ff=16)
        >>> rr.model.at_loops(rr.Model(config), 3).config.n_loops
        3
    """
    trained = model.config.n_loops
    if model.per_pass and loops != trained:
        raise RRError(
            f"{model.config.rule} has parameters for {trained} passes: expected loops={trained}, "
            f"got {loops}"
        )
    other = Model(replace(model.config, n_loops=loops), model.kernels).to(model.token.weight)
    now, then = ([type(part) for part in one.modules()] for one in (other, model))
    if now != then:
        raise RRError("a rule's name has another class by now: build the model again")
    other.load_state_dict(model.state_dict())
    other.train(model.training)
    if keep_scale:
        for mine, old in zip(other.rules, model.rules, strict=True):
            mine.site = replace(mine.site, n_loops=old.site.n_loops)
    return other
