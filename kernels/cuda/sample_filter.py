"""`top_k` and `top_p` of a draw, each in three launches: ids counted in bins, those of the bins where the filter may
end gathered, and the last rank that stays found among these.

`top_k` counts ids by falling logit, `top_p` sums weights up by falling weight. Bins are there to gather few; whatever
they hold, up to the whole vocabulary, the rank found is the same. docs/sampling.md defines it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tandem.kernels.cuda.launch import Work, kernel, work
from tandem.kernels.cuda.order import begin
from tandem.kernels.cuda.sample_logits import chunked, sample_chunks, top_k_bin
from tandem.kernels.cuda.wishes import (
    ABOVE_K,
    ABOVE_P,
    BINS,
    ID_BITS,
    LANE,
    LAST_ID,
    LAST_K,
    LAST_P,
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
BELOW_ALL = tl.constexpr(-(1 << 62))
BLOCK, NUM_WARPS = 4096, 16
"""Candidates that one program looks at together, and its warps."""


@triton.jit
def _active(wish, row, BY_LOGIT: tl.constexpr):
    """Whether a row wants this filter."""
    wanted = wished(wish, row, LANE) >= 0
    if BY_LOGIT:
        return wanted & (wished(wish, row, TOP_K) > 0)
    else:
        return wanted & (wished(wish, row, TOP_P) != 0)


@triton.jit
def _k_bin(bins, row, k):
    """The bin in which `k` ids are full, BINS if there are not as many, and the ids before it."""
    bin = tl.arange(0, BINS)
    found = tl.load(bins + row * 2 * BINS + bin).to(tl.int64)
    full = tl.sum((tl.cumsum(found, 0) < k).to(tl.int32), 0)
    return full, tl.sum(tl.where(bin < full, found, 0), 0)


@triton.jit
def _mass_wanted(state, wish, row):
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
        by_logit, by_weight = _active(wish, row, True), _active(wish, row, False)
        if by_logit | by_weight:
            i = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
            inside, place = i < WIDTH, row.to(tl.int64) * WIDTH + i
            w = tl.load(masses + place, mask=inside, other=0.0)
            if by_logit:
                key = ordered(tl.load(logit + place, mask=inside, other=-float("inf")))
                w = tl.where(rank(key, i) >= tl.load(state + row * STATE + LAST_K), w, 0.0)
                tl.store(masses + place, w, mask=inside)
            if by_weight:
                mass, wanted = _mass_wanted(state, wish, row)
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
    if (row < rows) & _active(wish, row, BY_LOGIT):
        i = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
        inside, place = i < WIDTH, row.to(tl.int64) * WIDTH + i
        w = tl.load(masses + place, mask=inside, other=0.0)
        if BY_LOGIT:
            value = tl.load(logit + place, mask=inside, other=-float("inf"))
            bin = top_k_bin(distance(value, top_of(top, row, CHUNKS, WIDE), wished_real(wish, row, SCALE)))
            last, _ = _k_bin(bins, row, wished(wish, row, TOP_K))
            before, here = bin < last, (bin == last) & (w > 0)
            ranks = rank(ordered(value), i)
        else:
            mass, wanted = _mass_wanted(state, wish, row)
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


@kernel("<candidate <masses <wish <bins <count !state")
@triton.jit
def sample_settle(
    candidate,
    masses,
    wish,
    bins,
    count,
    state,
    BY_LOGIT: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """The last rank that a filter leaves, of `sample_gather`'s candidates; of `top_k` also the mass; grid (rows,)."""
    rows = begin(count, PDL)
    row = tl.program_id(0)
    if (row < rows) & _active(wish, row, BY_LOGIT):
        ranks, held = candidate + row.to(tl.int64) * WIDTH, state + row * STATE
        if BY_LOGIT:
            k = wished(wish, row, TOP_K)
            full, before = _k_bin(bins, row, k)
            num, last, mass = tl.load(held + NUM_K), _below_all(k), tl.load(held + MASS)
            if full < BINS:
                last = _last(ranks, num.to(tl.int32), k - before, True, BLOCK)
                mass = tl.load(held + ABOVE_K) + _mass(ranks, num.to(tl.int32), last, masses, row, WIDTH, BLOCK)
            tl.store(held + LAST_K, last)
            tl.store(held + MASS_K, mass)
        else:
            _, wanted = _mass_wanted(state, wish, row)
            num = tl.load(held + NUM_P).to(tl.int32)
            tl.store(held + LAST_P, _last(ranks, num, wanted - tl.load(held + ABOVE_P), False, BLOCK))


