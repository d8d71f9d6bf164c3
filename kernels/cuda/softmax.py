"""The arithmetic of attention: one tile of keys taken into a running softmax, and one group's result into another's.

Whoever calls these in the order of the positions gets the same bits: sums run inside `tl.dot`, whose order neither the
rows of the tile nor the warps change; multiply-adds are written out; what is masked adds exact zeros. Knows nothing of
pages, lanes or grids. m is the running maximum in units of log2, l the sum of exponentials, acc their sum over V.
"""

# ruff: noqa: E741 - m, l and acc are what every paper on online softmax calls them.
from __future__ import annotations

import triton
import triton.language as tl

COLUMNS = tl.constexpr(16)
"""Columns of the product with ones that sums exponentials, the fewest a product may have."""


@triton.jit
def empty(BM: tl.constexpr, BD: tl.constexpr):
    """(m, l, acc) of no key at all; folding it in changes nothing."""
    return tl.full((BM,), float("-inf"), tl.float32), tl.zeros((BM,), tl.float32), tl.zeros((BM, BD), tl.float32)


@triton.jit
def begun(m, l, acc):
    """What `take_tile` carries on from (m, l, acc): l stands in COLUMNS equal columns."""
    return m, tl.broadcast_to(l[:, None], (l.shape[0], COLUMNS)), acc


@triton.jit
def ended(m, sums, acc):
    """(m, l, acc) of what `take_tile` gave last."""
    return m, tl.max(sums, 1), acc


@triton.jit
def finite(m):
    """`m`, or 0 where no key was seen, so that differences from it are no NaN."""
    return tl.where(m == float("-inf"), 0.0, m)


@triton.jit
def take_tile(q, k, v, visible, m, sums, acc, SCALE: tl.constexpr):
    """q [BM, BD], k and v [TILE, BD], visible [BM, TILE] or None for all, what `begun` gave -> the new (m, sums, acc).

    A row that sees nothing here keeps what it had. SCALE is positive and holds log2(e). Nothing here reads `sums`, so
    that its product, like that of acc, is waited for with the next tile's scores.
    """
    s = tl.dot(q, tl.trans(k), input_precision="ieee")
    if visible is not None:
        s = tl.where(visible, s, float("-inf"))
    larger = tl.maximum(m, tl.max(s, 1) * SCALE)
    zero = finite(larger)
    shrink = tl.exp2(m - zero)
    p = tl.exp2(tl.fma(s, tl.full(s.shape, SCALE, tl.float32), tl.broadcast_to(-zero[:, None], s.shape))).to(v.dtype)
    ones = tl.full((v.shape[0], COLUMNS), 1.0, v.dtype)
    sums = tl.dot(p, ones, sums * shrink[:, None], input_precision="ieee")
    acc = tl.dot(p, v, acc * shrink[:, None], input_precision="ieee")
    return larger, sums, acc


@triton.jit
def fold(m, l, acc, next_m, next_l, next_acc):
    """The groups so far and the next one -> both; m and l [...], acc [..., BD]."""
    larger = tl.maximum(m, next_m)
    zero = finite(larger)
    shrink, next_shrink = tl.exp2(m - zero), tl.exp2(next_m - zero)
    l = tl.fma(next_l, next_shrink, l * shrink)
    if len(acc.shape) == 2:
        shrink, next_shrink = shrink[:, None], next_shrink[:, None]
    acc = tl.fma(next_acc, tl.broadcast_to(next_shrink, acc.shape), acc * shrink)
    return larger, l, acc
