"""Paged attention of prefill chunks in one launch, with the bits of `attention_split` and `attention_merge`.

A program holds one tile of (row, query head) pairs and walks the positions in order, folding each group as it ends.
"""

# ruff: noqa: E741 - m, l and acc are what every paper on online softmax calls them.
from __future__ import annotations

import triton
import triton.language as tl

from tandem.kernels.cuda.attention import Tiles, exponent_scale, padded
from tandem.kernels.cuda.attention_tiles import load_rows
from tandem.kernels.cuda.groups import TILE, first_position, group_of
from tandem.kernels.cuda.launch import Work, kernel, work
from tandem.kernels.cuda.order import begin
from tandem.kernels.cuda.softmax import begun, empty, ended, fold, take_tile


@triton.jit
def _walk(
    rows, k_cache, v_cache, table, kv_head, own, first, end, m, sums, acc,
    MASKED: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, SCALE: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """Takes the positions first..end-1, all of one group, into (m, sums, acc); all pairs see all of them unless MASKED,
    where pair i sees those up to own[i]."""
    place = tl.arange(0, TILE)
    next_page = tl.load(table + first // TILE, mask=end > first, other=0)
    for start in range(first, end, TILE):
        page = next_page.to(tl.int64) * PAGE + kv_head * TILE * D
        next_page = tl.load(table + start // TILE + 1, mask=end - start > TILE, other=0)
        if MASKED:
            written = start + place < end
            k = load_rows(k_cache + page, place * D, written, D, BD)
            v = load_rows(v_cache + page, place * D, written, D, BD)
            visible = (start + place)[None, :] <= own[:, None]
            m, sums, acc = take_tile(rows, k, v, visible, m, sums, acc, SCALE)
        else:
            k = load_rows(k_cache + page, place * D, None, D, BD)
            v = load_rows(v_cache + page, place * D, None, D, BD)
            m, sums, acc = take_tile(rows, k, v, None, m, sums, acc, SCALE)
    return m, sums, acc


@kernel("<q <k_cache <v_cache <position <lane <block_table <count >y")
@triton.jit
def attention_chunk(
    q, k_cache, v_cache, position, lane, block_table, count, y,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BD: tl.constexpr, SCALE: tl.constexpr,
    Q_STRIDE: tl.constexpr, TABLE_STRIDE: tl.constexpr, PAGE: tl.constexpr, BM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """q [rows, Q_STRIDE], caches at this layer's planes of page 0 (elements PAGE apart), position and lane [rows],
    block_table [lanes, TABLE_STRIDE], count [1] int32 -> y [rows, HEADS * HEAD_DIM] in y's own type.

    Grid (kv heads, tiles of BM pairs), the last rows, which see most, first. Rows of one lane stand together.
    """
    num_rows, kv_head = begin(count, PDL), tl.program_id(0)
    G: tl.constexpr = HEADS // KV_HEADS
    first_pair = (tl.num_programs(1) - 1 - tl.program_id(1)) * BM
    if first_pair < num_rows * G:
        pair = first_pair + tl.arange(0, BM)
        row, head, inside, d = pair // G, kv_head * G + pair % G, pair < num_rows * G, tl.arange(0, BD)
        rows = load_rows(q, row * Q_STRIDE + head * HEAD_DIM, inside, HEAD_DIM, BD)
        lanes = tl.load(lane + row, mask=inside, other=-1)
        positions = tl.load(position + row, mask=inside, other=-1)
        all_m, all_l, all_acc = empty(BM, BD)
        behind = tl.minimum(first_pair + BM - 1, num_rows * G - 1) // G + 1
        here = first_pair // G
        while here < behind:
            current = tl.load(lane + here)
            of_lane = lanes == current
            # A pair of another lane, or of no row, sees nothing: what it has stays as it is.
            own = tl.where(of_lane, positions, -1)
            end = tl.max(own, 0) + 1
            whole = (tl.min(own, 0) + 1) // TILE * TILE
            table = block_table + current * TABLE_STRIDE
            for group in range(group_of(end - 1) + 1):
                m, l, acc = empty(BM, BD)
                m, sums, acc = begun(m, l, acc)
                first, behind_group = first_position(group), tl.minimum(end, first_position(group + 1))
                all_see = tl.maximum(first, tl.minimum(whole, behind_group))
                m, sums, acc = _walk(
                    rows, k_cache, v_cache, table, kv_head, own, first, all_see, m, sums, acc,
                    False, HEAD_DIM, BD, SCALE, PAGE,
                )  # fmt: skip
                m, sums, acc = _walk(
                    rows, k_cache, v_cache, table, kv_head, own, all_see, behind_group, m, sums, acc,
                    True, HEAD_DIM, BD, SCALE, PAGE,
                )  # fmt: skip
                m, l, acc = ended(m, sums, acc)
                all_m, all_l, all_acc = fold(all_m, all_l, all_acc, m, l, acc)
            here = tl.max(tl.where(of_lane, row, -1), 0) + 1
        result = (all_acc / tl.where(inside, all_l, 1.0)[:, None]).to(y.dtype.element_ty)
        at = row.to(tl.int64) * (HEADS * HEAD_DIM) + head * HEAD_DIM
        tl.store(y + at[:, None] + d[None, :], result, mask=inside[:, None] & (d < HEAD_DIM)[None, :])


def chunk_tiles(head_dim: int, itemsize: int) -> Tiles:
    if itemsize == 4:
        return Tiles(16, 4, 1)
    return Tiles(64, 4, 2) if head_dim > 128 else Tiles(128, 8, 3)


def attention_chunk_work(
    rows: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    scale: float,
    q_stride: int,
    table_stride: int,
    page: int,
    itemsize: int,
    tiles: Tiles | None = None,
) -> Work:
    """The launch for a chunk of up to `rows` rows in any context; `page` counts elements of `itemsize` bytes."""
    cut = tiles or chunk_tiles(head_dim, itemsize)
    return work(
        (kv_heads, -(-rows * heads // kv_heads // cut.bm)), num_warps=cut.num_warps, num_stages=cut.num_stages,
        HEADS=heads, KV_HEADS=kv_heads, HEAD_DIM=head_dim, BD=padded(head_dim), SCALE=exponent_scale(scale),
        Q_STRIDE=q_stride, TABLE_STRIDE=table_stride, PAGE=page, BM=cut.bm,
    )  # fmt: skip
