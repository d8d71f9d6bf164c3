"""The paged KV cache on CUDA: write the rows of a pass, move accepted rows; definitions in `tandem.kernels.kv`.

Slot s of a lane lies in page block_table[lane, s // 64] at place s % 64; a page holds, layer after layer, K
[KV_HEADS, 64, D] and V [KV_HEADS, 64, D]. Cache pointers stand at a layer's plane in page 0, PAGE elements from page to
page. Knows nothing of attention.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tandem.kernels.cuda.groups import TILE
from tandem.kernels.cuda.launch import Work, kernel, work
from tandem.kernels.cuda.order import begin


@triton.jit
def place_of(block_table, lane, slot, TABLE_STRIDE: tl.constexpr, PAGE: tl.constexpr, D: tl.constexpr):
    """The elements between a cache pointer and a slot's row of kv head 0, int64."""
    page = tl.load(block_table + lane * TABLE_STRIDE + slot // TILE).to(tl.int64)
    return page * PAGE + slot % TILE * D


@kernel("<k <v <lane <slot <block_table <count !k_cache !v_cache")
@triton.jit
def kv_write(
    k, v, lane, slot, block_table, count, k_cache, v_cache,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BH: tl.constexpr, BD: tl.constexpr, K_STRIDE: tl.constexpr,
    V_STRIDE: tl.constexpr, TABLE_STRIDE: tl.constexpr, PAGE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """k [rows, K_STRIDE] and v [rows, V_STRIDE] fp32, lane and slot [rows], block_table [lanes, TABLE_STRIDE], count
    [1] int32 -> the slots' rows in the caches' own type. Grid (rows, blocks of BH kv heads)."""
    rows, row = begin(count, PDL), tl.program_id(0)
    if row < rows:
        at = place_of(block_table, tl.load(lane + row), tl.load(slot + row), TABLE_STRIDE, PAGE, HEAD_DIM)
        head, d = (tl.program_id(1) * BH + tl.arange(0, BH))[:, None], tl.arange(0, BD)[None, :]
        inside, source, target = (head < KV_HEADS) & (d < HEAD_DIM), head * HEAD_DIM + d, head * TILE * HEAD_DIM + d
        new_k = tl.load(k + row * K_STRIDE + source, mask=inside, other=0.0)
        new_v = tl.load(v + row * V_STRIDE + source, mask=inside, other=0.0)
        tl.store(k_cache + at + target, new_k.to(k_cache.dtype.element_ty), mask=inside)
        tl.store(v_cache + at + target, new_v.to(v_cache.dtype.element_ty), mask=inside)


@triton.jit
def _move_rows(cache, source, target, inside, D: tl.constexpr, BD: tl.constexpr):
    """Rows at `source` [moves] to `target` [moves] where `inside`: all are read before any is written."""
    d = tl.arange(0, BD)[None, :]
    there = inside[:, None] & (d < D)
    rows = tl.load(cache + source[:, None] + d, mask=there)
    tl.debug_barrier()
    tl.store(cache + target[:, None] + d, rows, mask=there)


@kernel("<lane <source <target <block_table <count !k_cache !v_cache")
@triton.jit
def kv_move(
    lane, source, target, block_table, count, k_cache, v_cache,
    HEAD_DIM: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, LAYER: tl.constexpr, TABLE_STRIDE: tl.constexpr,
    PAGE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """In order, slot source[i] becomes slot target[i] of lane[i]; all [moves], block_table and count int32.

    Grid (layers, kv heads); caches at layer 0's planes, LAYER elements from layer to layer. Moves that never touch a
    slot written by an earlier one go at once, as those of an accepted path; others one by one.
    """
    num_moves = begin(count, PDL)
    i, j = tl.arange(0, BM)[:, None], tl.arange(0, BM)[None, :]
    own, other = tl.load(lane + i, mask=i < num_moves, other=-1), tl.load(lane + j, mask=j < num_moves, other=-2)
    to, earlier = tl.load(target + i, mask=i < num_moves, other=-1), tl.load(target + j, mask=j < num_moves, other=-2)
    come = tl.load(source + i, mask=i < num_moves, other=-1)
    follows = (j < i) & (own == other) & ((come == earlier) | (to == earlier))
    offset = tl.program_id(0).to(tl.int64) * LAYER + tl.program_id(1) * TILE * HEAD_DIM
    move = tl.arange(0, BM)
    at_once = tl.max(tl.max(follows.to(tl.int32), 1), 0) == 0
    for first in range(tl.where(at_once, tl.minimum(num_moves, 1), num_moves)):
        inside = (move < num_moves) & ((move == first) | (move < tl.where(at_once, BM, 0)))
        lanes = tl.load(lane + move, mask=inside, other=0)
        sources, targets = tl.load(source + move, mask=inside, other=0), tl.load(target + move, mask=inside, other=0)
        table = block_table + lanes * TABLE_STRIDE
        source_page = tl.load(table + sources // TILE, mask=inside, other=0).to(tl.int64) * PAGE
        target_page = tl.load(table + targets // TILE, mask=inside, other=0).to(tl.int64) * PAGE
        source_at = source_page + sources % TILE * HEAD_DIM + offset
        target_at = target_page + targets % TILE * HEAD_DIM + offset
        _move_rows(k_cache, source_at, target_at, inside, HEAD_DIM, BD)
        _move_rows(v_cache, source_at, target_at, inside, HEAD_DIM, BD)
        tl.debug_barrier()


def power_of_two(size: int) -> int:
    """The smallest power of two that is not below `size`."""
    return 1 << (size - 1).bit_length()


def kv_write_work(
    *, rows: int, kv_heads: int, head_dim: int, k_stride: int, v_stride: int, table_stride: int, page: int
) -> Work:
    """One program a row, so that few rows wait for little; strides and `page` count elements."""
    bh = min(4, power_of_two(kv_heads))
    return work(
        (rows, -(-kv_heads // bh)), KV_HEADS=kv_heads, HEAD_DIM=head_dim, BH=bh, BD=power_of_two(head_dim),
        K_STRIDE=k_stride, V_STRIDE=v_stride, TABLE_STRIDE=table_stride, PAGE=page,
    )  # fmt: skip


def kv_move_work(
    *, moves: int, layers: int, kv_heads: int, head_dim: int, layer: int, table_stride: int, page: int
) -> Work:
    """Up to `moves` moves in every layer; `layer` and `page` count elements from layer to layer and page to page."""
    return work(
        (layers, kv_heads), num_warps=8 if moves * head_dim >= 4096 else 4, HEAD_DIM=head_dim,
        BD=power_of_two(head_dim), BM=power_of_two(moves), LAYER=layer, TABLE_STRIDE=table_stride, PAGE=page,
    )  # fmt: skip
