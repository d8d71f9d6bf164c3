"""Paged attention of steps and verifies, the definition of `tandem.kernels.attention`, in two launches.

`attention_split` reduces each group of positions by itself, so that few rows behind a long context keep the whole GPU
busy; wide passes behind long contexts take `attention_wide` instead. `attention_merge` folds the groups of straight
rows in order. For tree rows the split stops before the page that holds the end of the committed prefix, and
`attention_tail` adds the row's own ancestors in their positions, then folds. Every row gets the bits of a one-token
step at its own prefix. `attention_chunk` is the same arithmetic in one launch.

Letters: G query heads of a kv head, BM (row, query head) pairs of a tile, D the head dimension, BD it padded.
"""

# ruff: noqa: E741 - m, l and acc are what every paper on online softmax calls them.
from __future__ import annotations

import math
from dataclasses import dataclass

import triton
import triton.language as tl

from tandem.kernels.cuda.attention_tiles import (
    ask_ahead,
    fold_groups,
    fold_parts,
    load_groups,
    load_part,
    load_rows,
    merge_groups,
    num_tiles,
    part_at,
    path_places,
    repeated,
    split_tile,
    take_path,
    take_places,
    tile_of,
)
from tandem.kernels.cuda.attention_wide import attention_wide_work, fits
from tandem.kernels.cuda.groups import NUM_SMALL, TILE, first_position, group_of, num_groups
from tandem.kernels.cuda.launch import Constant, Work, kernel, work
from tandem.kernels.cuda.order import let_next, wait
from tandem.kernels.cuda.softmax import begun, empty, ended, fold

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
    block_table [lanes, TABLE_STRIDE], count [1] -> m, l [KV_HEADS, NUM_GROUPS, ROWS * G], acc [.., HEAD_DIM], fp32.

    Grid (kv heads, row tiles, groups): each program takes every grid[1]-th tile, the largest groups first.
    """
    let_next(PDL)
    G: tl.constexpr = HEADS // KV_HEADS
    kv_head, group = tl.program_id(0), NUM_GROUPS - 1 - tl.program_id(2)
    # What rows are is loaded with their number, not behind it; nothing of a row from there on is followed.
    i, rows = tl.arange(0, BR), tl.load(count)
    lanes = tl.load(lane + i, mask=i < ROWS, other=0)
    prefixes = tl.load(prefix + i, mask=i < ROWS, other=0)
    table = block_table + tl.where(rows > 0, tl.sum(tl.where(i == 0, lanes, 0), 0), 0) * TABLE_STRIDE
    if PDL:
        # One program for all tiles of the first lane; the others' keys are waited for.
        committed = tl.sum(tl.where(i == 0, prefixes, 0), 0)
        asked = tl.where((rows > 0) & (tl.program_id(1) == 0), committed, 0)
        ask_ahead(k_cache, v_cache, table, kv_head, group, asked, HEAD_DIM, BD, PAGE)
    wait(PDL)
    if ROWS == 1:
        seen = tl.sum(prefixes, 0) // TILE * TILE if TREE else tl.load(position) + 1
        if rows > 0:
            split_tile(
                q, k_cache, v_cache, position, table, m, l, acc, kv_head, group, 0, 1, 0, seen,
                TREE, ROWS, HEADS, G, HEAD_DIM, BD, SCALE, NUM_GROUPS, Q_STRIDE, PAGE, BM,
            )  # fmt: skip
    else:
        others = (i < rows) & (lanes != tl.sum(tl.where(i == 0, lanes, 0), 0))
        one_lane = tl.max(others.to(tl.int32), 0) == 0
        for t in range(tl.program_id(1), num_tiles(one_lane, lane, rows, G, BM, BR), tl.num_programs(1)):
            first_row, run_rows, first = tile_of(t, one_lane, lane, rows, G, BM, BR)
            table = block_table + tl.sum(tl.where(i == first_row, lanes, 0), 0) * TABLE_STRIDE
            seen = tl.sum(tl.where(i == first_row, prefixes, 0), 0) // TILE * TILE
            split_tile(
                q, k_cache, v_cache, position, table, m, l, acc, kv_head, group, first_row, run_rows, first, seen,
                TREE, ROWS, HEADS, G, HEAD_DIM, BD, SCALE, NUM_GROUPS, Q_STRIDE, PAGE, BM,
            )  # fmt: skip


@kernel("<m <l <acc <position <count >y")
@triton.jit
def attention_merge(
    m, l, acc, position, count, y,
    ROWS: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BD: tl.constexpr,
    NUM_GROUPS: tl.constexpr, DEPTH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """m, l and acc of `attention_split`, position [rows] -> y [rows, HEADS * HEAD_DIM] in y's own type.

    Grid (rows, heads). DEPTH groups are loaded at once.
    """
    let_next(PDL)
    G: tl.constexpr = HEADS // KV_HEADS
    row, head = tl.program_id(0), tl.program_id(1)
    rows, last = tl.load(count), tl.load(position + row)  # both under way at once
    wait(PDL)
    if row < rows:
        at = part_at(row, head // G, 0, ROWS, G, NUM_GROUPS) + head % G
        merge_groups(m, l, acc, y, at, row * HEADS + head, group_of(last) + 1, ROWS * G, HEAD_DIM, BD, DEPTH)


@kernel("<q <k_cache <v_cache <position <lane <prefix <ancestor <block_table <m <l <acc <count >y")
@triton.jit
def attention_tail(
    q, k_cache, v_cache, position, lane, prefix, ancestor, block_table, m, l, acc, count, y,
    ROWS: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BD: tl.constexpr,
    BG: tl.constexpr, SCALE: tl.constexpr, NUM_GROUPS: tl.constexpr, Q_STRIDE: tl.constexpr,
    TABLE_STRIDE: tl.constexpr, PAGE: tl.constexpr, DEPTH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """As `attention_split`, with ancestor [rows, 32]: the slot of position prefix + i -> y [rows, HEADS * HEAD_DIM].

    Grid (rows, kv heads). DEPTH groups are loaded at once, for BG >= G pairs; products take 16.
    """
    let_next(PDL)
    G: tl.constexpr = HEADS // KV_HEADS
    row, kv_head = tl.program_id(0), tl.program_id(1)
    num_rows, own, committed = tl.load(count), tl.load(position + row), tl.load(prefix + row)
    own_lane = tl.load(lane + row)
    there = row < num_rows
    own, committed, own_lane = tl.where(there, own, -1), tl.where(there, committed, 0), tl.where(there, own_lane, 0)
    table, paths = block_table + own_lane * TABLE_STRIDE, ancestor + row * ANCESTORS - committed
    end, tail = own + 1, committed // TILE * TILE
    group = group_of(tail)
    border = tl.minimum(first_position(group + 1), end)
    places, shown = path_places(table, paths, kv_head, tail, border, committed, HEAD_DIM, PAGE)
    wait(PDL)
    if there:
        pair, few, d = tl.arange(0, 16), tl.arange(0, BG), tl.arange(0, BD)
        inside, head = pair < G, kv_head * G + pair
        rows = load_rows(q, row * Q_STRIDE + head * HEAD_DIM, inside, HEAD_DIM, BD)
        at = part_at(row, kv_head, 0, ROWS, G, NUM_GROUPS)
        # The first groups are under way while the row's own path, behind them in order, is taken.
        ahead = load_groups(m, l, acc, at, few, G, 0, group, ROWS * G, HEAD_DIM, BD, DEPTH)
        partly = pair < tl.where(first_position(group) < tail, G, 0)
        part_m, part_l, part_acc = load_part(m, l, acc, at + group * (ROWS * G) + pair, partly, HEAD_DIM, BD)
        part_m, sums, part_acc = begun(part_m, part_l, part_acc)
        part_m, sums, part_acc = take_places(
            rows, k_cache, v_cache, places, shown, part_m, sums, part_acc, HEAD_DIM, BD, SCALE
        )  # fmt: skip
        part_m, sums, part_acc = take_path(
            rows, k_cache, v_cache, table, paths, kv_head, tail + TILE, border, committed, part_m, sums, part_acc,
            HEAD_DIM, BD, SCALE, PAGE,
        )  # fmt: skip
        part_m, part_l, part_acc = ended(part_m, sums, part_acc)
        all_m, all_l, all_acc = empty(BG, BD)
        all_m, all_l, all_acc = fold_parts(ahead, all_m, all_l, all_acc, DEPTH)
        all_m, all_l, all_acc = fold_groups(
            all_m, all_l, all_acc, m, l, acc, at, few, G, DEPTH, group, ROWS * G, HEAD_DIM, BD, DEPTH
        )
        all_m, all_l, all_acc = repeated(all_m, 16), repeated(all_l, 16), repeated(all_acc, 16)
        all_m, all_l, all_acc = fold(all_m, all_l, all_acc, part_m, part_l, part_acc)
        if border < end:  # 32 ancestors reach into one more group at most
            part_m, part_l, part_acc = empty(16, BD)
            part_m, sums, part_acc = begun(part_m, part_l, part_acc)
            part_m, sums, part_acc = take_path(
                rows, k_cache, v_cache, table, paths, kv_head, border, end, committed, part_m, sums, part_acc,
                HEAD_DIM, BD, SCALE, PAGE,
            )  # fmt: skip
            part_m, part_l, part_acc = ended(part_m, sums, part_acc)
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


PLACES = 132
"""Programs of one wave on an H200, where each fills a multiprocessor: more tiles than needed cost nothing below it."""


def exponent_scale(scale: float) -> float:
    """The factor of q.k for exponents of 2. Raises ValueError for a scale that is not positive."""
    if not scale > 0:
        raise ValueError(f"attention: scale is {scale}; the running maximum needs a positive one")
    return scale * math.log2(math.e)


def padded(size: int) -> int:
    """The width of a tile that holds `size` elements: a power of two, 16 at least."""
    return max(16, 1 << (size - 1).bit_length())


def split_tiles(pairs: int, groups: int, itemsize: int, tree: bool) -> Tiles:
    """Tiles for a pass of `pairs` (row, query head) pairs of a kv head over a context of `groups` groups.

    Those that were fastest in whole passes; docs/measurements.md says of which.
    """
    if itemsize == 4:
        return Tiles(16, 4, 1)
    if pairs <= 32:
        return Tiles(padded(pairs), 4, 3)
    if groups <= NUM_SMALL.value:  # groups of two tiles of keys
        if pairs <= 128:
            return Tiles(32, 8 if tree else 4, 3)
        return Tiles(64, 8, 3) if tree else Tiles(64, 4, 2)
    return Tiles(128, 8, 2) if pairs > 128 and not tree else Tiles(64, 4, 3)


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
    """The two launches for a row bucket in a context class: `attention_split` or `attention_wide`, then what folds.

    Their partial results are m and l, fp32 [rows, heads, num_groups(context)], and acc, [.., head_dim]. `page` counts
    elements of `itemsize` bytes; positions stay below `context`.
    """
    pairs, groups = rows * heads // kv_heads, num_groups(context)
    shapes = {"HEADS": heads, "KV_HEADS": kv_heads, "HEAD_DIM": head_dim, "ROWS": rows, "NUM_GROUPS": groups}
    given: dict[str, Constant] = {
        **shapes,
        "SCALE": exponent_scale(scale),
        "Q_STRIDE": q_stride,
        "TABLE_STRIDE": table_stride,
        "PAGE": page,
    }
    if tiles is None and fits(pairs, groups, head_dim, itemsize):
        split = "attention_wide", attention_wide_work(pairs, groups, kv_heads, PLACES, TREE=tree, **given)
    else:
        split = "attention_split", _split_work(
            pairs, groups, tiles or split_tiles(pairs, groups, itemsize, tree), max_lanes, TREE=tree,
            BD=padded(head_dim), **given,
        )  # fmt: skip
    if tree:
        tail = work(
            (rows, kv_heads), num_warps=8, num_stages=1, DEPTH=8, BG=1 << (heads // kv_heads - 1).bit_length(),
            BD=padded(head_dim), **given,
        )  # fmt: skip
        return [split, ("attention_tail", tail)]
    warps, depth = (4, 8) if groups <= NUM_SMALL.value else (2 if rows > 4 else 4, 32)
    merge = work((rows, heads), num_warps=warps, DEPTH=depth, BD=padded(head_dim), **shapes)
    return [split, ("attention_merge", merge)]


def _split_work(pairs: int, groups: int, cut: Tiles, max_lanes: int, **constants: Constant) -> Work:
    rows, kv_heads = int(constants["ROWS"]), int(constants["KV_HEADS"])
    # A run of one lane ends with a tile that is not full: up to one more tile per further lane.
    needed = -(-pairs // cut.bm)
    most = min(rows, needed + max_lanes - 1)
    row_tiles = max(needed, min(most, PLACES // (kv_heads * groups)))
    return work(
        (kv_heads, row_tiles, groups), num_warps=cut.num_warps, num_stages=cut.num_stages, BM=cut.bm,
        BR=1 << (rows - 1).bit_length(), **constants,
    )  # fmt: skip
