"""The end of a filter of a draw: the last rank that stays, among the candidates that `sample_filter` gathered.

Few candidates, as a text's next token mostly has, are sorted; among many the last is sought by halving.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tandem.kernels.cuda.launch import Work, kernel, work
from tandem.kernels.cuda.order import begin
from tandem.kernels.cuda.sample_filter import active, k_bin, mass_wanted
from tandem.kernels.cuda.wishes import (
    ABOVE_K,
    ABOVE_P,
    BINS,
    ID_BITS,
    LAST_ID,
    LAST_K,
    LAST_P,
    MASS,
    MASS_K,
    NUM_K,
    NUM_P,
    STATE,
    TOP_K,
    wished,
)

BELOW_ALL = tl.constexpr(-(1 << 62))
FEW = 512
"""Candidates that are sorted; of more, as in texts where anything may come, the last is sought by halving."""
BLOCK, NUM_WARPS = 2048, 8
"""Candidates that one program looks at together, and its warps."""


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
    FEW: tl.constexpr,
    PDL: tl.constexpr,
):
    """The last rank that a filter leaves, of `sample_gather`'s candidates; of `top_k` also the mass; grid (rows,)."""
    rows = begin(count, PDL)
    row = tl.program_id(0)
    if (row < rows) & active(wish, row, BY_LOGIT):
        ranks, held = candidate + row.to(tl.int64) * WIDTH, state + row * STATE
        if BY_LOGIT:
            k = wished(wish, row, TOP_K)
            full, before = k_bin(bins, row, k)
            num, last, mass = tl.load(held + NUM_K), _below_all(k), tl.load(held + MASS)
            if full < BINS:
                last = _last(ranks, num.to(tl.int32), k - before, True, BLOCK, FEW)
                mass = tl.load(held + ABOVE_K) + _mass(ranks, num.to(tl.int32), last, masses, row, WIDTH, BLOCK)
            tl.store(held + LAST_K, last)
            tl.store(held + MASS_K, mass)
        else:
            _, wanted = mass_wanted(state, wish, row)
            num = tl.load(held + NUM_P).to(tl.int32)
            tl.store(held + LAST_P, _last(ranks, num, wanted - tl.load(held + ABOVE_P), False, BLOCK, FEW))


@triton.jit
def _below_all(like):
    """A rank below every other; `like` is any int64."""
    return like * 0 + BELOW_ALL


@triton.jit
def _counted(ranks, BY_LOGIT: tl.constexpr):
    """What each of these ranks adds to what a filter wants, int64: 1, or its weight."""
    if BY_LOGIT:  # noqa: SIM108 - a branch of the compiler's
        each = ranks * 0 + 1
    else:
        each = (ranks >> ID_BITS).to(tl.int32).to(tl.float32, bitcast=True).to(tl.int64)
    return each


@triton.jit
def _last(ranks, num, wanted, BY_LOGIT: tl.constexpr, BLOCK: tl.constexpr, FEW: tl.constexpr):
    """The largest of `num` ranks from which on they count, or weigh, `wanted`, above 0, or more; all of them do."""
    if num <= FEW:
        last = _last_of_few(ranks, num, wanted, BY_LOGIT, FEW)
    else:
        last = _last_of_many(ranks, num, wanted, BY_LOGIT, BLOCK)
    return last


@triton.jit
def _last_of_few(ranks, num, wanted, BY_LOGIT: tl.constexpr, FEW: tl.constexpr):
    i = tl.arange(0, FEW)
    falling = tl.sort(tl.load(ranks + i, mask=i < num, other=BELOW_ALL), descending=True)
    reached = tl.cumsum(tl.where(i < num, _counted(falling, BY_LOGIT), 0), 0)
    place = tl.sum((reached < wanted).to(tl.int32), 0)
    return tl.max(tl.where(i == place, falling, BELOW_ALL), 0)


@triton.jit
def _last_of_many(ranks, num, wanted, BY_LOGIT: tl.constexpr, BLOCK: tl.constexpr):
    """Each turn halves the span between one that suffices and one that does not, then narrows it to ranks there are."""
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
        reached += tl.where(inside & beyond, _counted(here, BY_LOGIT), 0)
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


def sample_settle_work(rows: int, width: int, by_logit: bool) -> Work:
    """Work of `sample_settle` for `top_k`, which goes by logits, or for `top_p`."""
    return work((rows,), num_warps=NUM_WARPS, BY_LOGIT=by_logit, WIDTH=width, BLOCK=BLOCK, FEW=FEW)
