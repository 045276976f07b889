"""A small model with the names and signatures of OLMo-core's transformer; ours. Places: # < >."""

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.w_qkv, self.w_out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x, scale=None):
        q, k, v = self.w_qkv(x).unsqueeze(1).chunk(3, -1)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
        return self.w_out(y.squeeze(1))


class ResidualStream(nn.Module):
    def forward(self, residual, x):
        return torch.add(residual, x)


class TransformerBlock(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.attention = Attention(d_model, n_heads)
        self.feed_forward = nn.Sequential(nn.Linear(d_model, d_model), nn.SiLU())
        self.attention_norm, self.feed_forward_norm = nn.RMSNorm(d_model), nn.RMSNorm(d_model)
        self.attention_residual_stream = ResidualStream()
        self.feed_forward_residual_stream = ResidualStream()

    # < TransformerBlock, instead of forward
    def forward(self, x, *, loss_div_factor=None, **kwargs):
        h = self.attention_residual_stream(x, self.attention(self.attention_norm(x), **kwargs))
        return self.feed_forward_residual_stream(h, self.feed_forward(self.feed_forward_norm(h)))

    # >


class Transformer(nn.Module):
    def __init__(self, *, d_model, vocab_size, n_layers, n_heads, init_device="cpu"):
        super().__init__()
        with torch.device(init_device):
            self.embeddings = nn.Embedding(vocab_size, d_model)
            blocks = (TransformerBlock(d_model, n_heads) for _ in range(n_layers))
            self.blocks = nn.ModuleDict({str(i): block for i, block in enumerate(blocks)})
            self.lm_head = nn.Sequential(nn.RMSNorm(d_model), nn.Linear(d_model, vocab_size))
        # < Transformer.__init__, last
        # >

    @torch.no_grad()
    def init_weights(self, device="cpu"):
        self.to_empty(device=device)
        for module in self.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()

    def forward(self, input_ids):
        h = self.embeddings(input_ids)
        # < Transformer.forward, before the loop
        # >
        for block in self.blocks.values():
            h = block(h, loss_div_factor=1.0, scale=0.2)
        # < Transformer.forward, after the loop
        # >
        return self.lm_head(h)
