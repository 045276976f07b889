"""Peak rates, memory and bandwidth of GPUs, from their data sheets."""

import re

# Dense tensor-core peaks, FLOP/s, products in bf16 (fp16 on T4 and V100) with float32 sums, from
# NVIDIA's data sheets and architecture white papers: H100, H200, B200, A100, A10, L4, L40S, T4,
# V100, GeForce RTX 3090 and 4090. Sheets that print a figure "with sparsity" are halved.
# The first name found in the device's name counts.
PEAKS = {
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "H200 NVL": 835e12,
    "H200": 989e12,
    "GH200": 989e12,
    "B200": 2250e12,
    "A100": 312e12,
    "A10G": 70e12,
    "A10": 125e12,
    "L40S": 362e12,
    "L4": 121e12,
    "T4": 65e12,
    "V100-SXM2": 125e12,
    "RTX 4090": 165.2e12,
    "RTX 3090": 71e12,
}


# Memory of the same cards, 10⁹ bytes, from the same sheets; of the smaller where there are two.
MEMORY = {
    "H100 PCIe": 80,
    "H100 NVL": 94,
    "H100": 80,
    "H200 NVL": 141,
    "H200": 141,
    "GH200": 96,
    "B200": 180,
    "A100": 40,
    "A10G": 24,
    "A10": 24,
    "L40S": 48,
    "L4": 24,
    "T4": 16,
    "V100-SXM2": 16,
    "RTX 4090": 24,
    "RTX 3090": 24,
}
# Bandwidth of that memory, bytes/s, as NVIDIA gives it, not held against the sheets again; of the
# smaller card where there are two.
BANDWIDTH = {
    "H100 PCIe": 2.0e12,
    "H100 NVL": 3.9e12,
    "H100": 3.35e12,
    "H200 NVL": 4.8e12,
    "H200": 4.8e12,
    "GH200": 4.0e12,
    "B200": 8.0e12,
    "A100": 1.555e12,
    "A10G": 600e9,
    "A10": 600e9,
    "L40S": 864e9,
    "L4": 300e9,
    "T4": 300e9,
    "V100-SXM2": 900e9,
    "RTX 4090": 1008e9,
    "RTX 3090": 936e9,
}
HALF_BY_FP16 = ("T4", "V100-SXM2")  # no bf16 in their tensor cores


def known_as(device: str) -> str | None:
    """The name in `PEAKS` of a device by its own; None where it is not known."""
    if re.search(r"\b(MIG|Laptop)\b", device):  # a part of a card, or less than its namesake
        return None
    return next((name for name in PEAKS if re.search(rf"\b{name}\b(?! D\b)", device)), None)


def peak_flops(device: str) -> float | None:
    """bf16 peak of a device by its name, FLOP/s; None where it is not known."""
    return PEAKS.get(known_as(device))
