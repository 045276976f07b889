"""The gated write as Triton kernels: a matrix product whose epilogue is sigmoid, multiply and add.

Imported by `ops.gated_write.triton_gated_write` on its first call, because Triton is an optional
package. The algebra is that of `ops.gated_write`: with s(x) = 1 / sqrt(mean(x²) + eps),

    r = σ(s_u · (W_h a + W_u u) + b),  a = (s_h / s_u) h,  h' = h + r ⊙ u

so the product runs on raw rows and its accumulator, still in registers, becomes h'. Forward reads h
once more than the minimum, to convert a to the products' dtype. Backward uses the vendor's library
for its products, between two kernels of one pass each.

Shapes: N tokens in a row, d channels. Tiles are BM tokens by BN channels, BK deep.
"""

import os
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..config import RRError

jit: Any = triton.jit  # as typed, a launch would take no plain numbers for constexpr
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@jit
def _rows(h, u, a, scale_h, scale_u, d, eps, TWO: tl.constexpr, BLOCK: tl.constexpr):
    """One token: both row scales, and a = h · s_h / s_u in the dtype of the products.

    With one input, TWO is false, h is that input and a is h unchanged.
    """
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    x = tl.load(h + row * d + at, mask=at < d, other=0.0).to(tl.float32)
    s = 1 / tl.sqrt(tl.sum(x * x, 0) / d + eps)
    tl.store(scale_h + row, s)
    if TWO:
        y = tl.load(u + row * d + at, mask=at < d, other=0.0).to(tl.float32)
        s_u = 1 / tl.sqrt(tl.sum(y * y, 0) / d + eps)
        tl.store(scale_u + row, s_u)
        x = x * (s / s_u)
    tl.store(a + row * d + at, x.to(a.dtype.element_ty), mask=at < d)


@jit
def _product(
    acc,
    x,
    weight,
    rm,
    rn,
    n,
    d,
    stride,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
    BK: tl.constexpr,
):
    """acc + x Wᵀ for the rows rm of x (n, d) and the rows rn of W (d, stride)."""
    for start in range(0, d, BK):
        rk = start + tl.arange(0, BK)
        left = tl.load(
            x + rm[:, None] * d + rk[None, :], mask=(rm[:, None] < n) & (rk[None, :] < d), other=0.0
        )
        right = tl.load(
            weight + rn[None, :] * stride + rk[:, None],
            mask=(rn[None, :] < d) & (rk[:, None] < d),
            other=0.0,
        )
        if WIDE:  # the interpreter takes a bfloat16 operand of a dot for integers
            left, right = left.to(tl.float32), right.to(tl.float32)
        acc = tl.dot(left, right, acc, input_precision=PRECISION)
    return acc


