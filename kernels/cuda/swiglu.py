"""SwiGLU: silu of a row's first half times its second half, the definition of `tandem.kernels.swiglu`."""

from __future__ import annotations

import triton
import triton.language as tl

from tandem.kernels.cuda.launch import Work, kernel, work
from tandem.kernels.cuda.order import begin

BLOCK = 1024


@kernel("<x <count >y")
@triton.jit
def swiglu(x, count, y, WIDTH: tl.constexpr, X_STRIDE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """x [rows, 2 WIDTH] fp32, count int32 [1] -> y [rows, WIDTH] in y's own type; grid (rows, blocks)."""
    rows = begin(count, PDL)
    row = tl.program_id(0)
    if row < rows:
        i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = i < WIDTH
        gate = tl.load(x + row * X_STRIDE + i, mask=inside, other=0.0)
        value = tl.load(x + row * X_STRIDE + WIDTH + i, mask=inside, other=0.0)
        result = gate / (1.0 + tl.exp(-gate)) * value
        tl.store(y + row * WIDTH + i, result.to(y.dtype.element_ty), mask=inside)


def swiglu_work(rows: int, width: int, x_stride: int) -> Work:
    return work((rows, -(-width // BLOCK)), WIDTH=width, X_STRIDE=x_stride, BLOCK=BLOCK)
