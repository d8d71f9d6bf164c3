"""Linear: x W^T + b, and its form that ends in silu(gate) * value: what `tandem.kernels.linear` and `swiglu` define.

Each element of y is one chain of tensor-core products over k from 0 to K, in that order, in fp32; or, where K is split,
the sum in order of its parts' chains. Tiles, orientation and row counts move no bit. `linear` is for a few rows, bound
by reading the weights once, and leaves parts to whoever reads y; `linear_chunk`, for prefill, adds them up itself.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tandem.kernels.cuda.launch import Work, kernel
from tandem.kernels.cuda.linear_tiles import MAX_FEW_ROWS, Matrix, chunk_tiles, few_tiles
from tandem.kernels.cuda.order import begin, begin_alone, prefetch_lines
from tandem.kernels.cuda.parts import BORDER, first_input


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
def _finished(acc, value, GATED: tl.constexpr, WEIGHT_LEFT: tl.constexpr):
    """A strip's sums as [BM, BN], with silu(gate) * value behind them where GATED."""
    if GATED:
        acc = acc / (1.0 + tl.exp(-acc)) * value
    if WEIGHT_LEFT:
        acc = tl.trans(acc)
    return acc


@triton.jit
def _chains(
    x,
    weight,
    bias,
    m,
    n0,
    rows,
    part,
    N: tl.constexpr,
    K: tl.constexpr,
    SPLIT: tl.constexpr,
    X_STRIDE: tl.constexpr,
    GATED: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    REST: tl.constexpr,
    BK: tl.constexpr,
    WEIGHT_LEFT: tl.constexpr,
):
    """The chains over the inputs of `part`, at rows m [BM] below `rows` and columns from n0 on: [BM, BN], [BM, REST].

    The first part's begin with the bias, the others' with zero. Without a REST the second strip is of no use.
    """
    tl.static_assert(SPLIT == 1 or (BORDER % BK == 0 and not GATED))
    WHOLE: tl.constexpr = N % (BN + REST) == 0
    STRIP: tl.constexpr = REST if REST > 0 else BN
    n, rest = tl.arange(0, BN), tl.arange(0, STRIP)
    inside, rest_inside = n0 + n < N, n0 + BN + rest < N
    row_inside = m < rows
    x_line = m * X_STRIDE
    start = weight + n0.to(tl.int64) * K
    value_start = start + tl.full((), N, tl.int64) * K
    of_first = inside & (n0 + n >= part * N)  # none of a later part
    acc = chain_start(bias, n0 + n, of_first, BM, BN, WEIGHT_LEFT)
    rest_of_first = rest_inside & (n0 + BN + rest >= part * N)
    rest_acc = chain_start(bias, n0 + BN + rest, rest_of_first, BM, STRIP, WEIGHT_LEFT)
    value, rest_value = acc, rest_acc
    end = K if SPLIT == 1 else tl.minimum(first_input(part + 1, K, SPLIT), K)
    for k0 in range(first_input(part, K, SPLIT), end, BK):
        k = k0 + tl.arange(0, BK)
        # Weights first: nothing of theirs waits for `rows` to arrive.
        tile = load_tile(start, n * K, k, inside, K, BK, WHOLE)
        if REST > 0:
            rest_tile = load_tile(start + BN * K, rest * K, k, rest_inside, K, BK, WHOLE)
        if GATED:
            value_tile = load_tile(value_start, n * K, k, inside, K, BK, WHOLE)
        if GATED and REST > 0:
            rest_value_tile = load_tile(value_start + BN * K, rest * K, k, rest_inside, K, BK, WHOLE)
        x_tile = load_tile(x, x_line, k, row_inside, K, BK, False)
        # Products over few columns first: the last ones in the loop decide how warps share all of them.
        if REST > 0:
            rest_acc = add_products(x_tile, rest_tile, rest_acc, WEIGHT_LEFT)
        if GATED and REST > 0:
            rest_value = add_products(x_tile, rest_value_tile, rest_value, WEIGHT_LEFT)
        acc = add_products(x_tile, tile, acc, WEIGHT_LEFT)
        if GATED:
            value = add_products(x_tile, value_tile, value, WEIGHT_LEFT)
    return _finished(acc, value, GATED, WEIGHT_LEFT), _finished(rest_acc, rest_value, GATED, WEIGHT_LEFT)


@triton.jit
def _store(tile, y, m, n0, rows, N: tl.constexpr, Y_STRIDE: tl.constexpr, BN: tl.constexpr):
    """tile [BM, BN] to rows m below `rows` of y, columns from n0 on, in y's own type."""
    n = n0 + tl.arange(0, BN)
    place = y + m[:, None].to(tl.int64) * Y_STRIDE + n[None, :]
    tl.store(place, tile.to(y.dtype.element_ty), mask=(m < rows)[:, None] & (n < N)[None, :])


