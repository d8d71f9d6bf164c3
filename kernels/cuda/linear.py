"""Linear: x W^T + b, and its form that ends in silu(gate) * value: what `tandem.kernels.linear` and `swiglu` define.

Each element of y is one chain of tensor-core products over k from 0 to K, in that order, in fp32: tiles, orientation
and row counts move no bit. `linear` is for a few rows, bound by reading the weights once; `linear_chunk` for prefill.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tandem.kernels.cuda.launch import Work, kernel
from tandem.kernels.cuda.linear_tiles import MAX_FEW_ROWS, Matrix, chunk_tiles, few_tiles
from tandem.kernels.cuda.order import begin, begin_alone


@triton.jit
def prefetch_lines(rows, LINES: tl.constexpr, STEP: tl.constexpr):
    """Asks L2 for LINES lines, STEP elements each, from each of the addresses `rows` on."""
    line = rows[:, None] + tl.arange(0, LINES)[None, :] * STEP
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [line], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def load_tile(start, line, k, inside, K: tl.constexpr, BK: tl.constexpr, INSIDE: tl.constexpr):
    """Elements start + line[i] + k[j], or zero where `inside` (which holds for all unless INSIDE) or k < K does not."""
    address = start + line[:, None] + k[None, :]
    if INSIDE and K % BK == 0:
        tile = tl.load(address)
    elif INSIDE:
        tile = tl.load(address, mask=k[None, :] < K, other=0.0)
    elif K % BK == 0:
        tile = tl.load(address, mask=inside[:, None], other=0.0)
    else:
        tile = tl.load(address, mask=inside[:, None] & (k[None, :] < K), other=0.0)
    return tile


@triton.jit
def add_products(x, weight, acc, WEIGHT_LEFT: tl.constexpr):
    """acc plus the products of x [BM, BK] and weight [BN, BK], as [BN, BM] or [BM, BN].

    Rows in fp32, which others read too, are rounded here as their maker would have done.
    """
    x = x.to(weight.dtype)
    if WEIGHT_LEFT:
        acc = tl.dot(weight, tl.trans(x), acc, input_precision="ieee")
    else:
        acc = tl.dot(x, tl.trans(weight), acc, input_precision="ieee")
    return acc


@triton.jit
def chain_start(bias, at, inside, BM: tl.constexpr, BN: tl.constexpr, WEIGHT_LEFT: tl.constexpr):
    """What every element's chain of products begins with, [BN, BM] or [BM, BN]: its bias, at `at` [BN], or zero.

    A bias that comes behind the chain is a beginning to the compiler in those tiles that take all of K at once, and in
    others it is not.
    """
    if bias is None:
        first = tl.full((BN, BM) if WEIGHT_LEFT else (BM, BN), 0.0, tl.float32)
    elif WEIGHT_LEFT:
        first = tl.broadcast_to(tl.load(bias + at, mask=inside, other=0.0)[:, None], (BN, BM))
    else:
        first = tl.broadcast_to(tl.load(bias + at, mask=inside, other=0.0)[None, :], (BM, BN))
    return first


@triton.jit
def _product(
    x,
    weight,
    bias,
    y,
    m,
    n0,
    rows,
    N: tl.constexpr,
    K: tl.constexpr,
    X_STRIDE: tl.constexpr,
    Y_STRIDE: tl.constexpr,
    GATED: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    WEIGHT_LEFT: tl.constexpr,
):
    """The tile of y at rows m [BM] below `rows` and columns from n0 on."""
    WHOLE: tl.constexpr = N % BN == 0
    n = tl.arange(0, BN)
    inside = n0 + n < N
    row_inside = m < rows
    x_line = m * X_STRIDE
    start = weight + n0.to(tl.int64) * K
    value_start = start + tl.full((), N, tl.int64) * K
    acc = chain_start(bias, n0 + n, inside, BM, BN, WEIGHT_LEFT)
    value = acc
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        # Weights first: nothing of theirs waits for `rows` to arrive.
        tile = load_tile(start, n * K, k, inside, K, BK, WHOLE)
        if GATED:
            value_tile = load_tile(value_start, n * K, k, inside, K, BK, WHOLE)
        x_tile = load_tile(x, x_line, k, row_inside, K, BK, False)
        acc = add_products(x_tile, tile, acc, WEIGHT_LEFT)
        if GATED:
            value = add_products(x_tile, value_tile, value, WEIGHT_LEFT)
    if GATED:
        acc = acc / (1.0 + tl.exp(-acc)) * value
    if WEIGHT_LEFT:
        acc = tl.trans(acc)
    place = y + m[:, None].to(tl.int64) * Y_STRIDE + (n0 + n)[None, :]
    tl.store(place, acc.to(y.dtype.element_ty), mask=row_inside[:, None] & inside[None, :])


@kernel("<x <weight <bias <count >y")
@triton.jit
def linear(
    x,
    weight,
    bias,
    count,
    y,
    N: tl.constexpr,
    K: tl.constexpr,
    X_STRIDE: tl.constexpr,
    Y_STRIDE: tl.constexpr,
    GATED: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    WEIGHT_LEFT: tl.constexpr,
    PREFETCH: tl.constexpr,
    EARLY: tl.constexpr,
    PDL: tl.constexpr,
):
    """x [rows <= BM, K], weight [N, K], bias fp32 [N] or None, count int32 [1] -> y [rows, N] in y's own type.

    weight is bf16 or fp32, x of its type or fp32; rows of x and y begin every X_STRIDE and Y_STRIDE elements. GATED:
    weight is [2 N, K] and y = silu(x weight[:N]^T) * (x weight[N:]^T). PREFETCH bytes of each weight row, a power of
    two of lines, are asked into L2 while the kernel before still runs. EARLY: the next kernel's blocks may start with
    these. Grid (N / BN,).
    """
    n0 = tl.program_id(0) * BN
    if PDL and PREFETCH > 0:
        LINES: tl.constexpr = PREFETCH // 128
        STEP: tl.constexpr = 128 * 8 // weight.dtype.element_ty.primitive_bitwidth
        row = tl.minimum(n0 + tl.arange(0, BN), N - 1).to(tl.int64)
        prefetch_lines(weight + row * K, LINES, STEP)
        if GATED:
            prefetch_lines(weight + (row + N) * K, LINES, STEP)
    if EARLY:
        begin(PDL)
    else:
        begin_alone(PDL)
    _product(
        x,
        weight,
        bias,
        y,
        tl.arange(0, BM),
        n0,
        tl.load(count),
        N,
        K,
        X_STRIDE,
        Y_STRIDE,
        GATED,
        BM,
        BN,
        BK,
        WEIGHT_LEFT,
    )


@kernel("<x <weight <bias <count >y")
@triton.jit
def linear_chunk(
    x,
    weight,
    bias,
    count,
    y,
    N: tl.constexpr,
    K: tl.constexpr,
    X_STRIDE: tl.constexpr,
    Y_STRIDE: tl.constexpr,
    GATED: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUP: tl.constexpr,
    PDL: tl.constexpr,
):
    """As `linear` over any number of rows; grid (row tiles * column tiles,).

    Neighbouring programs share GROUP row tiles and walk the columns, so that L2 serves both operands.
    """
    begin_alone(PDL)
    rows = tl.load(count)
    columns: tl.constexpr = (N + BN - 1) // BN
    row_tiles = tl.num_programs(0) // columns
    group = tl.program_id(0) // (GROUP * columns)
    height = tl.minimum(row_tiles - group * GROUP, GROUP)
    place = tl.program_id(0) % (GROUP * columns)
    m0 = (group * GROUP + place % height) * BM
    if m0 < rows:
        _product(
            x,
            weight,
            bias,
            y,
            m0 + tl.arange(0, BM),
            place // height * BN,
            rows,
            N,
            K,
            X_STRIDE,
            Y_STRIDE,
            GATED,
            BM,
            BN,
            BK,
            False,
        )


def linear_work(
    n: int, k: int, rows: int, gated: bool, itemsize: int, x_stride: int, y_stride: int
) -> tuple[str, Work]:
    """Which of `linear` and `linear_chunk` takes `rows` rows (a bucket) to y [rows, n], and its work.

    `itemsize` is bytes per weight (2 is bf16, 4 is fp32); strides in elements.
    """
    matrix = Matrix(n, k, gated, itemsize, x_stride, y_stride)
    if rows <= MAX_FEW_ROWS:
        return "linear", few_tiles(matrix, rows).work(matrix)
    return "linear_chunk", chunk_tiles(matrix, rows).work(matrix, rows)
