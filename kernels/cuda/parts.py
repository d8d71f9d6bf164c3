"""How a linear's inputs are split in parts, the same for every pass and kernel, and the sum of what parts leave behind.

Each part is a chain of its own and parts are summed in their order, so a split moves bits: it is of the weight's shape
alone, never of rows or tiles. It is for weights of so few columns that a program for each leaves multiprocessors idle.
"""

from __future__ import annotations

from itertools import pairwise

import triton
import triton.language as tl

from tandem.kernels.cuda.launch import Work, kernel, work
from tandem.kernels.cuda.order import begin

BORDER = tl.constexpr(256)
"""Parts begin at multiples of it, so that no tile of inputs lies across."""
BLOCK = 1024


def splits(n: int, k: int) -> int:
    """How many parts K is split in for a weight [n, k] that is no gate and turns no heads: by its shape alone.

    Beside many rows, columns of so narrow a program would read the inputs as often as the weights.
    """
    if not (4096 <= n < 8192 and k >= 4096):
        return 1
    return 4 if k >= 2 * n else 2


@triton.jit
def first_input(part, K: tl.constexpr, SPLIT: tl.constexpr):
    """Where a part of K begins: as even as multiples of BORDER allow. The one behind the last is not below K."""
    return part * ((K + BORDER - 1) // BORDER) // SPLIT * BORDER


def shortest_part(k: int, parts: int) -> int:
    """Inputs of the shortest part."""
    blocks = -(-k // BORDER.value)
    ends = [min(part * blocks // parts * BORDER.value, k) for part in range(parts + 1)]
    return min(end - first for first, end in pairwise(ends))


@triton.jit
def sum_of_parts(place, inside, PARTS: tl.constexpr, WIDTH: tl.constexpr):
    """fp32 values at `place` where `inside` holds, plus those WIDTH elements behind, and so on: PARTS in all."""
    total = tl.load(place, mask=inside, other=0.0)
    for part in tl.static_range(1, PARTS):
        total += tl.load(place + part * WIDTH, mask=inside, other=0.0)
    return total


@kernel("<x <count >y")
@triton.jit
def add_parts(
    x,
    count,
    y,
    PARTS: tl.constexpr,
    WIDTH: tl.constexpr,
    X_STRIDE: tl.constexpr,
    Y_STRIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """x fp32 [rows, PARTS, WIDTH], count int32 [1] -> y [rows, WIDTH] in y's own type; grid (rows, blocks).

    Rows begin every X_STRIDE and Y_STRIDE elements.
    """
    rows = begin(count, PDL)
    row = tl.program_id(0)
    if row < rows:
        i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = i < WIDTH
        total = sum_of_parts(x + row.to(tl.int64) * X_STRIDE + i, inside, PARTS, WIDTH)
        tl.store(y + row.to(tl.int64) * Y_STRIDE + i, total.to(y.dtype.element_ty), mask=inside)


def add_parts_work(rows: int, width: int, parts: int, x_stride: int, y_stride: int) -> Work:
    """Work of `add_parts` over x [rows, parts, width]; strides in elements from row to row."""
    return work((rows, -(-width // BLOCK)), PARTS=parts, WIDTH=width, X_STRIDE=x_stride, Y_STRIDE=y_stride, BLOCK=BLOCK)
