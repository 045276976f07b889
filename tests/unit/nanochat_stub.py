"""A small model with the names and signatures of nanochat/gpt.py; ours. Places: # < >."""

import torch
from torch.nn import functional as F

COMPUTE_DTYPE = torch.bfloat16
# < above init_params
# >


def norm(x):
    return F.rms_norm(x, (x.size(-1),))


def bf16_matmul(x, w):
    return F.linear(x, w.to(x.dtype))


def init_buffers(config, device):
    return {"window": torch.tensor([4, 0], device=device)}


def init_params(config, device):
    n_layer, d = config.n_layer, config.n_embd

    def normal(*shape):
        return (torch.randn(*shape, generator=torch.Generator().manual_seed(0)) * 0.2).to(device)

    params = {"transformer.wte.weight": normal(config.vocab, d)}
    params["lm_head.weight"] = normal(config.vocab, d)
    for i in range(n_layer):
        for name in ("attn.c_q", "attn.c_v", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"):
            params[f"transformer.h.{i}.{name}.weight"] = normal(d, d)
    # < init_params, instead of the per-layer scalars and the backout
    steps = torch.arange(n_layer, device=device) / max(n_layer - 1, 1)
    params["resid_lambdas"] = 1.15 - 0.10 * steps
    params["x0_lambdas"] = 0.20 - 0.15 * steps
    params["backout_lambda"] = torch.full((1,), 0.2, device=device)
    # >
    params["value_embeds.1.weight"] = normal(config.vocab, d)
    for p in params.values():
        p.requires_grad_(True)
    return params


def forward(params, buffers, idx, *, config, targets=None, kv_cache=None, matmul=bf16_matmul):
    x = norm(F.embedding(idx, params["transformer.wte.weight"]).to(COMPUTE_DTYPE))
    # < forward, instead of the lines from x0 = x to the loop
    x0, middle, x_backout = x, config.n_layer // 2, None
    # >
    for i in range(config.n_layer):

        def p(name, i=i):
            return params[f"transformer.h.{i}.{name}"]

        # < forward, instead of the line with the two scalars
        x = params["resid_lambdas"][i] * x + params["x0_lambdas"][i] * x0
        # >
        xn = norm(x)
        q, v = matmul(xn, p("attn.c_q.weight")), matmul(xn, p("attn.c_v.weight"))
        if f"value_embeds.{i}.weight" in params:
            v = v + F.embedding(idx, params[f"value_embeds.{i}.weight"]).to(x.dtype)
        y = F.scaled_dot_product_attention(
            q.unsqueeze(1), xn.unsqueeze(1), v.unsqueeze(1), is_causal=True
        ).squeeze(1)
        # < forward, instead of the line that adds attention's output
        x = x + matmul(y, p("attn.c_proj.weight"))
        # >
        xn = norm(x)
        h = matmul(xn, p("mlp.c_fc.weight")).relu().square()
        # < forward, instead of the lines from the MLP's output to the end of the loop
        x = x + matmul(h, p("mlp.c_proj.weight"))
        if i == middle:
            x_backout = x
        # >
    # < forward, instead of the backout
    x = x - params["backout_lambda"].to(x.dtype) * x_backout
    # >
    return matmul(norm(x), params["lm_head.weight"]).float()


class GPT:
    def __init__(self, config, device, params=None):
        self.config = config
        self.buffers = init_buffers(config, device)
        schema = init_params(config, device="meta")
        if params is not None:
            assert schema.keys() == params.keys()
            assert all(params[name].shape == p.shape for name, p in schema.items())
        self.params = init_params(config, device) if params is None else dict(params)
        for p in self.params.values():
            p.requires_grad_(True)
        # < GPT.__init__, last
        # >

    def __call__(self, idx):
        return forward(self.params, self.buffers, idx, config=self.config)

    def parameters(self):
        return list(self.params.values())

    def state_dict(self):
        return dict(self.params)

    def setup_optimizer(self):
        matrices = [p for name, p in self.params.items() if name.startswith("transformer.h.")]
        rest = [
            p
            for name, p in self.params.items()
            if name.startswith(("transformer.wte", "lm_head", "value_embeds"))
        ]
        param_groups = [
            dict(kind="adamw", params=rest, lr=0.01, betas=(0.8, 0.95), eps=1e-10, weight_decay=0.0)
        ]
        # < GPT.setup_optimizer, instead of the groups of the scalars and the backout
        scalars = [self.params[n] for n in ("resid_lambdas", "x0_lambdas", "backout_lambda")]
        param_groups.append(
            dict(
                kind="adamw", params=scalars, lr=0.5, betas=(0.8, 0.95), eps=1e-10, weight_decay=0.0
            )
        )
        # >
        param_groups.append(dict(kind="muon", params=matrices, lr=0.02, weight_decay=0.0))
        return param_groups
