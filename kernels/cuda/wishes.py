"""What the kernels of a draw are told of each output row, and what they keep of it between them.

A row of `wish` is int64 [WISH]; reals stand in it by their bits in fp32. Of scratch, `state` is int64 [rows, STATE],
`bins` int32 [rows, 2 * BINS]. docs/sampling.md says what is drawn. Knows nothing of how rows are told apart or made.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tandem.wish import ID_BITS as _ID_BITS
from tandem.wish import WISH as _WISH
from tandem.wish import Wish

WISH = tl.constexpr(_WISH)
LANE, SCALE, TOP_K, TOP_P = (tl.constexpr(int(column)) for column in (Wish.LANE, Wish.SCALE, Wish.TOP_K, Wish.TOP_P))
MIN_P, SEED, POSITION = (tl.constexpr(int(column)) for column in (Wish.MIN_P, Wish.SEED, Wish.POSITION))
REPETITION, FREQUENCY, PRESENCE, COUNTED = (
    tl.constexpr(int(column)) for column in (Wish.REPETITION, Wish.FREQUENCY, Wish.PRESENCE, Wish.COUNTED)
)

STATE = tl.constexpr(8)
"""Numbers kept of a row: the mass of all weights; of either filter how many candidates there are, what weighs more
than they do, and the last rank that stays; the mass that `top_k` leaves."""
MASS, NUM_K, ABOVE_K, LAST_K, MASS_K, NUM_P, ABOVE_P, LAST_P = (tl.constexpr(i) for i in range(8))
BINS = tl.constexpr(512)
"""Of the histogram of either filter: those of `top_k` come first."""
ID_BITS, LAST_ID = tl.constexpr(_ID_BITS), tl.constexpr((1 << _ID_BITS) - 1)
"""Of a rank."""


@triton.jit
def wished(wish, row, COLUMN: tl.constexpr):
    """A whole number of a row of `wish`."""
    return tl.load(wish + row * WISH + COLUMN)


@triton.jit
def wished_real(wish, row, COLUMN: tl.constexpr):
    """A real of a row of `wish`, fp32."""
    return tl.load(wish + row * WISH + COLUMN).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def rank(key, ids):
    """int64 that orders ids by falling `key` int32, of equal keys the lower id first: what is first is largest."""
    return (key.to(tl.int64) << ID_BITS) | (ids ^ LAST_ID).to(tl.int64)


@triton.jit
def ordered(logit):
    """int32 in the order of fp32 `logit`; none of them is NaN, or a zero below zero."""
    bits = logit.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def distance(logit, top, scale):
    """max((logit - top) * scale, -100), fp32. Where only the largest are drawn, because `scale` is 0 or `top` is
    infinite, these are at 0 and all others at -100."""
    largest_alone = (scale == 0) | (tl.abs(top) == float("inf"))
    logit = tl.where(largest_alone, tl.where(logit == top, 0.0, -float("inf")), logit)
    x = (logit - tl.where(largest_alone, 0.0, top)) * tl.where(largest_alone, 1.0, scale)
    return tl.maximum(x, -100.0)


@triton.jit
def top_of(tops, row, CHUNKS: tl.constexpr, WIDE: tl.constexpr):
    """The largest logit of a row, from those of its chunks."""
    chunk = tl.arange(0, WIDE)
    return tl.max(tl.load(tops + row * CHUNKS + chunk, mask=chunk < CHUNKS, other=-float("inf")), 0)
