"""A small model with the names and signatures of torchtitan's Llama 3; ours. Places: # < >."""

import torch
from torch import nn


class Module(nn.Module):
    """As torchtitan's: initialised through `init_states`, and made of nothing else."""

    def init_states(self, *, buffer_device=None):
        for child in self.children():
            if isinstance(child, Module):
                child.init_states(buffer_device=buffer_device)
        self.init_self()

    def init_self(self):
        pass


class Linear(Module, nn.Linear):
    @torch.no_grad()
    def init_self(self):
        nn.init.constant_(self.weight, 0.01)
        nn.init.zeros_(self.bias)


class Norm(Module, nn.RMSNorm):
    def init_self(self):
        nn.init.ones_(self.weight)


class Embedding(Module, nn.Embedding):
    def init_self(self):
        nn.init.ones_(self.weight)


class ModuleDict(Module, nn.ModuleDict):
    pass


class Attention(Module):
    def __init__(self, config):
        super().__init__()
        self.wqkv, self.wo = (Linear(config.dim, n * config.dim) for n in (3, 1))

    def forward(self, x, attention_masks, positions=None):
        q, k, v = self.wqkv(x).unsqueeze(1).chunk(3, -1)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.squeeze(1))


class FeedForward(Module):
    def __init__(self, config):
        super().__init__()
        self.w1, self.w2 = (Linear(config.dim, config.dim) for _ in range(2))

    def forward(self, x):
        return self.w2(nn.functional.silu(self.w1(x)))


class Llama3TransformerBlock(Module):
    def __init__(self, config):
        super().__init__()
        self.attention, self.feed_forward = Attention(config), FeedForward(config)
        self.attention_norm, self.ffn_norm = Norm(config.dim), Norm(config.dim)

    # < Llama3TransformerBlock, instead of forward
    def forward(self, x, attention_masks, positions=None):
        h = x + self.attention(self.attention_norm(x), attention_masks, positions)
        return h + self.feed_forward(self.ffn_norm(h))

    # >


class Decoder(Module):
    def __init__(self, config):
        super().__init__()
        self.tok_embeddings = Embedding(config.vocab, config.dim)
        blocks = (Llama3TransformerBlock(config) for _ in config.layers)
        self.layers = ModuleDict({str(i): block for i, block in enumerate(blocks)})
        self.norm, self.lm_head = Norm(config.dim), Linear(config.dim, config.vocab)

    def verify_module_protocol(self):
        assert all(isinstance(module, Module) for module in self.modules())

    def forward(self, tokens, positions=None, attention_masks=None):
        h = self.tok_embeddings(tokens)
        # < Decoder.forward, before the loop
        # >
        for layer in self.layers.values():
            h = layer(h, attention_masks, positions)
        # < Decoder.forward, after the loop
        # >
        return self.lm_head(self.norm(h))


class Llama3Model(Decoder):
    """The decoder, whose methods the recipe adds."""

    # < class Llama3Model, new methods
    # >
