"""A small model with the names and signatures of litgpt/model.py; ours. Places: # < >."""

import torch
from torch import nn


class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.qkv = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.proj = nn.Linear(config.n_embd, config.n_embd)

    def forward(self, x, cos, sin, mask=None, input_pos=None, input_pos_maxp1=None):
        q, k, v = self.qkv(x * cos).unsqueeze(1).chunk(3, -1)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.squeeze(1))


class Block(nn.Module):
    def __init__(self, config, block_idx):
        super().__init__()
        d = config.n_embd
        self.norm_1, self.norm_2 = nn.RMSNorm(d), nn.RMSNorm(d)
        self.attn = CausalSelfAttention(config)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
        self.post_attention_norm, self.post_mlp_norm = nn.RMSNorm(d), nn.Identity()

    # < class Block, instead of forward
    def forward(self, x, cos, sin, mask=None, input_pos=None, input_pos_maxp1=None):
        u = self.attn(self.norm_1(x), cos, sin, mask, input_pos, input_pos_maxp1)
        x = x + self.post_attention_norm(u)
        return x + self.post_mlp_norm(self.mlp(self.norm_2(x)))

    # >


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.wte = nn.Embedding(config.vocab, config.n_embd)
        blocks = nn.ModuleList(Block(config, i) for i in range(config.n_layer))
        self.transformer = nn.ModuleDict({"h": blocks, "ln_f": nn.RMSNorm(config.n_embd)})
        self.lm_head = nn.Linear(config.n_embd, config.vocab)
        # < GPT.__init__, last
        # >

    def forward(self, idx):
        cos, sin = torch.ones(()), torch.zeros(())
        x = self.wte(idx)
        # < GPT.forward, before the loop over the blocks
        # >
        for block in self.transformer.h:
            x = block(x, cos, sin, None, None, None)
        # < GPT.forward, after the loop
        # >
        return self.lm_head(self.transformer.ln_f(x))