@jit
def _write(
    h,
    u,
    a,
    b,
    weight,
    bias,
    scale,
    out,
    gate,
    n,
    d,
    TWO: tl.constexpr,
    CONVEX: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUP: tl.constexpr,
):
    """One tile of h' and r. Programs take GROUP tiles of tokens together, to share tiles of W."""
    wide = tl.cdiv(d, BN)
    group, within = tl.program_id(0) // (GROUP * wide), tl.program_id(0) % (GROUP * wide)
    tall = min(tl.cdiv(n, BM) - group * GROUP, GROUP)
    rm = ((group * GROUP + within % tall) * BM + tl.arange(0, BM)).to(tl.int64)
    rn = (within // tall) * BN + tl.arange(0, BN)
    stride = 2 * d if TWO else d
    acc = tl.zeros((BM, BN), tl.float32)
    acc = _product(acc, a, weight, rm, rn, n, d, stride, WIDE, PRECISION, BK)
    if TWO:
        acc = _product(acc, b, weight + d, rm, rn, n, d, stride, WIDE, PRECISION, BK)
    s = tl.load(scale + rm, mask=rm < n, other=0.0)
    z = acc * s[:, None] + tl.load(bias + rn, mask=rn < d, other=0.0).to(tl.float32)[None, :]
    r = tl.sigmoid(z)
    at, inside = rm[:, None] * d + rn[None, :], (rm[:, None] < n) & (rn[None, :] < d)
    state = tl.load(h + at, mask=inside, other=0.0).to(tl.float32)
    v = tl.load(u + at, mask=inside, other=0.0).to(tl.float32)
    if CONVEX:
        v -= state
    tl.store(out + at, (state + r * v).to(out.dtype.element_ty), mask=inside)
    tl.store(gate + at, r.to(gate.dtype.element_ty), mask=inside)


@jit
def _grad_gate(
    grad,
    h,
    u,
    gate,
    scale,
    grad_z,
    sums,
    n,
    d,
    CONVEX: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    """One tile of s · ∂z, and its column sums of ∂z, of which the bias's gradient is the sum."""
    rm = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    at, inside = rm[:, None] * d + rn[None, :], (rm[:, None] < n) & (rn[None, :] < d)
    r = tl.load(gate + at, mask=inside, other=0.0).to(tl.float32)
    v = tl.load(u + at, mask=inside, other=0.0).to(tl.float32)
    if CONVEX:
        v -= tl.load(h + at, mask=inside, other=0.0).to(tl.float32)
    gz = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32) * r * (1 - r) * v
    s = tl.load(scale + rm, mask=rm < n, other=0.0)
    tl.store(grad_z + at, (gz * s[:, None]).to(grad_z.dtype.element_ty), mask=inside)
    tl.store(sums + tl.program_id(0) * d + rn, tl.sum(gz, 0), mask=rn < d)


@jit
def _grad_inputs(
    grad,
    h,
    u,
    gate,
    seen,
    scale_h,
    scale_u,
    grad_h,
    grad_u,
    d,
    CONVEX: tl.constexpr,
    STATE: tl.constexpr,
    UPDATE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One token: gradients of h and u, through the write and through the norms.

    seen: s · ∂z W, (N, d) for each input, where s is the scale of the last of them.
    """
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < d
    at += row * d
    r = tl.load(gate + at, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
    gh = g * (1 - r) if CONVEX else g
    gu = g * r
    width = 2 * d if STATE and UPDATE else d
    columns = row * width + tl.arange(0, BLOCK)
    if STATE:
        x = tl.load(h + at, mask=inside, other=0.0).to(tl.float32)
        y = tl.load(seen + columns, mask=inside, other=0.0).to(tl.float32)
        s = tl.load(scale_h + row)
        if UPDATE:
            y *= s / tl.load(scale_u + row)
        gh += y - x * (tl.sum(x * y, 0) * s * s / d)
        columns += d
    if UPDATE:
        x = tl.load(u + at, mask=inside, other=0.0).to(tl.float32)
        y = tl.load(seen + columns, mask=inside, other=0.0).to(tl.float32)
        s = tl.load(scale_u + row)
        gu += y - x * (tl.sum(x * y, 0) * s * s / d)
    tl.store(grad_h + at, gh.to(grad_h.dtype.element_ty), mask=inside)
    tl.store(grad_u + at, gu.to(grad_u.dtype.element_ty), mask=inside)


def _tiles(dtype: torch.dtype) -> dict:
    if INTERPRETED:  # small, so that odd shapes have several tiles and ragged edges
        return dict(BM=16, BN=16, BK=16, GROUP=2, num_warps=4, num_stages=1)
    deep = 32 if dtype == torch.float32 else 64
    return dict(BM=128, BN=128, BK=deep, GROUP=8, num_warps=8, num_stages=3)


def _scaled(
    h: Tensor, u: Tensor, state: bool, update: bool, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """(a, scale_h, scale_u) of `_rows`; an unread input's scale is empty."""
    n, d = h.shape
    x = h if state else u
    a = torch.empty(n, d, dtype=dtype, device=h.device)
    first = torch.empty(n, dtype=torch.float32, device=h.device)
    both = state and update
    second = first.new_empty(n if both else 0)
    _rows[(n,)](x, u, a, first, second, d, eps, TWO=both, BLOCK=triton.next_power_of_2(d))
    return (a, first, second) if state else (a, second, first)


@torch.library.custom_op("rr::gated_write", mutates_args=())
def _forward(
    h: Tensor,
    u: Tensor,
    weight: Tensor,
    bias: Tensor,
    state: bool,
    update: bool,
    convex: bool,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    n, d = h.shape
    a, scale_h, scale_u = _scaled(h, u, state, update, eps, dtype)
    out, gate = torch.empty_like(h), torch.empty(n, d, dtype=dtype, device=h.device)
    tiles, precise = _tiles(dtype), torch.get_float32_matmul_precision() == "highest"
    grid = (triton.cdiv(n, tiles["BM"]) * triton.cdiv(d, tiles["BN"]),)
    _write[grid](
        h,
        u,
        a,
        u.to(dtype),
        weight.to(dtype),
        bias,
        scale_u if update else scale_h,
        out,
        gate,
        n,
        d,
        TWO=state and update,
        CONVEX=convex,
        WIDE=INTERPRETED,
        PRECISION="ieee" if precise else "tf32",
        **tiles,
    )
    return out, gate, scale_h, scale_u


@_forward.register_fake
def _(h, u, weight, bias, state, update, convex, eps, dtype):
    n = h.shape[0]
    scale = h.new_empty(n, dtype=torch.float32)
    none = scale.new_empty(0)
    return (
        torch.empty_like(h),
        torch.empty_like(h, dtype=dtype),
        scale if state else none,
        torch.empty_like(scale) if update else none.clone(),
    )


@torch.library.custom_op("rr::gated_write_backward", mutates_args=())
def _backward(
    grad: Tensor,
    h: Tensor,
    u: Tensor,
    weight: Tensor,
    gate: Tensor,
    scale_h: Tensor,
    scale_u: Tensor,
    state: bool,
    update: bool,
    convex: bool,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    (n, d), dtype = h.shape, gate.dtype
    tm, tn = (16, 16) if INTERPRETED else (64, 128)
    grad_z = torch.empty(n, d, dtype=dtype, device=h.device)  # times the scale of the last input
    sums = torch.empty(-(-n // tm), d, dtype=torch.float32, device=h.device)
    _grad_gate[(triton.cdiv(n, tm), triton.cdiv(d, tn))](
        grad,
        h,
        u,
        gate,
        scale_u if update else scale_h,
        grad_z,
        sums,
        n,
        d,
        CONVEX=convex,
        BM=tm,
        BN=tn,
    )
    seen = grad_z @ weight.to(dtype)
    parts = [_scaled(h, u, state, update, eps, dtype)[0]]
    if state and update:
        parts.append(u.to(dtype))
    grad_weight = torch.cat([grad_z.t() @ part for part in parts], 1).to(weight.dtype)
    grad_h, grad_u = torch.empty_like(h), torch.empty_like(u)
    _grad_inputs[(n,)](
        grad,
        h,
        u,
        gate,
        seen,
        scale_h,
        scale_u,
        grad_h,
        grad_u,
        d,
        CONVEX=convex,
        STATE=state,
        UPDATE=update,
        BLOCK=triton.next_power_of_2(d),
    )
    return grad_h, grad_u, grad_weight, sums.sum(0)


@_backward.register_fake
def _(grad, h, u, weight, gate, scale_h, scale_u, state, update, convex, eps):
    return (
        torch.empty_like(h),
        torch.empty_like(u),
        torch.empty_like(weight),
        scale_h.new_empty(h.shape[1]),
    )


def _setup(ctx, inputs, output):
    h, u, weight, bias, *ctx.rest, _ = inputs
    ctx.bias_dtype = bias.dtype
    ctx.save_for_backward(h, u, weight, *output[1:])


def _autograd(ctx, grad, *_):
    saved = ctx.saved_tensors
    *grads, bias = _backward(grad.contiguous(), *saved, *ctx.rest)
    return *grads, bias.to(ctx.bias_dtype), *[None] * 5


_forward.register_autograd(_autograd, setup_context=_setup)


def gated_write(
    h: Tensor,
    u: Tensor,
    weight: Tensor,
    bias: Tensor,
    reads: tuple[str, ...],
    convex: bool,
    eps: float,
    dtype: torch.dtype,
) -> Tensor:
    """`ops.gated_write` on rows: h and u (N, d), weight (d, d·inputs), bias (d,) -> (N, d).

    dtype: of the products; float32, bfloat16 or float16. Raises RRError for other dtypes, and for
    tensors on the CPU unless TRITON_INTERPRET=1 was set before this module was imported.
    """
    if dtype not in DTYPES:
        raise RRError(f"gate=triton needs float32, bfloat16 or float16, got {dtype}")
    if not (h.is_cuda or INTERPRETED):
        raise RRError("gate=triton needs a GPU: use gate=fast or gate=reference on the CPU")
    state, update = "state" in reads, "update" in reads
    return _forward(
        h.contiguous(), u.contiguous(), weight.contiguous(), bias, state, update, convex, eps, dtype
    )[0]
