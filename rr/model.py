"""The decoder, blind to which residual rule it runs.

    x0 = token + position → state = open(x0)
    for each pass, for each layer: state, vstate = layer(state, vstate)
    logits = read_final(state) · Eᵀ                     (head tied to the embedding E)

Shapes: B windows, T tokens, d channels, H heads of e = d/H channels, V vocabulary rows.
"""

import hashlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .config import ModelConfig, RRError
from .ops import linear_cross_entropy
from .residual import Site, make
from .values import make_values


class KVCache:
    """Keys and values of one (pass, layer) while generating, grown along the token axis."""

    def __init__(self) -> None:
        self.k: Tensor | None = None
        self.v: Tensor | None = None

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add keys and values (B, H, T, e); return all so far, (B, H, past + T, e)."""
        self.k = k if self.k is None else torch.cat([self.k, k], 2)
        self.v = v if self.v is None else torch.cat([self.v, v], 2)
        return self.k, self.v


class Attention(nn.Module):
    """Causal multi-head attention; its values go through the value rule."""

    def __init__(self, config: ModelConfig, site: Site) -> None:
        super().__init__()
        d = config.d_model
        self.n_head = config.n_head
        self.rule = make_values(config.values, site, config)
        self.own_v = self.rule.has_own_v(site.block)
        self.qkv = nn.Linear(d, (3 if self.own_v else 2) * d)
        self.out = nn.Linear(d, d)

    def forward(self, x: Tensor, vstate: Any = None, cache: KVCache | None = None):
        """x (B, T, d) -> update (B, T, d), vstate."""
        parts = self.qkv(x).unflatten(-1, (-1, self.n_head, x.shape[-1] // self.n_head))
        q, k, *own = parts.permute(2, 0, 3, 1, 4)  # each (B, H, T, e)
        v, vstate = self.rule.values(own[0] if self.own_v else None, vstate)
        causal, mask = True, None
        if cache is not None:
            k, v = cache.append(k, v)
            causal = q.shape[2] == k.shape[2]
            if not causal and q.shape[2] > 1:
                mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=x.device)
                mask = mask.tril(k.shape[2] - q.shape[2])
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        y = self.rule.after(y, v, vstate)
        return self.out(y.transpose(1, 2).flatten(2)), vstate


class MLP(nn.Module):
    """d → d_ff → d with the exact GELU."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.d_model, config.d_ff)
        self.down = nn.Linear(config.d_ff, config.d_model)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, T, d) -> update (B, T, d)."""
        return self.down(F.gelu(self.up(x)))


class Layer(nn.Module):
    """One block, attention and MLP, each with its rule.

    The unit of compilation, sharding, recomputation and looping.
    """

    def __init__(self, config: ModelConfig, block: int) -> None:
        super().__init__()
        sites = [site_of(config, kind, 2 * block - 1 + i) for i, kind in enumerate(("attn", "mlp"))]
        self.attn_rule, self.mlp_rule = (make(config.rule, site, config) for site in sites)
        self.attn = Attention(config, sites[0])
        self.mlp = MLP(config)

    def forward(self, state: Any, vstate: Any = None, cache: KVCache | None = None):
        """The stream's state and the value state, before -> after this block."""
        x, state = self.attn_rule.read(state)
        u, vstate = self.attn(x, vstate, cache)
        state = self.attn_rule.write(state, u)
        x, state = self.mlp_rule.read(state)
        state = self.mlp_rule.write(state, self.mlp(x))
        return state, vstate

    @property
    def rules(self) -> tuple:
        """The two residual rules, attention first."""
        return self.attn_rule, self.mlp_rule


def site_of(config: ModelConfig, kind: str, sublayer: int) -> Site:
    """The site of one sublayer (1 … 2L, or 2L + 1 for "final") in a model of this shape."""
    return Site(kind, sublayer, config.n_layer, config.d_model, config.n_head, config.n_loops)