@triton.jit
def _ask_ahead(
    weight, n0, first, N: tl.constexpr, K: tl.constexpr, GATED: tl.constexpr, BN: tl.constexpr, NBYTES: tl.constexpr
):
    """Asks L2 for NBYTES of each of BN weight rows from n0 on, inputs from `first` on."""
    LINES: tl.constexpr = NBYTES // 128
    STEP: tl.constexpr = 128 * 8 // weight.dtype.element_ty.primitive_bitwidth
    row = tl.minimum(n0 + tl.arange(0, BN), N - 1).to(tl.int64)
    prefetch_lines(weight + row * K + first, LINES, STEP)
    if GATED:
        prefetch_lines(weight + (row + N) * K + first, LINES, STEP)


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
    SPLIT: tl.constexpr,
    X_STRIDE: tl.constexpr,
    Y_STRIDE: tl.constexpr,
    GATED: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    REST: tl.constexpr,
    BK: tl.constexpr,
    WEIGHT_LEFT: tl.constexpr,
    PREFETCH: tl.constexpr,
    EARLY: tl.constexpr,
    PDL: tl.constexpr,
):
    """x [rows <= BM, K], weight [N, K], bias fp32 [N] or None, count int32 [1] -> y [rows, N] in y's own type.

    weight is bf16 or fp32, x of its type or fp32; rows of x and y begin every X_STRIDE and Y_STRIDE elements. GATED:
    weight is [2 N, K] and y = silu(x weight[:N]^T) * (x weight[N:]^T). A program takes BN columns and REST more, which
    is how columns that no power of two divides go round evenly. PREFETCH bytes of each weight row's part, a power of
    two of lines, are asked into L2 while the kernel before still runs. EARLY: the next kernel's blocks may start with
    these. With K in SPLIT parts y is [rows, SPLIT, N], to be summed in order. Grid (N / (BN + REST), SPLIT).
    """
    n0 = tl.program_id(0) * (BN + REST)
    part = 0 if SPLIT == 1 else tl.program_id(1)
    if PDL and PREFETCH > 0:
        _ask_ahead(weight, n0, first_input(part, K, SPLIT), N, K, GATED, BN, PREFETCH)
        if REST > 0:
            _ask_ahead(weight, n0 + BN, first_input(part, K, SPLIT), N, K, GATED, REST, PREFETCH)
    if EARLY:  # noqa: SIM108 - a branch of the compiler's
        rows = begin(count, PDL)
    else:
        rows = begin_alone(count, PDL)
    m = tl.arange(0, BM)
    tile, rest = _chains(
        x, weight, bias, m, n0, rows, part, N, K, SPLIT, X_STRIDE, GATED, BM, BN, REST, BK, WEIGHT_LEFT
    )
    _store(tile, y + part * N, m, n0, rows, N, Y_STRIDE, BN)
    if REST > 0:
        _store(rest, y + part * N, m, n0 + BN, rows, N, Y_STRIDE, REST)


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
    SPLIT: tl.constexpr,
    X_STRIDE: tl.constexpr,
    Y_STRIDE: tl.constexpr,
    GATED: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUP: tl.constexpr,
    PDL: tl.constexpr,
):
    """As `linear` over any number of rows, but y is [rows, N] also in SPLIT parts; grid (row tiles * column tiles,).

    Neighbouring programs share GROUP row tiles and walk the columns, so that L2 serves both operands.
    """
    rows = begin_alone(count, PDL)
    columns: tl.constexpr = (N + BN - 1) // BN
    row_tiles = tl.num_programs(0) // columns
    group = tl.program_id(0) // (GROUP * columns)
    height = tl.minimum(row_tiles - group * GROUP, GROUP)
    place = tl.program_id(0) % (GROUP * columns)
    m0 = (group * GROUP + place % height) * BM
    if m0 < rows:
        m, n0 = m0 + tl.arange(0, BM), place // height * BN
        if SPLIT == 1:
            tile, _ = _chains(x, weight, bias, m, n0, rows, 0, N, K, SPLIT, X_STRIDE, GATED, BM, BN, 0, BK, False)
        else:
            tile = tl.full((BM, BN), -0.0, tl.float32)  # what leaves every addend as it is, 0.0 and -0.0 among them
            for part in range(SPLIT):
                sums, _ = _chains(
                    x, weight, bias, m, n0, rows, part, N, K, SPLIT, X_STRIDE, GATED, BM, BN, 0, BK, False
                )
                tile += sums
        _store(tile, y, m, n0, rows, N, Y_STRIDE, BN)


def linear_work(
    n: int, k: int, rows: int, gated: bool, itemsize: int, x_stride: int, y_stride: int, parts: int = 1
) -> tuple[str, Work]:
    """Which of `linear` and `linear_chunk` takes `rows` rows (a bucket) to y [rows, n], and its work.

    `itemsize` is bytes per weight (2 is bf16, 4 is fp32); strides in elements. K is split in `parts`, and y of
    `linear` then [rows, parts, n].
    """
    matrix = Matrix(n, k, gated, itemsize, x_stride, y_stride, parts)
    if rows <= MAX_FEW_ROWS:
        return "linear", few_tiles(matrix, rows).work(matrix)
    return "linear_chunk", chunk_tiles(matrix, rows).work(matrix, rows)
