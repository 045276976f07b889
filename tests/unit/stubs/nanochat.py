"""A small model with the names and signatures of nanochat/gpt.py; ours. Places: # < >."""

import torch
from torch import nn

COMPUTE_DTYPE = torch.bfloat16


def norm(x):
    return nn.functional.rms_norm(x, (x.size(-1),))


class Linear(nn.Linear):
    def forward(self, x):
        return nn.functional.linear(x, self.weight.to(x.dtype))


class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_q, self.c_proj = (Linear(config.n_embd, config.n_embd, bias=False) for _ in "qp")

    def forward(self, x, ve, cos_sin, window_size, kv_cache):
        v = x if ve is None else x + ve
        y = nn.functional.scaled_dot_product_attention(
            self.c_q(x).unsqueeze(1), x.unsqueeze(1), v.unsqueeze(1), is_causal=True
        )
        return self.c_proj(y.squeeze(1))


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_fc, self.c_proj = (Linear(config.n_embd, config.n_embd, bias=False) for _ in "fp")

    def forward(self, x):
        return self.c_proj(self.c_fc(x).relu().square())


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.attn, self.mlp = CausalSelfAttention(config), MLP(config)

    def forward(self, x, ve, cos_sin, window_size, kv_cache):
        x = x + self.attn(norm(x), ve, cos_sin, window_size, kv_cache)
        return x + self.mlp(norm(x))


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        wte = nn.Embedding(config.vocab, config.n_embd)
        blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.transformer = nn.ModuleDict({"wte": wte, "h": blocks})
        self.value_embeds = nn.ModuleDict({"1": nn.Embedding(config.vocab, config.n_embd)})
        self.window_sizes = [(4, 0)] * config.n_layer
        self.lm_head = Linear(config.n_embd, config.vocab, bias=False)
        # < GPT.__init__, instead of the three lambdas
        self.resid_lambdas = nn.Parameter(torch.ones(config.n_layer))
        self.x0_lambdas = nn.Parameter(torch.ones(config.n_layer))
        self.backout_lambda = nn.Parameter(torch.zeros(1))
        # >

    @torch.no_grad()
    def init_weights(self):
        for i, parameter in enumerate(self.parameters()):
            torch.nn.init.normal_(parameter, std=0.2, generator=torch.Generator().manual_seed(i))
        # < GPT.init_weights, instead of the three lambdas
        self.resid_lambdas.fill_(1.0)
        self.x0_lambdas.fill_(0.1)
        self.backout_lambda.fill_(0.0)
        # >

    def setup_optimizer(self):
        rest = [self.transformer.wte, self.value_embeds, self.lm_head]
        rest = [p for module in rest for p in module.parameters()]
        param_groups = [
            dict(kind="adamw", params=rest, lr=0.01, betas=(0.8, 0.95), eps=1e-10, weight_decay=0.0)
        ]
        # < GPT.setup_optimizer, instead of the groups of the three lambdas
        scalars = [self.resid_lambdas, self.x0_lambdas, self.backout_lambda]
        param_groups.append(
            dict(
                kind="adamw", params=scalars, lr=0.5, betas=(0.8, 0.95), eps=1e-10, weight_decay=0.0
            )
        )
        # >
        matrices = list(self.transformer.h.parameters())
        param_groups.append(dict(kind="muon", params=matrices, lr=0.02, weight_decay=0.0))
        return param_groups

    def forward(self, idx, kv_cache=None):
        cos_sin = None
        x = norm(self.transformer.wte(idx).to(COMPUTE_DTYPE))
        # < GPT.forward, instead of the loop and the backout after it
        x0, middle = x, len(self.transformer.h) // 2
        for i, block in enumerate(self.transformer.h):
            x = self.resid_lambdas[i] * x + self.x0_lambdas[i] * x0
            ve = self.value_embeds[str(i)](idx).to(x.dtype) if str(i) in self.value_embeds else None
            x = block(x, ve, cos_sin, self.window_sizes[i], kv_cache)
            if i == middle:
                x_backout = x
        x = x - self.backout_lambda * x_backout
        # >
        return self.lm_head(norm(x)).float()