class Model(nn.Module):
    """A decoder-only language model of the given shape; `initialise` gives it its weights."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.token = nn.Embedding(config.padded_vocab, config.d_model)
        self.position = nn.Embedding(config.seq_len, config.d_model)
        self.layers = nn.ModuleList(Layer(config, i + 1) for i in range(config.n_layer))
        self.final_rule = make(
            config.rule, site_of(config, "final", 2 * config.n_layer + 1), config
        )

    @property
    def rules(self) -> list:
        """Every sublayer's residual rule, bottom to top."""
        return [rule for layer in self.layers for rule in layer.rules]

    def hidden(self, idx: Tensor, caches: list[KVCache] | None = None, past: int = 0) -> Tensor:
        """Token ids (B, T) -> what the head reads, (B, T, d)."""
        if past + idx.shape[1] > self.config.seq_len:
            raise RRError(
                f"{past + idx.shape[1]} tokens do not fit: at most {self.config.seq_len} (seq_len)"
            )
        where = torch.arange(past, past + idx.shape[1], device=idx.device)
        state = self.final_rule.open(self.token(idx) + self.position(where))
        for n in range(self.config.n_loops):
            vstate = None
            for i, layer in enumerate(self.layers):
                cache = caches[n * len(self.layers) + i] if caches else None
                state, vstate = layer(state, vstate, cache)
        return self.final_rule.read(state)[0]

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> Tensor:
        """Ids (B, T) -> logits (B, T, vocab_size); with targets (B, T), the mean loss in nats."""
        x, vocab = self.hidden(idx), self.config.vocab_size
        if targets is None:
            return F.linear(x, self.token.weight)[..., :vocab]
        return linear_cross_entropy(x.flatten(0, 1), self.token.weight, targets.flatten(), vocab)

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
        """Continue ids (1, T) by up to n_tokens, up to seq_len in all; ends early at id `stop`.

        temperature 0 takes the most probable token. `cached=False` recomputes every step: slower,
        the same tokens.
        """
        caches = [KVCache() for _ in range(self.config.n_loops * len(self.layers))]
        for _ in range(min(n_tokens, self.config.seq_len - idx.shape[1])):
            past = caches[0].k.shape[2] if cached and caches[0].k is not None else 0
            x = self.hidden(idx[:, past:], caches if cached else None, past)[:, -1]
            logits = F.linear(x, self.token.weight)[:, : self.config.vocab_size].float()
            if temperature == 0:
                choice = logits.argmax(-1, keepdim=True)
            else:
                if top_k is not None:
                    least = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
                    logits = logits.masked_fill(logits < least, -torch.inf)
                p = (logits / temperature).softmax(-1).cpu()
                choice = torch.multinomial(p, 1, generator=generator).to(idx.device)
            idx = torch.cat([idx, choice], 1)
            if stop is not None and choice.item() == stop:
                break
        return idx


@torch.no_grad()
def initialise(model: Model, seed: int, shared: bool = True) -> Model:
    """Give `model` the initial weights of `seed`: the one init table.

    | tensor                                  | law                                |
    |-----------------------------------------|------------------------------------|
    | token and position embeddings           | N(0, 0.02²); padding rows 0        |
    | qkv and up weights                      | N(0, 0.02²)                        |
    | out and down weights (branch ends)      | N(0, (0.02·g)²), g = `branch_gain` |
    | biases                                  | 0                                  |
    | norm gains                              | 1                                  |
    | the rule's own                          | its `reset`                        |

    shared=True (protocol `clean`): each tensor is drawn from its own stream, keyed by (seed, its
    name), so that arms of one seed share all the tensors that they have in common.
    shared=False (protocol `paper`): one stream in the order of the modules.
    Draws are made on the CPU in float32, so that every device starts from the same weights.
    """
    names = {id(p): name for name, p in model.named_parameters()}
    stream = torch.Generator().manual_seed(seed)

    def normal(tensor: Tensor, std: float, rows: int | None = None) -> None:
        source = stream
        if shared:
            digest = hashlib.sha256(f"{seed}/{names[id(tensor)]}".encode()).digest()
            source = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
        kept = tensor[:rows]
        kept.copy_(torch.randn(kept.shape, generator=source) * std)

    nn.init.zeros_(model.token.weight)
    normal(model.token.weight, 0.02, model.config.vocab_size)
    normal(model.position.weight, 0.02)
    for layer in model.layers:
        for (enter, leave), rule in zip(
            ((layer.attn.qkv, layer.attn.out), (layer.mlp.up, layer.mlp.down)),
            layer.rules,
            strict=True,
        ):
            normal(enter.weight, 0.02)
            normal(leave.weight, 0.02 * rule.branch_gain(rule.site))
            nn.init.zeros_(enter.bias)
            nn.init.zeros_(leave.bias)
            rule.reset(normal)
        layer.attn.rule.reset(normal)
    model.final_rule.reset(normal)
    return model


def decayed(model: Model) -> set[str]:
    """Names of the matrices that weight decay acts on in protocol `clean`.

    Weights of linear layers and of rules (`matrix_names`); not embeddings, gains or biases.
    """
    names = set()
    for path, module in model.named_modules():
        own = ("weight",) if isinstance(module, nn.Linear) else getattr(module, "matrix_names", ())
        held = dict(module.named_parameters(recurse=False))
        names.update(f"{path}.{name}" for name in own if name in held)
    return names
