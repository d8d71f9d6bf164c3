"""The first of a draw: what a lane's text has, kept on the device; logits with penalties; what every id weighs.

docs/sampling.md defines it, `tandem.runtime.penalties` and `exponential` are the same on a host. Every operation is
rounded by itself: these kernels are compiled without fused multiply-adds, and sums are of whole numbers alone, so
that adding them atomically moves no bit.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tandem.kernels.cuda.launch import Work, kernel, work
from tandem.kernels.cuda.order import begin
from tandem.kernels.cuda.wishes import (
    BINS,
    COUNTED,
    FREQUENCY,
    LANE,
    MASS,
    PRESENCE,
    REPETITION,
    SCALE,
    STATE,
    TOP_K,
    distance,
    top_of,
    wished,
    wished_real,
)
from tandem.keys import MAX_TREE_ROWS

CHUNK = 2048
"""Ids of one program, and twice as many in a vocabulary of more than MANY: each reads what all chunks found."""
MANY = 1 << 17
BINS_PER_POWER = tl.constexpr(12.5)
"""Bins of `top_k` in each halving of a weight: all that weighs anything is in reach."""
C5, C4, C3, C2, C1, C0 = (
    tl.constexpr(2.0**40 * float.fromhex(coefficient))
    for coefficient in ("0x1.5bba14p-10", "0x1.3cea88p-7", "0x1.c6b752p-5", "0x1.ebf9bcp-3", "0x1.62e42ap-1", "0x1p+0")
)
"""2^f in units of a weight, as in `tandem.runtime.exponential`."""


@kernel("<fresh <count !seen")
@triton.jit
def sample_learn(fresh, count, seen, WIDTH: tl.constexpr, FRESH: tl.constexpr, PDL: tl.constexpr):
    """fresh int32 [count, 2], a lane and an id of its answer each -> seen int32 [lanes, WIDTH]; grid (1,).

    `seen` is twice how often the answer has an id, and 1 more if the prompt has it.
    """
    num = begin(count, PDL)
    if num > 0:
        i = tl.arange(0, FRESH)
        lane = tl.load(fresh + 2 * i, mask=i < num, other=0).to(tl.int64)
        tl.atomic_add(
            seen + lane * WIDTH + tl.load(fresh + 2 * i + 1, mask=i < num, other=0), 2, mask=i < num, sem="relaxed"
        )


@kernel("<logits <wish <said <seen <count >logit >top >state >bins")
@triton.jit
def sample_logits(
    logits,
    wish,
    said,
    seen,
    count,
    logit,
    top,
    state,
    bins,
    WIDTH: tl.constexpr,
    SAID: tl.constexpr,
    CHUNK: tl.constexpr,
    PDL: tl.constexpr,
):
    """logits fp32 [rows, WIDTH] -> logit, the same with penalties, and top fp32 [rows, chunks]; grid (rows, chunks).

    said int32 [rows, SAID] are tokens of a draft that stand before a row, behind the text that `seen` has; -1 behind
    them. NaN becomes minus infinity, a zero is above zero. Clears `state` and `bins`.
    """
    rows = begin(count, PDL)
    row, chunk = tl.program_id(0), tl.program_id(1)
    if (row < rows) & (wished(wish, row, LANE) >= 0):
        if chunk == 0:
            tl.store(state + row * STATE + tl.arange(0, STATE), tl.zeros((STATE,), tl.int64))
            tl.store(bins + row * 2 * BINS + tl.arange(0, 2 * BINS), tl.zeros((2 * BINS,), tl.int32))
        i = chunk * CHUNK + tl.arange(0, CHUNK)
        inside, place = i < WIDTH, row.to(tl.int64) * WIDTH + i
        value = tl.load(logits + place, mask=inside, other=-float("inf"))
        if wished(wish, row, COUNTED) != 0:
            lane = wished(wish, row, LANE)
            known = tl.load(seen + lane * WIDTH + i, mask=inside, other=0)
            path = tl.load(said + row * SAID + tl.arange(0, SAID))
            for j in range(tl.sum((path >= 0).to(tl.int32), 0)):
                known += tl.where(i == tl.load(said + row * SAID + j), 2, 0)
            times = known >> 1
            r = wished_real(wish, row, REPETITION)
            less = tl.where(value > 0, tl.div_rn(value, r), value * r)
            less = less - wished_real(wish, row, FREQUENCY) * times.to(tl.float32)
            less = less - wished_real(wish, row, PRESENCE) * (times > 0).to(tl.float32)
            value = tl.where(known > 0, less, value)
        value = tl.where(value == value, value, -float("inf"))
        value = tl.where(value == 0, 0.0, value)
        tl.store(logit + place, value, mask=inside)
        tl.store(top + row * tl.num_programs(1) + chunk, tl.max(value, 0))


@kernel("<logit <top <wish <count >masses !state !bins")
@triton.jit
def sample_weights(
    logit,
    top,
    wish,
    count,
    masses,
    state,
    bins,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    WIDE: tl.constexpr,
    PDL: tl.constexpr,
):
    """What `sample_logits` wrote -> masses fp32 [rows, WIDTH], whole numbers; their mass; where `top_k` is wished, how
    many ids that weigh anything are in each bin of falling logits; grid (rows, chunks)."""
    rows = begin(count, PDL)
    row = tl.program_id(0)
    if (row < rows) & (wished(wish, row, LANE) >= 0):
        i = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
        inside, place = i < WIDTH, row.to(tl.int64) * WIDTH + i
        value = tl.load(logit + place, mask=inside, other=-float("inf"))
        x = distance(value, top_of(top, row, CHUNKS, WIDE), wished_real(wish, row, SCALE))
        w = tl.where(inside, _weight(x), 0.0)
        tl.store(masses + place, w, mask=inside)
        tl.atomic_add(state + row * STATE + MASS, tl.sum(w.to(tl.int64), 0), sem="relaxed")
        if wished(wish, row, TOP_K) > 0:
            found = tl.histogram(top_k_bin(x), BINS, mask=w > 0)
            tl.atomic_add(bins + row * 2 * BINS + tl.arange(0, BINS), found, mask=found > 0, sem="relaxed")


@triton.jit
def _weight(x):
    """floor(2^(40 + x)) but for rounding, fp32, for x of -100 to 0."""
    shifted = x + 12582912.0  # its lowest bits are the integer nearest x
    f = x - (shifted - 12582912.0)
    v = f * C5
    v = (v + C4) * f
    v = (v + C3) * f
    v = (v + C2) * f
    v = (v + C1) * f
    v = v + C0
    bits = v.to(tl.int32, bitcast=True) + (shifted.to(tl.int32, bitcast=True) << 23)
    return tl.floor(bits.to(tl.float32, bitcast=True))


@triton.jit
def top_k_bin(x):
    """The bin of `top_k` that holds a `distance`: a larger logit is in the same or in one before."""
    return tl.minimum((x * -BINS_PER_POWER).to(tl.int32), BINS - 1)


def sample_chunk(width: int) -> int:
    """Ids of a chunk of a vocabulary of `width`."""
    return CHUNK if width <= MANY else 2 * CHUNK


def sample_chunks(width: int) -> int:
    """Chunks of a row: what `top` and `sums` hold of it."""
    return -(-width // sample_chunk(width))


def chunked(rows: int, width: int, **constants: int) -> Work:
    """Work of a kernel of a draw with a program for each row and chunk of `width` ids."""
    return work((rows, sample_chunks(width)), WIDTH=width, CHUNK=sample_chunk(width), **constants)


def sample_learn_work(width: int, fresh: int) -> Work:
    """Work of `sample_learn` for up to `fresh` ids."""
    return work((1,), num_warps=1, WIDTH=width, FRESH=fresh)


def sample_logits_work(rows: int, width: int) -> Work:
    return chunked(rows, width, SAID=MAX_TREE_ROWS)


def sample_weights_work(rows: int, width: int) -> Work:
    return chunked(rows, width, CHUNKS=sample_chunks(width), WIDE=triton.next_power_of_2(sample_chunks(width)))
