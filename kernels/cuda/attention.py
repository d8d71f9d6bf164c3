"""Paged attention of steps and verifies, the definition of `tandem.kernels.attention`, in two launches.

`attention_split` reduces each group of positions by itself, so that few rows behind a long context keep the whole GPU
busy; `attention_merge` folds the groups of straight rows in order. For tree rows the split stops before the page that
holds the end of the committed prefix, and `attention_tail` adds the row's own ancestors in their positions, then folds.
Every row gets the bits of a one-token step at its own prefix. `attention_chunk` is the same arithmetic in one launch.

Letters: G query heads of a kv head, BM (row, query head) pairs of a tile, D the head dimension, BD it padded.
"""

# ruff: noqa: E741 - m, l and acc are what every paper on online softmax calls them.
from __future__ import annotations

import math
from dataclasses import dataclass

import triton
import triton.language as tl

from tandem.kernels.cuda.attention_tiles import load_part, load_rows, split_tile, tile_starts
from tandem.kernels.cuda.groups import TILE, first_position, group_of, num_groups
from tandem.kernels.cuda.launch import Work, kernel, work
from tandem.kernels.cuda.order import begin
from tandem.kernels.cuda.softmax import empty, fold, take_tile

ANCESTORS = tl.constexpr(32)
"""Entries of a row's list of ancestors."""


