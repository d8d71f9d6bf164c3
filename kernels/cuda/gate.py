"""What a gate lets through, on CUDA: the definitions of `tandem.kernels.gate` and of `gated_rms_norm`."""

from __future__ import annotations

import triton
import triton.language as tl

from tandem.kernels.cuda.kv import power_of_two
from tandem.kernels.cuda.launch import Work, kernel, work
from tandem.kernels.cuda.order import begin
from tandem.kernels.cuda.pairs import summed

BLOCK = 1024
THREAD_ELEMENTS = 4
"""Elements of a head that a thread of `gated_rms_norm` holds, up to MAX_WARPS."""
MAX_WARPS = 16


@kernel("<x <gate <count >y")
@triton.jit
def sigmoid_gate(
    x, gate, count, y,
    WIDTH: tl.constexpr, X_STRIDE: tl.constexpr, GATE_STRIDE: tl.constexpr, Y_STRIDE: tl.constexpr,
    BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """x [rows, WIDTH] and gate alike, of any float type, count int32 [1] -> y in its own type; grid (rows, blocks).

    Rows begin every *_STRIDE elements.
    """
    rows = begin(count, PDL)
    row = tl.program_id(0).to(tl.int64)
    if row < rows:
        i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = i < WIDTH
        value = tl.load(x + row * X_STRIDE + i, mask=inside, other=0.0).to(tl.float32)
        let = tl.load(gate + row * GATE_STRIDE + i, mask=inside, other=0.0).to(tl.float32)
        result = value / (1.0 + tl.exp(-let))
        tl.store(y + row * Y_STRIDE + i, result.to(y.dtype.element_ty), mask=inside)


def sigmoid_gate_work(rows: int, width: int, x_stride: int, gate_stride: int, y_stride: int) -> Work:
    return work(
        (rows, -(-width // BLOCK)), WIDTH=width, X_STRIDE=x_stride, GATE_STRIDE=gate_stride, Y_STRIDE=y_stride,
        BLOCK=BLOCK,
    )  # fmt: skip


@kernel("<x <gate <weight <count >y")
@triton.jit
def gated_rms_norm(
    x, gate, weight, count, y,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, EPS: tl.constexpr, ROUNDED: tl.constexpr, X_STRIDE: tl.constexpr,
    GATE_STRIDE: tl.constexpr, Y_STRIDE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """x [rows, heads, WIDTH] and gate alike, of any float type, weight fp32 [WIDTH], count int32 [1] -> y in its own
    type; each head by itself, rounded to bfloat16 before its gate where ROUNDED. Grid (rows, heads)."""
    i = tl.arange(0, BLOCK)[None, :]
    inside = i < WIDTH
    gain = tl.load(weight + i, mask=inside, other=0.0)
    rows = begin(count, PDL)
    row = tl.program_id(0).to(tl.int64)
    if row < rows:
        at = tl.program_id(1) * WIDTH + i
        value = tl.load(x + row * X_STRIDE + at, mask=inside, other=0.0).to(tl.float32)
        z = tl.load(gate + row * GATE_STRIDE + at, mask=inside, other=0.0).to(tl.float32)
        normed = value * tl.rsqrt(summed(value * value) / WIDTH + EPS) * gain
        if ROUNDED:
            normed = normed.to(tl.bfloat16).to(tl.float32)
        result = normed * (z / (1.0 + tl.exp(-z)))
        tl.store(y + row * Y_STRIDE + at, result.to(y.dtype.element_ty), mask=inside)


def gated_rms_norm_work(
    *, rows: int, heads: int, width: int, eps: float, rounded: bool, x_stride: int, gate_stride: int, y_stride: int
) -> Work:
    """Over x [rows, heads, width]; strides count elements from row to row."""
    block = power_of_two(width)
    return work(
        (rows, heads), num_warps=min(max(block // (32 * THREAD_ELEMENTS), 1), MAX_WARPS), WIDTH=width, BLOCK=block,
        EPS=eps, ROUNDED=rounded, X_STRIDE=x_stride, GATE_STRIDE=gate_stride, Y_STRIDE=y_stride,
    )  # fmt: skip
