"""Around the head: pick rows, leave rows for a drafter, and the largest logit with its lead: `tandem.kernels.head`.

The largest logit is found in two launches: per chunk of the vocabulary, then per row over its chunks.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tandem.kernels.cuda.launch import Work, kernel, work
from tandem.kernels.cuda.order import begin
from tandem.kernels.cuda.parts import sum_of_parts

BLOCK = 1024
CHUNK = 2048
"""Logits of one program: 4 KB per warp, and a hundred programs for one row of a large vocabulary."""


@kernel("<x <row <count >y")
@triton.jit
def gather_rows(x, row, count, y, X_STRIDE: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """x [R, WIDTH] with rows every X_STRIDE elements, row int32 [count] -> y [count, WIDTH]; grid (rows, blocks)."""
    rows = begin(count, PDL)
    place = tl.program_id(0)
    if place < rows:
        i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = i < WIDTH
        value = tl.load(x + tl.load(row + place).to(tl.int64) * X_STRIDE + i, mask=inside, other=0.0)
        tl.store(y + place.to(tl.int64) * WIDTH + i, value.to(y.dtype.element_ty), mask=inside)


def gather_rows_work(rows: int, width: int, x_stride: int) -> Work:
    """Work of `gather_rows` that makes `rows` rows."""
    return work((rows, -(-width // BLOCK)), X_STRIDE=x_stride, WIDTH=width, BLOCK=BLOCK)


@kernel("<x <tap_out <count !ring")
@triton.jit
def scatter_rows(
    x,
    tap_out,
    count,
    ring,
    X_STRIDE: tl.constexpr,
    RING_STRIDE: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """x [count, WIDTH] with rows every X_STRIDE elements -> rows `tap_out` int32 [count] of ring, which begin every
    RING_STRIDE; -1 goes nowhere. Grid (rows, blocks)."""
    rows = begin(count, PDL)
    row = tl.program_id(0)
    if row < rows:
        target = tl.load(tap_out + row).to(tl.int64)
        if target >= 0:
            i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
            inside = i < WIDTH
            value = tl.load(x + row.to(tl.int64) * X_STRIDE + i, mask=inside, other=0.0)
            tl.store(ring + target * RING_STRIDE + i, value.to(ring.dtype.element_ty), mask=inside)


def scatter_rows_work(rows: int, width: int, x_stride: int, ring_stride: int) -> Work:
    """Work of `scatter_rows` for up to `rows` rows."""
    return work((rows, -(-width // BLOCK)), X_STRIDE=x_stride, RING_STRIDE=ring_stride, WIDTH=width, BLOCK=BLOCK)


@kernel("<x <delta <tap_out <count !ring")
@triton.jit
def scatter_sum(
    x,
    delta,
    tap_out,
    count,
    ring,
    X_STRIDE: tl.constexpr,
    DELTA_STRIDE: tl.constexpr,
    RING_STRIDE: tl.constexpr,
    PARTS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """As `scatter_rows` of x plus delta [count, PARTS, WIDTH], added as `add_rms_norm` does."""
    rows = begin(count, PDL)
    row = tl.program_id(0)
    if row < rows:
        target = tl.load(tap_out + row).to(tl.int64)
        if target >= 0:
            i, source = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK), row.to(tl.int64)
            inside = i < WIDTH
            value = tl.load(x + source * X_STRIDE + i, mask=inside, other=0.0)
            total = value + sum_of_parts(delta + source * DELTA_STRIDE + i, inside, PARTS, WIDTH)
            tl.store(ring + target * RING_STRIDE + i, total.to(ring.dtype.element_ty), mask=inside)


def scatter_sum_work(*, rows: int, width: int, x_stride: int, delta_stride: int, ring_stride: int, parts: int) -> Work:
    """Work of `scatter_sum` for up to `rows` rows, delta in `parts`."""
    return work(
        (rows, -(-width // BLOCK)), X_STRIDE=x_stride, DELTA_STRIDE=delta_stride, RING_STRIDE=ring_stride, PARTS=parts,
        WIDTH=width, BLOCK=BLOCK,
    )  # fmt: skip


@kernel("<logits <count >value >second >index")
@triton.jit
def argmax_partial(
    logits,
    count,
    value,
    second,
    index,
    STRIDE: tl.constexpr,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
    PDL: tl.constexpr,
):
    """logits fp32 [rows, WIDTH] -> value, second fp32 and index int32 [rows, chunks]; grid (rows, chunks).

    Of each chunk the largest logit, the second largest (equal ones count apart) and the lowest id of the largest.
    NaN counts as minus infinity, so that an index is always one of the vocabulary.
    """
    rows = begin(count, PDL)
    row = tl.program_id(0)
    if row < rows:
        i = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
        logit = tl.load(logits + row.to(tl.int64) * STRIDE + i, mask=i < WIDTH, other=-float("inf"))
        logit = tl.where(logit == logit, logit, -float("inf"))
        largest = tl.max(logit, 0)
        first = tl.min(tl.where(logit == largest, i, WIDTH), 0)
        place = row * tl.num_programs(1) + tl.program_id(1)
        tl.store(value + place, largest)
        tl.store(second + place, tl.max(tl.where(i == first, -float("inf"), logit), 0))
        tl.store(index + place, first)


@kernel("<value <second <index <count >argmax >gap")
@triton.jit
def argmax_gap(value, second, index, count, argmax, gap, CHUNKS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """What `argmax_partial` wrote -> argmax int32 [rows], the lowest id of the largest logit, and gap fp32 [rows],
    largest minus second largest; grid (rows,)."""
    rows = begin(count, PDL)
    row = tl.program_id(0)
    if row < rows:
        chunk = tl.arange(0, BLOCK)
        inside = chunk < CHUNKS
        place = row * CHUNKS + chunk
        candidate = tl.load(value + place, mask=inside, other=-float("inf"))
        runner_up = tl.load(second + place, mask=inside, other=-float("inf"))
        largest = tl.max(candidate, 0)
        # Chunks hold ascending ids: the first chunk with the largest value has its lowest id.
        first = tl.min(tl.where(candidate == largest, chunk, CHUNKS), 0)
        tl.store(argmax + row, tl.load(index + row * CHUNKS + first))
        tl.store(gap + row, largest - tl.max(tl.where(chunk == first, runner_up, candidate), 0))


def argmax_chunks(width: int) -> int:
    """Chunks of a row of `width` logits: what value, second and index of `argmax_partial` hold per row."""
    return -(-width // CHUNK)


def argmax_partial_work(rows: int, width: int, stride: int) -> Work:
    """Work of `argmax_partial` over logits [rows, width] that begin every `stride` elements."""
    return work((rows, argmax_chunks(width)), STRIDE=stride, WIDTH=width, CHUNK=CHUNK)


def argmax_gap_work(rows: int, width: int) -> Work:
    """Work of `argmax_gap` after `argmax_partial_work(rows, width, ...)`."""
    chunks = argmax_chunks(width)
    return work((rows,), num_warps=1, CHUNKS=chunks, BLOCK=triton.next_power_of_2(chunks))
