"""Attention with and without padded heads on this CPU, side by side: forward and backward.

    python tests/benchmarks/padding.py

A ratio above one: the padded form is faster.
"""

import statistics
import time

import torch
from torch.nn import functional as F

from rr.ops.attention import padded_attention

REPEATS = 9
FORMS = (F.scaled_dot_product_attention, padded_attention)


def seconds(form, q, k, v) -> float:
    began = time.perf_counter()
    form(q, k, v, is_causal=True).sum().backward()
    return time.perf_counter() - began


def main() -> None:
    torch.set_num_threads(1)
    print("head size, dtype, time without padding / time with it")
    for size in (61, 76, 92, 93, 100):
        for dtype in (torch.float32, torch.bfloat16):
            qkv = [torch.randn(4, 8, 256, size, dtype=dtype, requires_grad=True) for _ in range(3)]
            times = [[seconds(form, *qkv) for form in FORMS] for _ in range(REPEATS)]
            plain, padded = map(statistics.median, zip(*times, strict=True))
            print(f"{size:4d} {str(dtype):15} {plain / padded:.2f}")


if __name__ == "__main__":
    main()
