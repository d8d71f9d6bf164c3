"""The end of a draw: what each chunk of the ids left weighs, and the id that the noise falls on.

docs/sampling.md defines it, `tandem.runtime.sampling` and `noise` are the same on a host.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tandem.kernels.cuda.launch import Work, kernel, work
from tandem.kernels.cuda.order import begin
from tandem.kernels.cuda.sample_logits import chunked, sample_chunk, sample_chunks
from tandem.kernels.cuda.wishes import (
    LANE,
    LAST_P,
    MIN_P,
    POSITION,
    SCALE,
    SEED,
    STATE,
    TOP_P,
    rank,
    top_of,
    wished,
    wished_real,
)

X_FACTOR, Y_FACTOR = tl.constexpr(0xD2E7470EE14C6C93), tl.constexpr(0xCA5A826395121157)
KEY_BUMP, OTHER_BUMP = tl.constexpr(0x9E3779B97F4A7C15), tl.constexpr(0xBB67AE8584CAA73B)


@triton.jit
def _kept(masses, state, wish, row, chunk, WIDTH: tl.constexpr, CHUNK: tl.constexpr):
    """The weights int64 of a chunk's ids, 0 for what the filters leave out."""
    i = chunk * CHUNK + tl.arange(0, CHUNK)
    w = tl.load(masses + row.to(tl.int64) * WIDTH + i, mask=i < WIDTH, other=0.0)
    stays = w.to(tl.int64) >= wished(wish, row, MIN_P)
    if wished(wish, row, TOP_P) != 0:
        stays = stays & (rank(w.to(tl.int32, bitcast=True), i) >= tl.load(state + row * STATE + LAST_P))
    return tl.where(stays, w.to(tl.int64), 0)


@kernel("<masses <state <wish <count >sums")
@triton.jit
def sample_sums(masses, state, wish, count, sums, WIDTH: tl.constexpr, CHUNK: tl.constexpr, PDL: tl.constexpr):
    """sums int64 [rows, chunks]: what the ids left weigh; grid (rows, chunks)."""
    rows = begin(count, PDL)
    row, chunk = tl.program_id(0), tl.program_id(1)
    if (row < rows) & (wished(wish, row, LANE) >= 0):
        kept = _kept(masses, state, wish, row, chunk, WIDTH, CHUNK)
        tl.store(sums + row * tl.num_programs(1) + chunk, tl.sum(kept, 0))


@kernel("<masses <top <state <sums <wish <count >drawn")
@triton.jit
def sample_pick(
    masses,
    top,
    state,
    sums,
    wish,
    count,
    drawn,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    WIDE: tl.constexpr,
    PDL: tl.constexpr,
):
    """drawn int32 [rows]: the first id whose cumulative weight exceeds the noise's share of all, -1 where no draw is
    wished. Where the largest logit alone counts there is no noise; grid (rows,)."""
    rows = begin(count, PDL)
    row = tl.program_id(0)
    if row < rows:
        drawn_id = -1
        if wished(wish, row, LANE) >= 0:
            largest_alone = (wished_real(wish, row, SCALE) == 0) | (top_of(top, row, CHUNKS, WIDE) == -float("inf"))
            chunk = tl.arange(0, WIDE)
            mass = tl.load(sums + row * CHUNKS + chunk, mask=chunk < CHUNKS, other=0)
            noise = _word(wished(wish, row, SEED).to(tl.uint64), wished(wish, row, POSITION).to(tl.uint64))
            share = tl.umulhi(noise, tl.sum(mass, 0).to(tl.uint64)).to(tl.int64)
            share = tl.where(largest_alone, 0, share)
            which = tl.sum((tl.cumsum(mass, 0) <= share).to(tl.int32), 0)
            kept = _kept(masses, state, wish, row, which, WIDTH, CHUNK)
            upto = tl.sum(tl.where(chunk < which, mass, 0), 0) + tl.cumsum(kept, 0)
            drawn_id = which * CHUNK + tl.sum((upto <= share).to(tl.int32), 0)
        tl.store(drawn + row, drawn_id)


@triton.jit
def _word(seed, position):
    """Word 0 of Philox4x64-10 with key (seed, 0) and counter (position + 1, 0, 0, 0), uint64."""
    nothing = seed ^ seed
    a, b, c, d = position + 1, nothing, nothing, nothing
    key, other_key = seed, nothing
    for _ in tl.static_range(10):
        high, low = tl.umulhi(a, nothing + X_FACTOR), a * X_FACTOR
        other, lower = tl.umulhi(c, nothing + Y_FACTOR), c * Y_FACTOR
        a, b, c, d = other ^ b ^ key, lower, high ^ d ^ other_key, low
        key, other_key = key + KEY_BUMP, other_key + OTHER_BUMP
    return a


def sample_sums_work(rows: int, width: int) -> Work:
    return chunked(rows, width)


def sample_pick_work(rows: int, width: int) -> Work:
    chunks = sample_chunks(width)
    wide = triton.next_power_of_2(chunks)
    return work((rows,), WIDTH=width, CHUNK=sample_chunk(width), CHUNKS=chunks, WIDE=wide)
