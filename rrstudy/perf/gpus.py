"""GPU specifications: peak rate, memory and bandwidth, from their data sheets."""

import re
from dataclasses import dataclass, replace

from rr.errors import RRError, nearest


@dataclass(frozen=True)
class GPUSpec:
    """What a data sheet says of a GPU.

    flops: dense tensor-core peak, FLOP/s, products in bf16 (fp16 where the GPU has no bf16) with
    float32 sums. memory: bytes. bandwidth: of that memory, bytes/s. bf16: whether its tensor cores
    have it. capability: CUDA's compute capability, by which kernels are chosen.
    """

    name: str
    flops: float
    memory: float
    bandwidth: float | None = None
    bf16: bool = True
    capability: tuple[int, int] = (8, 0)  # of CUDA; of an unknown GPU an assumption


# Peaks and memory from NVIDIA's data sheets and architecture white papers; sheets that print a peak
# "with sparsity" are halved. Bandwidths as NVIDIA gives them, not checked against the sheets again.
# Where a GPU is sold with two sizes of memory, the smaller. The first name found in a device's own
# name counts.
_SPECS = (
    GPUSpec("H100 PCIe", 756e12,    80e9, 2.0e12, capability=(9, 0)),
    GPUSpec("H100 NVL",  835e12,    94e9, 3.9e12, capability=(9, 0)),
    GPUSpec("H100",      989e12,    80e9, 3.35e12, capability=(9, 0)),
    GPUSpec("H200 NVL",  835e12,   141e9, 4.8e12, capability=(9, 0)),
    GPUSpec("H200",      989e12,   141e9, 4.8e12, capability=(9, 0)),
    GPUSpec("GH200",     989e12,    96e9, 4.0e12, capability=(9, 0)),
    GPUSpec("B200",     2250e12,   180e9, 8.0e12, capability=(10, 0)),
    GPUSpec("A100",      312e12,    40e9, 1.555e12, capability=(8, 0)),
    GPUSpec("A10G",       70e12,    24e9, 600e9, capability=(8, 6)),
    GPUSpec("A10",       125e12,    24e9, 600e9, capability=(8, 6)),
    GPUSpec("L40S",      362e12,    48e9, 864e9, capability=(8, 9)),
    GPUSpec("L4",        121e12,    24e9, 300e9, capability=(8, 9)),
    GPUSpec("T4",         65e12,    16e9, 300e9, bf16=False, capability=(7, 5)),
    GPUSpec("V100-SXM2", 125e12,    16e9, 900e9, bf16=False, capability=(7, 0)),
    GPUSpec("RTX 4090",  165.2e12,  24e9, 1008e9, capability=(8, 9)),
    GPUSpec("RTX 3090",   71e12,    24e9, 936e9, capability=(8, 6)),
)  # fmt: skip
GPUS = {spec.name: spec for spec in _SPECS}


def find(device: str) -> GPUSpec | None:
    """The specification of a device by its own name; None where it is not in `GPUS`.

    >>> find("NVIDIA H100 80GB HBM3").name
    'H100'
    """
    if re.search(r"\b(MIG|Laptop)\b", device):  # a part of a GPU, or less than its namesake
        return None
    return next(
        (spec for name, spec in GPUS.items() if re.search(rf"\b{name}\b(?! (?:D|Ti)\b)", device)),
        None,
    )


def gpu(name: str, tflops: float | None = None, memory_gb: float | None = None) -> GPUSpec:
    """The specification of that name, or of any name where both figures are given.

    tflops: TFLOP/s; memory_gb: 10⁹ bytes. A figure that is given replaces the table's: an A100 of
    80 GB. RRError for an unknown name.

    >>> gpu("a100", memory_gb=80).memory
    80000000000.0
    """
    for what, value in (("tflops", tflops), ("memory", memory_gb)):
        if value is not None and not 0 < value < float("inf"):
            raise RRError(f"{what} must be a finite number > 0, got {value}")
    known = next((spec for spec in GPUS.values() if spec.name.lower() == name.lower()), None)
    if known is None:
        if tflops is None or memory_gb is None:
            raise RRError(
                f"unknown GPU {name!r}: {nearest(name, GPUS)}; "
                "for any other give --tflops and --memory"
            )
        return GPUSpec(name, 1e12 * tflops, 1e9 * memory_gb)
    flops = known.flops if tflops is None else 1e12 * tflops
    memory = known.memory if memory_gb is None else 1e9 * memory_gb
    return replace(known, flops=flops, memory=memory)
