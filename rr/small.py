"""The whole idea in one file: a GPT-2 decoder with a gated residual, and how it is trained.

    python rr/small.py TEXT            # trains on a text file, byte by byte, and writes a sample

It needs torch and numpy, and nothing else of `rr`: read it from top to bottom. `rr` computes the
same with more choices (rules, devices, formats, saving), and a test holds the two together: on a
CPU both give the same losses and the same weights, bit for bit.

A block has two sublayers, attention and an MLP. Each reads the stream h (B, T, d) through a norm
and computes an update u of the same shape. What happens to u is the one thing that differs:

    standard    h + u                                          the residual of GPT-2
    constant    h + ½ u                                        what the gate is before training
    review      h + r ⊙ u,  r = σ(W [rms(h) ; rms(u)] + b)     a gate per token and channel

Shapes: B windows, T tokens, d channels, H heads, V token numbers.
"""

import argparse
import hashlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

RULES = ("standard", "constant", "review")


@dataclass(frozen=True)
class Config:
    """The shape of a model; n_head divides d_model."""

    vocab_size: int = 256  # V; 256 where tokens are bytes
    n_layer: int = 4
    n_head: int = 2
    d_model: int = 128
    d_ff: int = 512  # channels inside the MLP
    seq_len: int = 256  # longest window, in tokens
    rule: str = "review"


# -- the model ------------------------------------------------------------------------------------


def rms_norm(x: Tensor) -> Tensor:
    """x / √(mean(x²) + 1e-5) over the channels: every token's vector gets size one."""
    return F.rms_norm(x, x.shape[-1:], eps=1e-5)


class Rule(nn.Module):
    """Stands between one sublayer and the stream: `read` before it, `write` after it."""

    def __init__(self, d: int, rule: str) -> None:
        super().__init__()
        self.rule = rule
        self.gain = nn.Parameter(torch.ones(d))
        if rule == "review":
            self.weight = nn.Parameter(torch.zeros(d, 2 * d))  # zero: r = ½
            self.bias = nn.Parameter(torch.zeros(d))

    def read(self, h: Tensor) -> Tensor:
        """What the sublayer sees of the stream, (B, T, d)."""
        return F.rms_norm(h, h.shape[-1:], self.gain, eps=1e-5)

    def write(self, h: Tensor, u: Tensor) -> Tensor:
        """The stream after the update u, (B, T, d)."""
        if self.rule == "standard":
            return h + u
        if self.rule == "constant":
            return h + 0.5 * u
        return h + self.gate(h, u) * u

    def gate(self, h: Tensor, u: Tensor) -> Tensor:
        """r, (B, T, d): how much of u passes in each channel, from 0 to 1."""
        both = torch.cat([rms_norm(h), rms_norm(u)], -1)
        return torch.sigmoid(F.linear(both, self.weight, self.bias))


class Attention(nn.Module):
    """Every token takes a mixture of the values of the tokens up to itself."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.n_head = c.n_head
        self.qkv = nn.Linear(c.d_model, 3 * c.d_model)
        self.out = nn.Linear(c.d_model, c.d_model)

    def forward(self, x: Tensor) -> Tensor:
        # q, k, v: (B, T, d) -> (B, H, T, d/H); y: softmax(q kᵀ / √(d/H)) v
        qkv = self.qkv(x).chunk(3, -1)
        q, k, v = (p.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for p in qkv)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Works on each token alone: wider, a bend, narrow again."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.up = nn.Linear(c.d_model, c.d_ff)
        self.down = nn.Linear(c.d_ff, c.d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Layer(nn.Module):
    """One block: attention, then the MLP, each with its rule."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.attn_rule = Rule(c.d_model, c.rule)
        self.mlp_rule = Rule(c.d_model, c.rule)
        self.attn, self.mlp = Attention(c), MLP(c)

    def forward(self, h: Tensor) -> Tensor:
        h = self.attn_rule.write(h, self.attn(self.attn_rule.read(h)))
        return self.mlp_rule.write(h, self.mlp(self.mlp_rule.read(h)))


class Model(nn.Module):
    """model(ids (B, T)) -> logits (B, T, V). Parameters are named as in `rr.Model`."""

    def __init__(self, config: Config, seed: int = 0) -> None:
        super().__init__()
        if config.rule not in RULES:
            raise ValueError(f"rule is {config.rule!r}, not one of {RULES}")
        self.config = config
        self.token = nn.Embedding(config.vocab_size, config.d_model)
        self.position = nn.Embedding(config.seq_len, config.d_model)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.n_layer))
        self.final_rule = Rule(config.d_model, "none")  # only reads
        initialise(self, seed)

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        h = self.token(ids) + self.position(places)
        for layer in self.layers:
            h = layer(h)
        return F.linear(self.final_rule.read(h), self.token.weight)  # the embedding

    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Mean of −log p(target), in nats per token; ids and targets (B, T)."""
        return F.cross_entropy(self(ids).flatten(0, 1), targets.flatten())


def keyed(seed: int, name: str) -> torch.Generator:
    """Random numbers of one tensor, by seed and name: networks of one seed start alike."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


@torch.no_grad()
def initialise(model: Model, seed: int) -> None:
    """Weights N(0, 0.02²), 1/√(2L) of that where a sublayer ends; biases 0; rules as made."""
    for name, p in model.named_parameters():
        if "rule" not in name and name.endswith("bias"):
            p.zero_()
        elif "rule" not in name:
            ends = name.endswith(("out.weight", "down.weight"))
            std = 0.02 * (2 * model.config.n_layer) ** -0.5 if ends else 0.02
            p.copy_(torch.randn(p.shape, generator=keyed(seed, name)) * std)