@kernel("<q <k_cache <v_cache <position <lane <prefix <block_table <count >m >l >acc")
@triton.jit
def attention_split(
    q, k_cache, v_cache, position, lane, prefix, block_table, count, m, l, acc,
    TREE: tl.constexpr, ROWS: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    BD: tl.constexpr, SCALE: tl.constexpr, NUM_GROUPS: tl.constexpr, Q_STRIDE: tl.constexpr,
    TABLE_STRIDE: tl.constexpr, PAGE: tl.constexpr, BM: tl.constexpr, BR: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """q [rows, Q_STRIDE], caches at this layer's planes of page 0 (elements PAGE apart), position, lane, prefix [rows],
    block_table [lanes, TABLE_STRIDE], count [1] int32 -> m, l [ROWS, HEADS, NUM_GROUPS], acc [.., HEAD_DIM] fp32.

    Grid (kv heads, row tiles, groups): each program takes every grid[1]-th tile, the largest groups first.
    """
    begin(PDL)
    G: tl.constexpr = HEADS // KV_HEADS
    kv_head, group = tl.program_id(0), NUM_GROUPS - 1 - tl.program_id(2)
    rows = tl.load(count)
    if ROWS == 1:
        if rows > 0:
            table = block_table + tl.load(lane) * TABLE_STRIDE
            split_tile(
                q, k_cache, v_cache, position, prefix, table, m, l, acc, kv_head, group, 0, 1, 0,
                TREE, ROWS, HEADS, G, HEAD_DIM, BD, SCALE, NUM_GROUPS, Q_STRIDE, PAGE, BM,
            )  # fmt: skip
    else:
        own, run, tile, first_pair = tile_starts(lane, rows, G, BM, BR)
        inside = tl.arange(0, BR) < rows
        for t in range(tl.program_id(1), tl.max(tile, 0) + 1, tl.num_programs(1)):
            here = tile == t
            first_row = tl.sum(tl.where(here, run, 0), 0)
            table = block_table + tl.sum(tl.where(here, own, 0), 0) * TABLE_STRIDE
            run_rows = tl.sum((inside & (run == first_row)).to(tl.int32), 0)
            split_tile(
                q, k_cache, v_cache, position, prefix, table, m, l, acc, kv_head, group, first_row, run_rows,
                tl.sum(tl.where(here, first_pair, 0), 0),
                TREE, ROWS, HEADS, G, HEAD_DIM, BD, SCALE, NUM_GROUPS, Q_STRIDE, PAGE, BM,
            )  # fmt: skip


@kernel("<m <l <acc <position <count >y")
@triton.jit
def attention_merge(
    m, l, acc, position, count, y,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BD: tl.constexpr, NUM_GROUPS: tl.constexpr, DEPTH: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """m, l [ROWS, HEADS, NUM_GROUPS], acc [.., HEAD_DIM], position [rows] -> y [rows, HEADS * HEAD_DIM], y's own type.

    Grid (rows, heads). DEPTH groups are loaded at once.
    """
    begin(PDL)
    row, head, d = tl.program_id(0), tl.program_id(1), tl.arange(0, BD)
    if row < tl.load(count):
        last = group_of(tl.load(position + row))
        at = (row * HEADS + head) * NUM_GROUPS
        all_m, all_l, all_acc = float("-inf"), 0.0, tl.zeros((BD,), tl.float32)
        for first in range(0, last + 1, DEPTH):
            for i in tl.static_range(DEPTH):
                group = first + i
                there = last >= group
                part_m = tl.load(m + at + group, mask=there, other=float("-inf"))
                part_l = tl.load(l + at + group, mask=there, other=0.0)
                part_acc = tl.load(acc + (at + group) * HEAD_DIM + d, mask=d < tl.where(there, HEAD_DIM, 0), other=0.0)
                all_m, all_l, all_acc = fold(all_m, all_l, all_acc, part_m, part_l, part_acc)
        result = (all_acc / all_l).to(y.dtype.element_ty)
        tl.store(y + (row * HEADS + head) * HEAD_DIM + d, result, mask=d < HEAD_DIM)


@kernel("<q <k_cache <v_cache <position <lane <prefix <ancestor <block_table <m <l <acc <count >y")
@triton.jit
def attention_tail(
    q, k_cache, v_cache, position, lane, prefix, ancestor, block_table, m, l, acc, count, y,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BD: tl.constexpr, SCALE: tl.constexpr,
    NUM_GROUPS: tl.constexpr, Q_STRIDE: tl.constexpr, TABLE_STRIDE: tl.constexpr, PAGE: tl.constexpr,
    DEPTH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """As `attention_split`, with ancestor [rows, 32]: the slot of position prefix + i -> y [rows, HEADS * HEAD_DIM].

    Grid (rows, kv heads). DEPTH groups are loaded at once.
    """
    begin(PDL)
    G: tl.constexpr = HEADS // KV_HEADS
    row, kv_head = tl.program_id(0), tl.program_id(1)
    if row < tl.load(count):
        own, committed = tl.load(position + row), tl.load(prefix + row)
        table, paths = block_table + tl.load(lane + row) * TABLE_STRIDE, ancestor + row * ANCESTORS - committed
        pair, place, d = tl.arange(0, 16), tl.arange(0, TILE), tl.arange(0, BD)
        inside, head = pair < G, kv_head * G + pair
        rows = load_rows(q, row * Q_STRIDE + head * HEAD_DIM, inside, HEAD_DIM, BD)
        at = (row * HEADS + head) * NUM_GROUPS
        tail = committed // TILE * TILE
        tail_group = group_of(tail)
        all_m, all_l, all_acc = empty(16, BD)
        for first in range(0, tail_group, DEPTH):
            for i in tl.static_range(DEPTH):
                there = pair < tl.where(tail_group > first + i, G, 0)
                part_m, part_l, part_acc = load_part(m, l, acc, at + first + i, there, HEAD_DIM, BD)
                all_m, all_l, all_acc = fold(all_m, all_l, all_acc, part_m, part_l, part_acc)
        for group in range(tail_group, group_of(own) + 1):
            first = first_position(group)
            begun = pair < tl.where(first < tail, G, 0)
            part_m, part_l, part_acc = load_part(m, l, acc, at + group, begun, HEAD_DIM, BD)
            for start in range(tl.maximum(first, tail), tl.minimum(first_position(group + 1), own + 1), TILE):
                seen = start + place
                visible = seen <= own
                slot = tl.where(
                    seen < committed, seen, tl.load(paths + seen, mask=visible & (seen >= committed), other=0)
                )
                page = tl.load(table + slot // TILE, mask=visible, other=0).to(tl.int64) * PAGE
                offset = page + (kv_head * TILE + slot % TILE) * HEAD_DIM
                k = load_rows(k_cache, offset, visible, HEAD_DIM, BD)
                v = load_rows(v_cache, offset, visible, HEAD_DIM, BD)
                shown = tl.broadcast_to(visible[None, :], (16, TILE))
                part_m, part_l, part_acc = take_tile(rows, k, v, shown, part_m, part_l, part_acc, SCALE)
            all_m, all_l, all_acc = fold(all_m, all_l, all_acc, part_m, part_l, part_acc)
        result = (all_acc / all_l[:, None]).to(y.dtype.element_ty)
        out = y + (row * HEADS + head)[:, None] * HEAD_DIM + d[None, :]
        tl.store(out, result, mask=inside[:, None] & (d < HEAD_DIM)[None, :])


@dataclass(frozen=True, slots=True)
class Tiles:
    """How a pass is cut and its loads are overlapped. No choice here moves a bit of the result."""

    bm: int
    num_warps: int
    num_stages: int


PLACES = 264
"""Programs that one wave of an H200's 132 processors holds, about: more tiles than needed cost nothing below it."""


def exponent_scale(scale: float) -> float:
    """The factor of q.k for exponents of 2. Raises ValueError for a scale that is not positive."""
    if not scale > 0:
        raise ValueError(f"attention: scale is {scale}; the running maximum needs a positive one")
    return scale * math.log2(math.e)


def padded(size: int) -> int:
    """The width of a tile that holds `size` elements: a power of two, 16 at least."""
    return max(16, 1 << (size - 1).bit_length())


def split_tiles(pairs: int, head_dim: int, itemsize: int) -> Tiles:
    """Tiles for a pass of `pairs` (row, query head) pairs of a kv head."""
    if itemsize == 4:
        return Tiles(16, 4, 1)
    bm = min(128, padded(pairs))
    return Tiles(bm, 8 if bm == 128 else 4, 3 if bm <= 32 or head_dim <= 128 else 2)


def attention_works(
    rows: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    context: int,
    tree: bool,
    scale: float,
    q_stride: int,
    table_stride: int,
    page: int,
    max_lanes: int,
    itemsize: int,
    tiles: Tiles | None = None,
) -> list[tuple[str, Work]]:
    """The two launches for a row bucket in a context class: `attention_split`, then what folds its groups.

    Their partial results are m and l, fp32 [rows, heads, num_groups(context)], and acc, [.., head_dim]. `page` counts
    elements of `itemsize` bytes; positions stay below `context`.
    """
    pairs, groups = rows * heads // kv_heads, num_groups(context)
    cut = tiles or split_tiles(pairs, head_dim, itemsize)
    # A run of one lane ends with a tile that is not full: up to one more tile per further lane.
    needed = -(-pairs // cut.bm)
    most = min(rows, needed + max_lanes - 1)
    row_tiles = max(needed, min(most, PLACES // (kv_heads * groups)))
    shapes = {"HEADS": heads, "HEAD_DIM": head_dim, "BD": padded(head_dim), "NUM_GROUPS": groups}
    where = {
        "KV_HEADS": kv_heads, "SCALE": exponent_scale(scale), "Q_STRIDE": q_stride, "TABLE_STRIDE": table_stride,
        "PAGE": page,
    }  # fmt: skip
    split = work(
        (kv_heads, row_tiles, groups), num_warps=cut.num_warps, num_stages=cut.num_stages, TREE=tree, ROWS=rows,
        BM=cut.bm, BR=1 << (rows - 1).bit_length(), **shapes, **where,
    )  # fmt: skip
    if tree:
        tail = work((rows, kv_heads), num_warps=8, num_stages=2 if itemsize == 2 else 1, DEPTH=4, **shapes, **where)
        return [("attention_split", split), ("attention_tail", tail)]
    merge = work((rows, heads), num_warps=2, DEPTH=8 if groups <= 16 else 16, **shapes)
    return [("attention_split", split), ("attention_merge", merge)]