@triton.jit
def _below_all(like):
    """A rank below every other; `like` is any int64."""
    return like * 0 + BELOW_ALL


@triton.jit
def _last(ranks, num, wanted, BY_LOGIT: tl.constexpr, BLOCK: tl.constexpr):
    """The largest of `num` ranks from which on they count, or weigh, `wanted`, above 0, or more; all of them do.

    Each turn halves the span between one that suffices and one that does not, and narrows it to ranks that are there.
    """
    low, high = _ends(ranks, num, BLOCK)
    while low + 1 < high:
        middle = low + ((high - low) >> 1)
        reached, least, most = _beyond(ranks, num, middle, low, high, BY_LOGIT, BLOCK)
        enough = reached >= wanted
        low, high = tl.where(enough, least, low), tl.where(enough, high, most + 1)
    return low


@triton.jit
def _ends(ranks, num, BLOCK: tl.constexpr):
    """(the lowest of `num` ranks, 1 more than the highest)."""
    first = tl.load(ranks)
    low, high = tl.full((BLOCK,), 0, tl.int64) + first, tl.full((BLOCK,), 0, tl.int64) + first
    for start in range(0, num, BLOCK):
        i = start + tl.arange(0, BLOCK)
        here = tl.load(ranks + i, mask=i < num, other=first)
        low, high = tl.minimum(low, here), tl.maximum(high, here)
    return tl.min(low, 0), tl.max(high, 0) + 1


@triton.jit
def _beyond(ranks, num, middle, low, high, BY_LOGIT: tl.constexpr, BLOCK: tl.constexpr):
    """(count or mass of the ranks from `middle` on, the least of them, the largest below it)."""
    reached = tl.zeros((BLOCK,), tl.int64)
    least, most = tl.zeros((BLOCK,), tl.int64) + high, tl.zeros((BLOCK,), tl.int64) + low
    for start in range(0, num, BLOCK):
        i = start + tl.arange(0, BLOCK)
        here = tl.load(ranks + i, mask=i < num, other=0)
        inside, beyond = i < num, here >= middle
        if BY_LOGIT:
            each = tl.full((BLOCK,), 1, tl.int64)
        else:
            each = (here >> ID_BITS).to(tl.int32).to(tl.float32, bitcast=True).to(tl.int64)
        reached += tl.where(inside & beyond, each, 0)
        least = tl.where(inside & beyond, tl.minimum(least, here), least)
        most = tl.where(inside & (here < middle), tl.maximum(most, here), most)
    return tl.sum(reached, 0), tl.min(least, 0), tl.max(most, 0)


@triton.jit
def _mass(ranks, num, last, masses, row, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """What the ranks from `last` on weigh."""
    mass = tl.zeros((BLOCK,), tl.int64)
    for start in range(0, num, BLOCK):
        i = start + tl.arange(0, BLOCK)
        here = tl.load(ranks + i, mask=i < num, other=0)
        stays = (i < num) & (here >= last)
        id = (here & LAST_ID) ^ LAST_ID
        mass += tl.load(masses + row.to(tl.int64) * WIDTH + id, mask=stays, other=0.0).to(tl.int64)
    return tl.sum(mass, 0)


def sample_bins_work(rows: int, width: int) -> Work:
    return chunked(rows, width)


def sample_gather_work(rows: int, width: int, by_logit: bool) -> Work:
    """Work of `sample_gather` for `top_k`, which goes by logits, or for `top_p`."""
    wide = triton.next_power_of_2(sample_chunks(width))
    return chunked(rows, width, BY_LOGIT=by_logit, CHUNKS=sample_chunks(width), WIDE=wide)


def sample_settle_work(rows: int, width: int, by_logit: bool) -> Work:
    """Work of `sample_settle` for `top_k`, which goes by logits, or for `top_p`."""
    return work((rows,), num_warps=NUM_WARPS, BY_LOGIT=by_logit, WIDTH=width, BLOCK=BLOCK)
