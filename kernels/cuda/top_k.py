"""The likeliest tokens of rows of logits, and the log of all exponentials' sum, as `tandem.kernels.top_k` defines them.

In two launches: per chunk of the vocabulary, then per row over its chunks. Knows nothing of what is done with them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tandem.kernels.cuda.launch import Work, kernel, work
from tandem.kernels.cuda.order import begin
from tandem.kernels.cuda.wishes import ordered

CHUNK = 2048
"""Logits of one program: a hundred programs for one row of a large vocabulary."""
LAST_ID = tl.constexpr(0x7FFFFFFF)
TAKEN = tl.constexpr(-(1 << 63))
"""Below the place of any logit."""


@triton.jit
def _place(logit, ids):
    """int64 that orders ids by falling `logit`, of equal ones the lower id first: what is first is largest. NaN counts
    as minus infinity, so that an id is always one of the vocabulary; a zero is a zero."""
    logit = tl.where(logit == logit, logit, -float("inf"))
    logit = tl.where(logit == 0, 0.0, logit)
    return (ordered(logit).to(tl.int64) << 32) | (ids ^ LAST_ID).to(tl.int64)


@triton.jit
def _finite(peak):
    """`peak`, or 0 where it is infinite, so that differences from it are no NaN."""
    return tl.where(tl.abs(peak) == float("inf"), 0.0, peak)


@kernel("<logits <count >first >peak >sum")
@triton.jit
def top_k_partial(
    logits,
    count,
    first,
    peak,
    sum,
    STRIDE: tl.constexpr,
    WIDTH: tl.constexpr,
    TOP: tl.constexpr,
    CHUNK: tl.constexpr,
    PDL: tl.constexpr,
):
    """logits fp32 [rows, WIDTH] -> of each chunk the TOP first places int64 [rows, chunks, TOP], its largest logit and
    the sum of exponentials of what all are above that, fp32 [rows, chunks]; grid (rows, chunks).

    Rows begin every STRIDE elements. Of a NaN the sum is NaN.
    """
    rows = begin(count, PDL)
    row = tl.program_id(0)
    if row < rows:
        i = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
        logit = tl.load(logits + row.to(tl.int64) * STRIDE + i, mask=i < WIDTH, other=-float("inf"))
        largest = tl.max(tl.where(logit == logit, logit, -float("inf")), 0)
        chunk = row * tl.num_programs(1) + tl.program_id(1)
        tl.store(peak + chunk, largest)
        tl.store(sum + chunk, tl.sum(tl.exp(logit - _finite(largest)), 0))
        place = _place(logit, i)
        for k in range(TOP):
            best = tl.max(place, 0)
            tl.store(first + chunk * TOP + k, best)
            place = tl.where(place == best, TAKEN, place)


@kernel("<logits <first <peak <sum <count >token >logit >lse")
@triton.jit
def top_k(
    logits,
    first,
    peak,
    sum,
    count,
    token,
    logit,
    lse,
    STRIDE: tl.constexpr,
    TOP: tl.constexpr,
    CHUNKS: tl.constexpr,
    WIDE: tl.constexpr,
    PLACES: tl.constexpr,
    PDL: tl.constexpr,
):
    """What `top_k_partial` wrote -> token int32 and logit fp32 [rows, TOP], lse fp32 [rows]; grid (rows,)."""
    rows = begin(count, PDL)
    row = tl.program_id(0)
    if row < rows:
        chunk = row * CHUNKS + tl.arange(0, WIDE)
        inside = tl.arange(0, WIDE) < CHUNKS
        peaks = tl.load(peak + chunk, mask=inside, other=-float("inf"))
        largest = _finite(tl.max(peaks, 0))
        sums = tl.load(sum + chunk, mask=inside, other=0.0) * tl.exp(peaks - largest)
        tl.store(lse + row, largest + tl.log(tl.sum(sums, 0)))
        i = tl.arange(0, PLACES)
        place = tl.load(first + row * CHUNKS * TOP + i, mask=i < CHUNKS * TOP, other=TAKEN)
        for k in range(TOP):
            best = tl.max(place, 0)
            found = (best & LAST_ID).to(tl.int32) ^ LAST_ID
            tl.store(token + row * TOP + k, found)
            tl.store(logit + row * TOP + k, tl.load(logits + row.to(tl.int64) * STRIDE + found))
            place = tl.where(place == best, TAKEN, place)


def top_k_chunks(width: int) -> int:
    """Chunks of a row of `width` logits: what peak and sum of `top_k_partial` hold per row, and `first` TOP times."""
    return -(-width // CHUNK)


def top_k_partial_work(rows: int, width: int, stride: int, top: int) -> Work:
    """Work of `top_k_partial` over logits [rows, width] that begin every `stride` elements, width at least `top`."""
    return work((rows, top_k_chunks(width)), STRIDE=stride, WIDTH=width, TOP=top, CHUNK=CHUNK)


def top_k_work(rows: int, width: int, stride: int, top: int) -> Work:
    """Work of `top_k` after `top_k_partial_work` of the same."""
    chunks = top_k_chunks(width)
    sizes = {"WIDE": triton.next_power_of_2(chunks), "PLACES": triton.next_power_of_2(chunks * top)}
    return work((rows,), STRIDE=stride, TOP=top, CHUNKS=chunks, **sizes)
