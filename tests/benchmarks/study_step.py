"""The study's own training step beside the backends of `rr`, on this machine's CPU or GPU.

    python tests/benchmarks/study_step.py --rung mini --threads 1 \
        --out data/measured/08_make_it_fast/study_step.json

The study's step is written down here as its script takes it: eager, whole logits, norms and gates
as they stand in the paper's equations, AdamW over all weights; in float32, in TF32 as published,
with the one line of autocast that computes its products in bf16, and with `torch.compile` beside
that. It learns the same shapes as `rr`'s Review, standard and constant-½ arms.

Each case is a process of its own, so that compilation and the allocator's settings are its alone.
The cases take turns, and no case is always first. Every repeat is kept, with seconds by the clock
and by the processor: on a machine that does other work, compare the latter. Rows of other rungs and
rules that the file holds are kept.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rr import io
from rr.specs import ModelConfig
from rr.training.device import autocast, float32_products
from rrstudy.perf.benchmark import made_by
from rrstudy.perf.benchmark_case import Bench, Case

# Precision of the products, and whether the model is compiled.
SCRIPTS = {
    "script fp32": ("fp32", False),
    "script tf32": ("tf32", False),
    "script bf16": ("bf16", False),
    "script bf16 compiled": ("bf16", True),
}
BACKENDS = ("eager", "compiled", "compiled:attention=blocks")
BASE = "script bf16"


def rms_norm(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)


class Norm(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(d))

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x) * self.gain


class Write(nn.Module):
    """h + r ⊙ u with r = σ(W [norm h; norm u] + b), or with r = 1 or ½."""

    def __init__(self, d: int, rule: str) -> None:
        super().__init__()
        self.rule = rule
        if rule == "review":
            self.gate = nn.Linear(2 * d, d)

    def forward(self, h: Tensor, u: Tensor) -> Tensor:
        if self.rule == "standard":
            return h + u
        if self.rule == "constant":
            return h + 0.5 * u
        return h + torch.sigmoid(self.gate(torch.cat([rms_norm(h), rms_norm(u)], -1))) * u


class Block(nn.Module):
    def __init__(self, c: ModelConfig) -> None:
        super().__init__()
        d, self.n_head = c.d_model, c.n_head
        self.norms = nn.ModuleList(Norm(d) for _ in range(2))
        self.writes = nn.ModuleList(Write(d, c.rule) for _ in range(2))
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, c.d_ff), nn.Linear(c.d_ff, d)

    def attention(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:2], self.n_head, -1)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(x.shape))

    def forward(self, h: Tensor) -> Tensor:
        h = self.writes[0](h, self.attention(self.norms[0](h)))
        return self.writes[1](h, self.down(F.gelu(self.up(self.norms[1](h)))))


class Study(nn.Module):
    def __init__(self, c: ModelConfig) -> None:
        super().__init__()
        self.token = nn.Embedding(c.vocab_size, c.d_model)
        self.position = nn.Embedding(c.seq_len, c.d_model)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.n_layer))
        self.norm = Norm(c.d_model)
        for name, weight in self.named_parameters():
            if "gate" in name or name.endswith("bias"):
                nn.init.zeros_(weight)
            elif weight.ndim == 2:
                last = "out" in name or "down" in name
                nn.init.normal_(weight, 0, 0.02 / math.sqrt(2 * c.n_layer) if last else 0.02)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.token(x) + self.position(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            h = block(h)
        logits = F.linear(self.norm(h), self.token.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), y.flatten())


class StudyBench(Bench):
    """The study's model and step in place of `rr`'s, on the same batches."""

    def __init__(self, case: Case, device: str, threads: int, form: tuple[str, bool]) -> None:
        super().__init__(case, device, threads)
        torch.manual_seed(0)
        self.precision, compiled = form
        model = Study(self.config).to(self.device)
        self.model, self.step = model, self.take
        if compiled:
            model.compile()
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=2e-4, betas=(0.9, 0.95), weight_decay=0.1
        )

    def take(self, x: Tensor, y: Tensor) -> Tensor:
        with autocast(self.device, self.precision):
            loss = self.model(x, y)
        self.optimizer.zero_grad(set_to_none=True)
        with float32_products(self.precision):
            loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach()


def serve(args) -> None:
    """One case: warm up, then take as many steps as each line of stdin says."""
    (name,), (rule,) = args.cases, args.rules
    path = "eager" if name in SCRIPTS else name
    case = Case(args.rung, rule, path, args.batch, args.batch)
    bench = (
        StudyBench(case, args.device, args.threads, SCRIPTS[name])
        if name in SCRIPTS
        else Bench(case, args.device, args.threads)
    )
    print(json.dumps(bench.warm() | {"tokens": args.batch * bench.config.seq_len}), flush=True)
    for line in sys.stdin:
        began = time.process_time()
        found = bench.run(int(line))
        share = int(line) / (int(line) + 1)  # `run` takes a step first that it does not time
        found["cpu_seconds"] = (time.process_time() - began) * share
        print(json.dumps(found | bench.peak()), flush=True)


def measured(args, rule: str) -> list[dict]:
    """A row for each case of this rule; the cases take turns."""
    children = {}
    for name in args.cases:
        words = ["--serve", "--rung", args.rung, "--rules", rule, "--cases", name]
        words += ["--threads", str(args.threads), "--batch", str(args.batch)]
        words += ["--device", args.device]
        children[name] = subprocess.Popen(
            [sys.executable, __file__, *words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"OMP_NUM_THREADS": str(args.threads)},
        )  # fmt: skip
        warm = json.loads(children[name].stdout.readline())  # before the next one starts
    names, taken = list(children), {name: [] for name in children}
    for repeat in range(args.repeats):
        turn = repeat % len(names)
        for name in names[turn:] + names[:turn]:
            print(args.steps, file=children[name].stdin, flush=True)
            taken[name].append(json.loads(children[name].stdout.readline()))
    for child in children.values():
        child.communicate()
    return [
        {
            "rung": args.rung, "rule": rule, "case": name, "batch": args.batch,
            "threads": args.threads, "steps": args.steps, "tokens": warm["tokens"],
            "loss": runs[-1]["loss"], "peak_bytes": runs[-1]["bytes"],
            **{f"{clock}_per_step": [run[clock] / args.steps for run in runs]
               for clock in ("seconds", "cpu_seconds")},
        }
        for name, runs in taken.items()
    ]  # fmt: skip


def table(rows: list[dict]) -> None:
    """Steps of each case in the time of one of `BASE`: median and range over paired repeats."""
    for rung, rule in dict.fromkeys((row["rung"], row["rule"]) for row in rows):
        mine = {r["case"]: r for r in rows if (r["rung"], r["rule"]) == (rung, rule)}
        for name, row in mine.items():
            said = []
            for clock in ("seconds_per_step", "cpu_seconds_per_step"):
                pairs = zip(mine[BASE][clock], row[clock], strict=True)
                ratios = [theirs / ours for theirs, ours in pairs]
                said.append(f"{median(ratios):5.2f} ({min(ratios):.2f}–{max(ratios):.2f})")
            speed = row["tokens"] / median(row["seconds_per_step"])
            print(
                f"{rung:5} {rule:9} {name:26} {speed:7.0f} tokens/s  clock {said[0]}  CPU {said[1]}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rung", default="mini")
    parser.add_argument("--rules", nargs="+", default=["review", "standard", "constant"])
    parser.add_argument("--cases", nargs="+", default=["script fp32", BASE, *BACKENDS])
    parser.add_argument("--batch", type=int, default=8, help="windows per step")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--steps", type=int, default=4, help="timed per turn")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        return serve(args)
    if BASE not in args.cases:
        parser.error(f"--cases must name {BASE!r}: every ratio is to it")
    kept = json.loads(args.out.read_text())["rows"] if args.out and args.out.exists() else []
    for rule in args.rules:
        rows = measured(args, rule)
        about = made_by(torch.device(args.device), args.threads)
        kept = [r for r in kept if (r["rung"], r["rule"]) != (args.rung, rule)]
        kept += [row | {"made_by": about} for row in rows]
        if args.out:
            io.write_json(args.out, {"rows": kept})
        table(rows)


if __name__ == "__main__":
    main()
