"""Where the time of a training step goes on this machine's CPU, part by part, at each rung.

    python tests/benchmarks/parts.py --out data/measured/08_make_it_fast/parts.json

Each part of a block is run alone, forward and backward, on random states of the rung's width, one
micro-batch at a time: attention, MLP, the rule's read and write at both sites; then embedding, head
with loss, and clipping with AdamW. A step of the rung's recipe is so many of each. Where the whole
model fits (--whole), a micro-batch through all of it, forward and backward, is timed in the same
rounds: the sum of its parts over that is how far the parts can be believed.

Rounds go through all parts in turn; every time is kept. The machine's own roofs are timed too: one
large product in float32 and in bf16, and a copy.
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch

from rr import io
from rr.model import Model, initialise, sizes
from rr.training import device, planning
from rr.training.backend import parse_backend
from rr.training.step import OptimizerStep
from rrstudy.perf.benchmark import made_by
from rrstudy.perf.benchmark_case import VOCAB

CPU = torch.device("cpu")
SYSTEM = "eager"  # keeping freed memory is the process's choice: for all or none


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def pieces(rung: str, rule: str, path: str, micro: int) -> dict[str, tuple[Callable, int, str]]:
    """Name -> (what to time, how often it is needed, by "micro-batch" or by "update")."""
    config, recipe = sizes.arm(rung, rule, VOCAB), planning.recipe(rung, batch=micro)
    blocks, shape = config.n_layer, (micro, config.seq_len, config.d_model)
    model, way = initialise(Model(replace(config, n_layer=1)), 0).train(), parse_backend(path)
    step = OptimizerStep(model, recipe, way, CPU, micro)
    layer, source = model.layers[0], torch.Generator().manual_seed(0)
    ids = torch.randint(VOCAB, (micro, config.seq_len), generator=source)
    x, h, u = (torch.randn(shape, generator=source).requires_grad_() for _ in range(3))
    grad = torch.randn(shape, generator=source)
    inside = list(layer.parameters())
    outside = [p for p in model.parameters() if all(p is not q for q in inside)]

    def through(run: Callable, *leaves: torch.Tensor) -> Callable:
        def work() -> None:
            for tensor in (*leaves, *model.parameters()):
                tensor.grad = None
            with way.forward(CPU, step.precision):
                out = run()
            out.backward(None if out.ndim == 0 else grad.to(out.dtype))

        return work

    def rule_at(rule) -> Callable:
        def run() -> torch.Tensor:
            seen, state = rule.read(h)
            # The norm's backward pass runs, too: its gradient is a part of the sublayer's input.
            return rule.write(state, u) + 0 * seen

        return run

    def head() -> torch.Tensor:
        read = model.final_rule.read(h)[0]
        return model.loss(read, ids)

    def embedding() -> torch.Tensor:
        return model.token(ids) + model.position(torch.arange(config.seq_len))

    def update(params: list) -> Callable:
        chosen = torch.optim.AdamW(params, lr=0.0, fused=way.optimizer == "fused" or None)
        grads = [torch.randn(p.shape, generator=source) for p in params]

        def work() -> None:
            for p, g in zip(params, grads, strict=True):
                p.grad = g
            torch.nn.utils.clip_grad_norm_(params, 1.0)
            chosen.step()

        return work

    return {
        "attention": (through(lambda: layer.attn(x)[0], x), blocks, "micro-batch"),
        "mlp": (through(lambda: layer.mlp(x), x), blocks, "micro-batch"),
        "rule, attention": (through(rule_at(layer.attn_rule), h, u), blocks, "micro-batch"),
        "rule, mlp": (through(rule_at(layer.mlp_rule), h, u), blocks, "micro-batch"),
        "embedding": (through(embedding), 1, "micro-batch"),
        "head": (through(head, h), 1, "micro-batch"),
        "optimizer, block": (update(inside), blocks, "update"),
        "optimizer, rest": (update(outside), 1, "update"),
    }


def whole(rung: str, rule: str, path: str, micro: int) -> Callable[[], object]:
    """A micro-batch through all of the model, forward and backward."""
    config, recipe = sizes.arm(rung, rule, VOCAB), planning.recipe(rung, batch=micro)
    model = initialise(Model(config), 0).train()
    step = OptimizerStep(model, recipe, parse_backend(path), CPU, micro)
    ids = torch.randint(VOCAB, (micro, config.seq_len), generator=torch.Generator().manual_seed(0))
    return lambda: step.gradients(ids, ids)


def roofs(repeats: int) -> dict[str, list[float]]:
    """FLOP/s of a product of two matrices of 4096², in two formats; bytes/s of a copy of 1 GiB."""
    n, found = 4096, {}
    for name, dtype in (("float32", torch.float32), ("bf16", torch.bfloat16)):
        a = torch.randn(n, n).to(dtype)
        b = torch.randn(n, n).to(dtype)
        a @ b
        found[f"flops_{name}"] = [2 * n**3 / seconds(lambda: a @ b) for _ in range(repeats)]  # noqa: B023
    full = torch.ones(2**28)
    copy = torch.empty_like(full).copy_(full)
    moved = 2 * full.nbytes
    found["bytes_per_second"] = [moved / seconds(lambda: copy.copy_(full)) for _ in range(repeats)]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rungs", nargs="+", default=["60M", "150M", "320M", "590M", "1B"])
    parser.add_argument("--rules", nargs="+", default=["review"])
    parser.add_argument("--paths", nargs="+", default=["reference", SYSTEM])
    parser.add_argument("--whole", nargs="*", default=["60M", "150M"], help="rungs timed whole too")
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    threads = device.prepare_device(CPU, args.threads)
    found = {
        "made_by": made_by(CPU, threads),
        "micro_batch": args.micro_batch,
        "repeats": args.repeats,
        "roofs": roofs(args.repeats),
        "rows": [],
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    for rung in args.rungs:
        for rule in args.rules:
            for path in args.paths:
                parts = pieces(rung, rule, path, args.micro_batch)
                if rung in args.whole:
                    every = whole(rung, rule, path, args.micro_batch)
                    parts["whole"] = (every, 1, "micro-batch")
                for work, _, _ in parts.values():
                    work()  # once for nothing: kernels are chosen, memory is asked for
                times: dict[str, list[float]] = {name: [] for name in parts}
                for _ in range(args.repeats):
                    for name, (work, _, _) in parts.items():
                        times[name].append(seconds(work))
                found["rows"] += [
                    {
                        "rung": rung,
                        "rule": rule,
                        "path": path,
                        "part": name,
                        "times": count,
                        "a": of,
                        "seconds": times[name],
                    }
                    for name, (_, count, of) in parts.items()
                ]
                io.write_json(args.out, found)
                print(rung, rule, path, {n: round(min(t), 4) for n, t in times.items()}, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