# -- training -------------------------------------------------------------------------------------


def starts(seed: int, step: int, batch: int, last: int) -> np.ndarray:
    """Where the windows of a step begin, (batch,): from (seed, step) alone, below `last`."""
    key = np.array([seed, step], dtype=np.uint64)
    words = np.random.Philox(key=key).random_raw(batch)
    return (words % np.uint64(last)).astype(np.int64)


def windows(tokens: np.ndarray, begin: np.ndarray, length: int) -> tuple[Tensor, Tensor]:
    """ids and targets (B, T): each target is the token after its id."""
    rows = np.stack([tokens[start : start + length + 1] for start in begin])
    ids = torch.from_numpy(rows.astype(np.int64))
    return ids[:, :-1], ids[:, 1:]


def rate_at(step: int, steps: int, lr: float) -> float:
    """Up to lr over a twentieth of the steps (500 at most), level, to 0 in the last fifth."""
    warmup = max(1, min(500, steps // 20))
    if step < warmup:
        return lr * (step + 1) / warmup
    decay = min(steps - 1, steps * 4 // 5)  # the first step of the last fifth
    return lr * min(1.0, (steps - step) / (steps - decay))


def adamw(model: Model, lr: float) -> torch.optim.AdamW:
    """AdamW in two groups: matrices decay; embeddings, gains and biases do not."""
    matrices, others = [], []
    for name, p in model.named_parameters():
        decays = p.ndim == 2 and not name.startswith(("token", "position"))
        (matrices if decays else others).append(p)
    groups = [{"params": matrices}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), weight_decay=0.1)


def train(
    model: Model,
    tokens: np.ndarray,
    steps: int,
    batch: int = 8,
    lr: float = 3e-3,
    seed: int = 0,
    log: Callable[[int, float], None] = lambda step, loss: None,
) -> list[float]:
    """Train in place; returns the loss of each step, nats per token, before its update.

    tokens: token numbers, (n,), n above seq_len + 1. log: called with step and loss.
    """
    length = model.config.seq_len
    if len(tokens) < length + 2:
        raise ValueError(f"expected {length + 2} or more tokens, got {len(tokens)}")
    optimizer = adamw(model, lr)
    losses = []
    for step in range(steps):
        begin = starts(seed, step, batch, len(tokens) - length - 1)
        loss = model.loss(*windows(tokens, begin, length))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step, steps, lr)
        optimizer.step()
        losses.append(loss.item())
        log(step, losses[-1])
    return losses


# -- use ------------------------------------------------------------------------------------------


@torch.no_grad()
def held_out(model: Model, tokens: np.ndarray) -> float:
    """Mean loss over tokens that were not trained on: at most 64 windows, side by side."""
    length = model.config.seq_len
    begin = np.arange(0, len(tokens) - length, length)[:64, None]
    if not len(begin):
        raise ValueError(f"expected {length + 1} or more tokens, got {len(tokens)}")
    losses = [model.loss(*windows(tokens, one, length)) for one in begin]
    return torch.stack(losses).mean().item()


@torch.no_grad()
def sample(
    model: Model, ids: Tensor, count: int, temperature: float = 0.8, seed: int = 0
) -> Tensor:
    """Continue ids (1, T) by `count` tokens, each drawn from softmax(logits / temperature)."""
    source = torch.Generator().manual_seed(seed)
    for _ in range(count):
        logits = model(ids[:, -model.config.seq_len :])[:, -1]
        p = (logits / temperature).softmax(-1)
        ids = torch.cat([ids, torch.multinomial(p, 1, generator=source)], 1)
    return ids


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small gated transformer on a text.")
    parser.add_argument("text", type=Path, help="a text file")
    parser.add_argument("--rule", choices=RULES, default="review", help="how an update is written")
    parser.add_argument("--steps", type=int, default=300, help="optimiser steps")
    args = parser.parse_args()
    try:
        data = args.text.read_bytes()
    except OSError as error:
        sys.exit(f"cannot read {args.text}: {error.strerror}; expected a text file")
    tokens = np.frombuffer(data, dtype=np.uint8)  # a token is a byte
    cut = len(tokens) * 9 // 10  # the last tenth is held out
    config = Config(rule=args.rule)
    if len(tokens) - cut <= config.seq_len:
        sys.exit(f"{args.text} has {len(data)} bytes: expected {10 * config.seq_len + 10} or more")
    if args.steps < 1:
        sys.exit(f"--steps is {args.steps}: expected 1 or more")

    model, began = Model(config), time.monotonic()
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {cut:,} bytes to train on")

    def report(step: int, loss: float) -> None:
        if step % max(1, args.steps // 10) == 0 or step == args.steps - 1:
            print(f"step {step + 1:5}  loss {loss:.4f}  {time.monotonic() - began:.0f} s")

    train(model, tokens[:cut], args.steps, log=report)
    print(f"held-out loss {held_out(model, tokens[cut:]):.4f} nats per byte")
    prompt = torch.tensor([list(data[cut : cut + 32])])
    written = sample(model, prompt, 300)[0].tolist()
    print("\n" + bytes(written).decode("utf-8", errors="replace"))


if __name__ == "__main__":
    main()
