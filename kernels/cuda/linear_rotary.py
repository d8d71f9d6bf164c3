"""The product that makes q, k and v, which turns q and k and writes the cache itself: `linear` and `rotary_kv_write`
in one launch, for a few rows, with the bits of the two.

A program takes some pairs of one head's dimensions, i and i + HALF: their columns stand side by side in its tile.
"""

from __future__ import annotations

from dataclasses import replace

import triton
import triton.language as tl

from tandem.kernels.cuda.groups import TILE
from tandem.kernels.cuda.kv import place_of
from tandem.kernels.cuda.launch import Work, kernel, work
from tandem.kernels.cuda.linear import add_products, chain_start, load_tile
from tandem.kernels.cuda.linear_tiles import MAX_FEW_ROWS, FewTiles, Matrix, few_tiles
from tandem.kernels.cuda.order import begin, begin_alone, prefetch_lines
from tandem.kernels.cuda.rotary import turn


@triton.jit
def _store_pairs(first, second, to, at, inside, HALF: tl.constexpr):
    """Both dimensions of pairs to `to` + at and HALF behind, all [BM, PAIRS]."""
    kind = to.dtype.element_ty
    tl.store(to + at, first.to(kind), mask=inside)
    tl.store(to + at + HALF, second.to(kind), mask=inside)


@kernel("<x <weight <bias <cos <sin <position <lane <slot <block_table <count !k_cache !v_cache >y")
@triton.jit
def linear_rotary(
    x, weight, bias, cos, sin, position, lane, slot, block_table, count, k_cache, v_cache, y,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, K: tl.constexpr, X_STRIDE: tl.constexpr,
    Y_STRIDE: tl.constexpr, TABLE_STRIDE: tl.constexpr, PAGE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, WEIGHT_LEFT: tl.constexpr, PREFETCH: tl.constexpr, EARLY: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """x [rows <= BM, K], weight [(HEADS + 2 KV_HEADS) * 2 HALF, K], bias fp32 or None; cos and sin [positions, HALF]
    fp32; position, lane, slot [BM], block_table [lanes, TABLE_STRIDE] and count [1] int32 -> y [rows, HEADS * 2 HALF]
    and the slots' rows of k_cache and v_cache, each in its own type.

    Strides and PAGE as in `linear` and `kv_write`. Of rows from `count` on, position, lane and slot must be readable,
    whatever they hold. Grid (heads of all kinds * blocks of BN / 2 pairs,).
    """
    HEAD_DIM: tl.constexpr = 2 * HALF
    PAIRS: tl.constexpr = BN // 2
    BLOCKS: tl.constexpr = (HALF + PAIRS - 1) // PAIRS
    WHOLE: tl.constexpr = HALF % PAIRS == 0
    head, p0 = tl.program_id(0) // BLOCKS, tl.program_id(0) % BLOCKS * PAIRS
    n, m, p = tl.arange(0, BN), tl.arange(0, BM), p0 + tl.arange(0, PAIRS)
    inside = p0 + n // 2 < HALF
    column = tl.where(inside, p0 + n // 2 + n % 2 * HALF, 0)
    start = weight + head.to(tl.int64) * HEAD_DIM * K
    if PDL and PREFETCH > 0:
        prefetch_lines(start + column * K, PREFETCH // 128, 128 * 8 // weight.dtype.element_ty.primitive_bitwidth)
    # All at once, not after `count`: a row's angles and its place in the cache are one look-up further, used last.
    at, own, to = tl.load(position + m), tl.load(lane + m), tl.load(slot + m)
    if EARLY:  # noqa: SIM108 - a branch of the compiler's
        rows = begin(count, PDL)
    else:
        rows = begin_alone(count, PDL)
    row_inside = m < rows
    pair_inside = row_inside[:, None] & (p < HALF)[None, :]
    angle = at.to(tl.int64)[:, None] * HALF + p[None, :]
    cosine = tl.load(cos + angle, mask=pair_inside, other=0.0)
    sine = tl.load(sin + angle, mask=pair_inside, other=0.0)
    own, to = tl.where(row_inside, own, 0), tl.where(row_inside, to, 0)
    cached = place_of(block_table, own, to, TABLE_STRIDE, PAGE, HEAD_DIM)
    acc = chain_start(bias, head * HEAD_DIM + column, inside, BM, BN, WEIGHT_LEFT)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        tile = load_tile(start, column * K, k, inside, K, BK, WHOLE)
        x_tile = load_tile(x, m * X_STRIDE, k, row_inside, K, BK, False)
        acc = add_products(x_tile, tile, acc, WEIGHT_LEFT)
    if WEIGHT_LEFT:
        acc = tl.trans(acc)
    first, second = tl.split(tl.reshape(acc, (BM, PAIRS, 2)))
    to_cache = (cached + (head - HEADS) * TILE * HEAD_DIM)[:, None] + p[None, :]
    if head < HEADS:
        first, second = turn(first, second, cosine, sine)
        to_y = (m.to(tl.int64) * Y_STRIDE + head * HEAD_DIM)[:, None] + p[None, :]
        _store_pairs(first, second, y, to_y, pair_inside, HALF)
    elif head < HEADS + KV_HEADS:
        first, second = turn(first, second, cosine, sine)
        _store_pairs(first, second, k_cache, to_cache, pair_inside, HALF)
    else:
        _store_pairs(first, second, v_cache, to_cache - KV_HEADS * TILE * HEAD_DIM, pair_inside, HALF)


def can_fuse(head_dim: int, half: int) -> bool:
    """Whether heads of this width, turned in `half` pairs, are served: all of a head turns."""
    return head_dim == 2 * half


MIN_PAIRS = 8
"""The fewest pairs of a program: two of the 8 columns that tensor cores take, and a tile of weights on the left."""


def rotary_tiles(matrix: Matrix, rows: int, half: int) -> FewTiles:
    """Tiles of `linear_rotary`: those of `linear` over the same weights, cut so that heads divide into whole tiles."""
    tiles = few_tiles(matrix, rows)
    return replace(tiles, bn=min(tiles.bn, 2 * max(half & -half, MIN_PAIRS)), rest=0)


def linear_rotary_work(
    *,
    rows: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    half: int,
    k: int,
    itemsize: int,
    x_stride: int,
    y_stride: int,
    table_stride: int,
    page: int,
) -> Work:
    """For a bucket of at most MAX_FEW_ROWS rows and heads that `can_fuse`; `itemsize` is bytes per weight, strides and
    `page` count elements."""
    assert rows <= MAX_FEW_ROWS and can_fuse(head_dim, half), f"{rows} rows, {half} pairs of {head_dim} dimensions"
    matrix = Matrix((heads + 2 * kv_heads) * head_dim, k, False, itemsize, x_stride, y_stride)
    tiles = rotary_tiles(matrix, rows, half)
    alone = tiles.work(matrix)
    shared = {name: value for name, value in alone.constants if name not in ("N", "GATED", "SPLIT", "REST")}
    return work(
        ((heads + 2 * kv_heads) * -(-2 * half // tiles.bn),), num_warps=alone.num_warps, num_stages=alone.num_stages,
        HEADS=heads, KV_HEADS=kv_heads, HALF=half, TABLE_STRIDE=table_stride, PAGE=page, **shared,
    )  # fmt: skip
