"""Root mean square norm, alone and after the residual add: the definitions of `tandem.kernels.norm`.

One program sums a whole row, in a shape that the width alone decides. Knows no model.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tandem.kernels.cuda.launch import Work, kernel, work
from tandem.kernels.cuda.order import begin
from tandem.kernels.cuda.parts import sum_of_parts

MAX_WARPS = 16
THREAD_ELEMENTS = 8
"""Elements of a row that a thread holds, until MAX_WARPS are reached: few enough for all to be in flight at once."""


@triton.jit
def _scale(x, WIDTH: tl.constexpr, EPS: tl.constexpr):
    """x fp32 [BLOCK], zeros from WIDTH on -> 1 / sqrt(mean(x^2) + EPS)."""
    return tl.rsqrt(tl.sum(x * x, 0) / WIDTH + EPS)


@kernel("<x <weight <row <count >y")
@triton.jit
def rms_norm(
    x,
    weight,
    row,
    count,
    y,
    X_STRIDE: tl.constexpr,
    PARTS: tl.constexpr,
    GROUPS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    EPS: tl.constexpr,
    Y_STRIDE: tl.constexpr,
    PDL: tl.constexpr,
):
    """x [rows, PARTS, GROUPS, WIDTH], weight fp32 [WIDTH], count int32 [1] -> y [rows, GROUPS, WIDTH], each group by
    itself, parts summed.

    `row` int32 [rows] names the row of x behind each row of y; None means each its own. A row of x begins every
    X_STRIDE elements, one of y every Y_STRIDE; x of any float type, y rounded to its own. Grid (rows, GROUPS).
    """
    i = tl.arange(0, BLOCK)
    inside = i < WIDTH
    gain = tl.load(weight + i, mask=inside, other=0.0)
    rows = begin(count, PDL)
    place = tl.program_id(0).to(tl.int64)
    if place < rows:
        source = place
        if row is not None:
            source = tl.load(row + place).to(tl.int64)
        start = tl.program_id(1) * WIDTH
        value = sum_of_parts(x + source * X_STRIDE + start + i, inside, PARTS, GROUPS * WIDTH).to(tl.float32)
        normed = value * _scale(value, WIDTH, EPS) * gain
        tl.store(y + place * Y_STRIDE + start + i, normed.to(y.dtype.element_ty), mask=inside)


@kernel("<x <delta <weight <row <count >sum >y")
@triton.jit
def add_rms_norm(
    x,
    delta,
    weight,
    row,
    count,
    sum,
    y,
    X_STRIDE: tl.constexpr,
    DELTA_STRIDE: tl.constexpr,
    SUM_STRIDE: tl.constexpr,
    Y_STRIDE: tl.constexpr,
    PARTS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    EPS: tl.constexpr,
    PDL: tl.constexpr,
):
    """x and delta fp32 [rows, WIDTH], weight fp32 [WIDTH], count int32 [1] -> sum fp32 and y, both [count, WIDTH].

    `row` int32 [count] names the row of x and delta behind each row of the result; None means each its own. A `sum`
    of None is not written. Rows begin every *_STRIDE elements; y is rounded to its own type. A delta in PARTS is
    [rows, PARTS, WIDTH]. Grid (rows,).
    """
    i = tl.arange(0, BLOCK)
    inside = i < WIDTH
    gain = tl.load(weight + i, mask=inside, other=0.0)
    rows = begin(count, PDL)
    place = tl.program_id(0).to(tl.int64)
    if place < rows:
        source = place
        if row is not None:
            source = tl.load(row + place).to(tl.int64)
        value = tl.load(x + source * X_STRIDE + i, mask=inside, other=0.0)
        total = value + sum_of_parts(delta + source * DELTA_STRIDE + i, inside, PARTS, WIDTH)
        if sum is not None:
            tl.store(sum + place * SUM_STRIDE + i, total, mask=inside)
        normed = total * _scale(total, WIDTH, EPS) * gain
        tl.store(y + place * Y_STRIDE + i, normed.to(y.dtype.element_ty), mask=inside)


@kernel("<x <delta <weight <row <count <tap_out <num_rows >y !ring")
@triton.jit
def add_rms_norm_taps(
    x,
    delta,
    weight,
    row,
    count,
    tap_out,
    num_rows,
    y,
    ring,
    X_STRIDE: tl.constexpr,
    DELTA_STRIDE: tl.constexpr,
    Y_STRIDE: tl.constexpr,
    RING_STRIDE: tl.constexpr,
    PARTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    EPS: tl.constexpr,
    PDL: tl.constexpr,
):
    """`add_rms_norm` twice in one launch: of the rows that `row` names to y, and of each own row to the ring.

    The row goes to row `tap_out` int32 [num_rows] of ring fp32 [.., RING_STRIDE], nowhere at -1, which costs nothing.
    Grid (OUTPUTS + rows,): the programs behind the first OUTPUTS are those of the ring.
    """
    i = tl.arange(0, BLOCK)
    inside = i < WIDTH
    gain = tl.load(weight + i, mask=inside, other=0.0)
    outputs = begin(count, PDL)
    place = tl.program_id(0).to(tl.int64)
    tapped = place >= OUTPUTS
    source, target = place, place
    live = place < outputs
    if tapped:
        source = place - OUTPUTS
        live = source < tl.load(num_rows)
        if live:
            target = tl.load(tap_out + source).to(tl.int64)
            live = target >= 0
    elif live:
        source = tl.load(row + place).to(tl.int64)
    if live:
        value = tl.load(x + source * X_STRIDE + i, mask=inside, other=0.0)
        total = value + sum_of_parts(delta + source * DELTA_STRIDE + i, inside, PARTS, WIDTH)
        normed = total * _scale(total, WIDTH, EPS) * gain
        if tapped:
            tl.store(ring + target * RING_STRIDE + i, normed.to(ring.dtype.element_ty), mask=inside)
        else:
            tl.store(y + target * Y_STRIDE + i, normed.to(y.dtype.element_ty), mask=inside)


def _shape(width: int) -> tuple[int, int]:
    """BLOCK and num_warps, which order the sum: of the width alone, so that no row count moves a bit."""
    block = triton.next_power_of_2(width)
    return block, min(max(block // (32 * THREAD_ELEMENTS), 1), MAX_WARPS)


def rms_norm_work(rows: int, groups: int, width: int, eps: float, x_stride: int, y_stride: int, parts: int = 1) -> Work:
    """Work of `rms_norm` over x [rows, parts, groups, width]; strides in elements from row to row."""
    block, num_warps = _shape(width)
    return work(
        (rows, groups),
        num_warps=num_warps,
        X_STRIDE=x_stride,
        PARTS=parts,
        GROUPS=groups,
        WIDTH=width,
        BLOCK=block,
        EPS=eps,
        Y_STRIDE=y_stride,
    )


def add_rms_norm_work(
    rows: int,
    width: int,
    eps: float,
    x_stride: int,
    delta_stride: int,
    sum_stride: int,
    y_stride: int,
    parts: int = 1,
) -> Work:
    """Work of `add_rms_norm` that makes `rows` rows; strides in elements, `sum_stride` of any value without a sum.

    delta is in `parts`.
    """
    block, num_warps = _shape(width)
    return work(
        (rows,),
        num_warps=num_warps,
        X_STRIDE=x_stride,
        DELTA_STRIDE=delta_stride,
        SUM_STRIDE=sum_stride,
        PARTS=parts,
        Y_STRIDE=y_stride,
        WIDTH=width,
        BLOCK=block,
        EPS=eps,
    )


def add_rms_norm_taps_work(
    *,
    rows: int,
    outputs: int,
    width: int,
    eps: float,
    x_stride: int,
    delta_stride: int,
    y_stride: int,
    ring_stride: int,
    parts: int = 1,
) -> Work:
    """Work of `add_rms_norm_taps` for `rows` rows, of which `outputs` are wanted in y; else as `add_rms_norm_work`."""
    block, num_warps = _shape(width)
    return work(
        (outputs + rows,), num_warps=num_warps, X_STRIDE=x_stride, DELTA_STRIDE=delta_stride, Y_STRIDE=y_stride,
        RING_STRIDE=ring_stride, PARTS=parts, OUTPUTS=outputs, WIDTH=width, BLOCK=block, EPS=eps,
    )  # fmt: skip
