"""The bf16 products of a training step alone, at the rates that this machine reaches in each.

    python tests/benchmarks/products.py --rung 60M --threads 2 \
        --out data/measured/08_make_it_fast/products.json

For the standard arm's layers and head: the forward product, the gradient of its input and that of
its weights, each alone on warm memory, the least of eight times. Their sum, over all layers, is the
time that a step cannot fall below unless the products become faster. Attention is not in it.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch
from torch.nn import functional as F

from rr import io
from rr.model import sizes
from rr.training.device import keep_freed, set_threads
from rrstudy.perf.benchmark import made_by


def least(product: Callable[[], object], times: int = 8) -> float:
    """Seconds of the fastest of so many calls, after two that are not timed."""
    took = []
    for _ in range(times + 2):
        began = time.perf_counter()
        product()
        took.append(time.perf_counter() - began)
    return min(took[2:])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rung", default="60M")
    parser.add_argument("--batch", type=int, default=8, help="windows per step")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    set_threads(args.threads)
    keep_freed()
    c = sizes.arm(args.rung, "standard")
    rows, d, tokens = [], c.d_model, args.batch * c.seq_len
    shapes = {"qkv": (d, 3 * d), "out": (d, d), "up": (d, c.d_ff), "down": (c.d_ff, d)}
    for name, (wide_in, wide_out) in (shapes | {"head": (d, c.padded_vocab)}).items():
        x, g = (torch.randn(tokens, wide).bfloat16() for wide in (wide_in, wide_out))
        w = torch.randn(wide_out, wide_in).bfloat16()
        seconds = {
            "forward": least(lambda x=x, w=w: F.linear(x, w)),
            "gradient of the input": least(lambda g=g, w=w: g @ w),
            "gradient of the weights": least(lambda g=g, x=x: g.t() @ x),
        }
        flops, times = 2 * tokens * wide_in * wide_out, 1 if name == "head" else c.n_layer
        rate = {product: flops / took / 1e12 for product, took in seconds.items()}
        rows.append({"name": name, "times": times, "seconds": seconds, "tflops": rate})
        print(f"{name:5} x {times:2}", {k: round(v, 2) for k, v in rate.items()}, "TFLOP/s")
    whole = sum(row["times"] * sum(row["seconds"].values()) for row in rows)
    print(f"products of a step: {whole:.2f} s")
    about = made_by(torch.device("cpu"), args.threads)
    told = {"rung": args.rung, "batch": args.batch, "seconds_of_a_step": whole, "rows": rows}
    io.write_json(args.out, {"made_by": about} | told)


if __name__ == "__main__":
    main()
