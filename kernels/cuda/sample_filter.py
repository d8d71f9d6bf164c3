"""`top_k` and `top_p` of a draw, each in three launches: ids counted in bins, those of the bins where the filter may
end gathered, and the last rank that stays found among these (`sample_settle`).

`top_k` counts ids by falling logit, `top_p` sums weights up by falling weight. Bins are there to gather few; whatever
they hold, up to the whole vocabulary, the rank found is the same. docs/sampling.md defines it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tandem.kernels.cuda.launch import Work, kernel
from tandem.kernels.cuda.order import begin
from tandem.kernels.cuda.sample_logits import chunked, sample_chunks, top_k_bin
from tandem.kernels.cuda.wishes import (
    ABOVE_K,
    ABOVE_P,
    BINS,
    LANE,
    LAST_K,
    MASS,
    MASS_K,
    NUM_K,
    NUM_P,
    SCALE,
    STATE,
    TOP_K,
    TOP_P,
    distance,
    ordered,
    rank,
    top_of,
    wished,
    wished_real,
)

UNIT_KEY = tl.constexpr((127 + 40) << 23)
"""The bits, in fp32, of what the largest logit weighs."""


@triton.jit
def active(wish, row, BY_LOGIT: tl.constexpr):
    """Whether a row wants this filter."""
    wanted = wished(wish, row, LANE) >= 0
    if BY_LOGIT:
        return wanted & (wished(wish, row, TOP_K) > 0)
    else:
        return wanted & (wished(wish, row, TOP_P) != 0)


@triton.jit
def k_bin(bins, row, k):
    """The bin in which `k` ids are full, BINS if there are not as many, and the ids before it."""
    bin = tl.arange(0, BINS)
    found = tl.load(bins + row * 2 * BINS + bin).to(tl.int64)
    full = tl.sum((tl.cumsum(found, 0) < k).to(tl.int32), 0)
    return full, tl.sum(tl.where(bin < full, found, 0), 0)


@triton.jit
def mass_wanted(state, wish, row):
    """(W, L): the mass that `top_k` left, and how much of it `top_p` wants."""
    mass = tl.load(state + row * STATE + MASS)
    if wished(wish, row, TOP_K) > 0:
        mass = tl.load(state + row * STATE + MASS_K)
    share = wished(wish, row, TOP_P).to(tl.uint64)
    product = share * mass.to(tl.uint64)
    wanted = tl.umulhi(share, mass.to(tl.uint64)) + (product != 0).to(tl.uint64)
    return mass, wanted.to(tl.int64)


@triton.jit
def _scale_of_bins(mass, wanted, WIDTH: tl.constexpr):
    """(key, shift): bin i of `top_p` holds weights whose bits are at least key + (i << shift).

    What is lighter than an equal share of the mass that is not wanted weighs less than that together: no filter ends
    there, and no bin is spent on it.
    """
    least = (mass - wanted).to(tl.float32) * (0.999 / WIDTH)
    key = tl.maximum(least, 1.0).to(tl.int32, bitcast=True)
    width = (1 - key + UNIT_KEY).to(tl.float32).to(tl.int32, bitcast=True)
    return key, tl.maximum((width >> 23) - 127 - 8, 0)


@triton.jit
def _p_bins(bins, row, wanted, key, shift):
    """(first, behind): the bins between which `wanted` mass is reached, by the least and the most that bins weigh."""
    bin = tl.arange(0, BINS)
    found = tl.load(bins + row * 2 * BINS + BINS + bin).to(tl.int64)
    low, high = key + (bin << shift), key + ((bin + 1) << shift)
    least = found * tl.minimum(low, UNIT_KEY).to(tl.float32, bitcast=True).to(tl.int64)
    most = found * tl.minimum(high, UNIT_KEY).to(tl.float32, bitcast=True).to(tl.int64)
    least = tl.sum(least, 0) - tl.cumsum(least, 0) + least
    most = tl.sum(most, 0) - tl.cumsum(most, 0) + most
    return tl.max(tl.where(least >= wanted, bin, 0), 0), tl.min(tl.where(most < wanted, bin, BINS), 0)


@kernel("<logit <wish <count !masses !state !bins")
@triton.jit
def sample_bins(logit, wish, count, masses, state, bins, WIDTH: tl.constexpr, CHUNK: tl.constexpr, PDL: tl.constexpr):
    """Makes the weights of ids that `top_k` leaves out 0; where `top_p` is wished, counts the others in bins of their
    weights; grid (rows, chunks)."""
    rows = begin(count, PDL)
    row = tl.program_id(0)
    if row < rows:
        by_logit, by_weight = active(wish, row, True), active(wish, row, False)
        if by_logit | by_weight:
            i = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
            inside, place = i < WIDTH, row.to(tl.int64) * WIDTH + i
            w = tl.load(masses + place, mask=inside, other=0.0)
            if by_logit:
                key = ordered(tl.load(logit + place, mask=inside, other=-float("inf")))
                w = tl.where(rank(key, i) >= tl.load(state + row * STATE + LAST_K), w, 0.0)
                tl.store(masses + place, w, mask=inside)
            if by_weight:
                mass, wanted = mass_wanted(state, wish, row)
                least, shift = _scale_of_bins(mass, wanted, WIDTH)
                above = w.to(tl.int32, bitcast=True) - least
                found = tl.histogram(tl.maximum(above, 0) >> shift, BINS, mask=above >= 0)
                place_of_bins = bins + row * 2 * BINS + BINS + tl.arange(0, BINS)
                tl.atomic_add(place_of_bins, found, mask=found > 0, sem="relaxed")


@kernel("<logit <top <masses <wish <bins <count !state >candidate")
@triton.jit
def sample_gather(
    logit,
    top,
    masses,
    wish,
    bins,
    count,
    state,
    candidate,
    BY_LOGIT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    WIDE: tl.constexpr,
    PDL: tl.constexpr,
):
    """candidate int64 [rows, WIDTH]: the ranks of ids in the bins where a filter may end, in any order; their number,
    and the mass before them; grid (rows, chunks)."""
    rows = begin(count, PDL)
    row = tl.program_id(0)
    if (row < rows) & active(wish, row, BY_LOGIT):
        i = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
        inside, place = i < WIDTH, row.to(tl.int64) * WIDTH + i
        w = tl.load(masses + place, mask=inside, other=0.0)
        if BY_LOGIT:
            value = tl.load(logit + place, mask=inside, other=-float("inf"))
            bin = top_k_bin(distance(value, top_of(top, row, CHUNKS, WIDE), wished_real(wish, row, SCALE)))
            last, _ = k_bin(bins, row, wished(wish, row, TOP_K))
            before, here = bin < last, (bin == last) & (w > 0)
            ranks = rank(ordered(value), i)
        else:
            mass, wanted = mass_wanted(state, wish, row)
            least, shift = _scale_of_bins(mass, wanted, WIDTH)
            first, behind = _p_bins(bins, row, wanted, least, shift)
            key = w.to(tl.int32, bitcast=True)
            bin = tl.maximum(key - least, 0) >> shift
            before, here = bin >= behind, (bin >= first) & (bin < behind) & (key >= least)
            ranks = rank(key, i)
        tl.atomic_add(
            state + row * STATE + (ABOVE_K if BY_LOGIT else ABOVE_P),
            tl.sum(tl.where(before, w, 0.0).to(tl.int64), 0),
            sem="relaxed",
        )
        marks = here.to(tl.int32)
        num = tl.sum(marks, 0)
        if num > 0:
            begin_at = tl.atomic_add(
                state + row * STATE + (NUM_K if BY_LOGIT else NUM_P), num.to(tl.int64), sem="relaxed"
            )
            to = row.to(tl.int64) * WIDTH + begin_at + tl.cumsum(marks, 0) - marks
            tl.store(candidate + to, ranks, mask=here)


def sample_bins_work(rows: int, width: int) -> Work:
    return chunked(rows, width)


def sample_gather_work(rows: int, width: int, by_logit: bool) -> Work:
    """Work of `sample_gather` for `top_k`, which goes by logits, or for `top_p`."""
    wide = triton.next_power_of_2(sample_chunks(width))
    return chunked(rows, width, BY_LOGIT=by_logit, CHUNKS=sample_chunks(width), WIDE=wide)
