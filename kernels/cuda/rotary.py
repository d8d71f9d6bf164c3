"""Rotary position on CUDA, alone and with the write of K and V fused in; the definition is `tandem.kernels.rotary`.

Dimension i is turned with i + HALF by the row's cos and sin, fp32, products rounded before they are added, so that the
fused kernel and the single one give the same bits; dimensions from 2 HALF on pass through.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tandem.kernels.cuda.groups import TILE
from tandem.kernels.cuda.kv import place_of, power_of_two
from tandem.kernels.cuda.launch import Work, kernel, work
from tandem.kernels.cuda.order import begin


@triton.jit
def turn(first, second, cos, sin):
    """Pairs turned: both members."""
    return first * cos - second * sin, second * cos + first * sin


@triton.jit
def _turn_heads(
    x, cos, sin, y, source, target, head,
    HEADS: tl.constexpr, HALF: tl.constexpr, D: tl.constexpr, BP: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """Heads `head` [BH, 1] of the row at `source` [BH, 1], turned, to `target` [BH, 1]; cos and sin [1, BP]."""
    pair = tl.arange(0, BP)[None, :]
    inside = (head < HEADS) & (pair < HALF)
    first = tl.load(x + source + pair, mask=inside, other=0.0)
    second = tl.load(x + source + HALF + pair, mask=inside, other=0.0)
    kind = y.dtype.element_ty
    first, second = turn(first, second, cos, sin)
    tl.store(y + target + pair, first.to(kind), mask=inside)
    tl.store(y + target + HALF + pair, second.to(kind), mask=inside)
    if 2 * HALF < D:
        rest = 2 * HALF + tl.arange(0, BR)[None, :]
        beyond = (head < HEADS) & (rest < D)
        tl.store(y + target + rest, tl.load(x + source + rest, mask=beyond, other=0.0).to(kind), mask=beyond)


@triton.jit
def _angles(cos, sin, position, HALF: tl.constexpr, BP: tl.constexpr):
    """cos and sin of a position, [1, BP]."""
    pair = tl.arange(0, BP)[None, :]
    at, inside = position.to(tl.int64) * HALF + pair, pair < HALF
    return tl.load(cos + at, mask=inside, other=0.0), tl.load(sin + at, mask=inside, other=0.0)


@kernel("<x <cos <sin <position <count >y")
@triton.jit
def rotary(
    x, cos, sin, position, count, y,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HALF: tl.constexpr, BP: tl.constexpr, BR: tl.constexpr,
    BH: tl.constexpr, X_STRIDE: tl.constexpr, Y_STRIDE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """x [rows, X_STRIDE] fp32, cos and sin [positions, HALF] fp32, position [rows] and count [1] int32
    -> y [rows, Y_STRIDE] in y's own type. Grid (rows, blocks of BH heads)."""
    rows = begin(count, PDL)
    row = tl.program_id(0)
    if row < rows:
        cosine, sine = _angles(cos, sin, tl.load(position + row), HALF, BP)
        head = (tl.program_id(1) * BH + tl.arange(0, BH))[:, None]
        at = head * HEAD_DIM
        _turn_heads(
            x, cosine, sine, y, row * X_STRIDE + at, row * Y_STRIDE + at, head, HEADS, HALF, HEAD_DIM, BP, BR
        )  # fmt: skip


@kernel("<q <k <v <cos <sin <position <lane <slot <block_table <count !k_cache !v_cache >y")
@triton.jit
def rotary_kv_write(
    q, k, v, cos, sin, position, lane, slot, block_table, count, k_cache, v_cache, y,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HALF: tl.constexpr, BD: tl.constexpr,
    BP: tl.constexpr, BR: tl.constexpr, BH: tl.constexpr, Q_STRIDE: tl.constexpr, K_STRIDE: tl.constexpr,
    V_STRIDE: tl.constexpr, Y_STRIDE: tl.constexpr, TABLE_STRIDE: tl.constexpr, PAGE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """`rotary` of q to y, and of k to the cache beside v, as `kv_write` of k turned and v would.

    q, k, v [rows, their STRIDE] fp32. Grid (rows, blocks of BH query heads, then blocks of BH kv heads).
    """
    rows = begin(count, PDL)
    Q_BLOCKS: tl.constexpr = (HEADS + BH - 1) // BH
    row, block = tl.program_id(0), tl.program_id(1)
    if row < rows:
        cosine, sine = _angles(cos, sin, tl.load(position + row), HALF, BP)
        if block < Q_BLOCKS:
            head = (block * BH + tl.arange(0, BH))[:, None]
            at = head * HEAD_DIM
            _turn_heads(
                q, cosine, sine, y, row * Q_STRIDE + at, row * Y_STRIDE + at, head, HEADS, HALF, HEAD_DIM, BP, BR
            )  # fmt: skip
        else:
            place = place_of(block_table, tl.load(lane + row), tl.load(slot + row), TABLE_STRIDE, PAGE, HEAD_DIM)
            head, d = ((block - Q_BLOCKS) * BH + tl.arange(0, BH))[:, None], tl.arange(0, BD)[None, :]
            at, target, inside = head * HEAD_DIM, place + head * TILE * HEAD_DIM, (head < KV_HEADS) & (d < HEAD_DIM)
            new_v = tl.load(v + row * V_STRIDE + at + d, mask=inside, other=0.0)
            tl.store(v_cache + target + d, new_v.to(v_cache.dtype.element_ty), mask=inside)
            _turn_heads(
                k, cosine, sine, k_cache, row * K_STRIDE + at, target, head, KV_HEADS, HALF, HEAD_DIM, BP, BR
            )  # fmt: skip


FEW_ROWS = 32
"""Up to here a program takes few heads, for the latency of one row; above, more, for fewer programs."""


def _shapes(rows: int, heads: int, head_dim: int, half: int) -> dict[str, int]:
    return {
        "HEADS": heads, "HEAD_DIM": head_dim, "HALF": half, "BP": power_of_two(half),
        "BR": power_of_two(max(1, head_dim - 2 * half)), "BH": min(2 if rows <= FEW_ROWS else 8, power_of_two(heads)),
    }  # fmt: skip


def rotary_work(*, rows: int, heads: int, head_dim: int, half: int, x_stride: int, y_stride: int) -> Work:
    """`half` is the width of cos and sin; strides count elements from row to row."""
    shapes = _shapes(rows, heads, head_dim, half)
    blocks = -(-heads // shapes["BH"])
    return work((rows, blocks), num_warps=2, X_STRIDE=x_stride, Y_STRIDE=y_stride, **shapes)


def rotary_kv_write_work(
    *,
    rows: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    half: int,
    q_stride: int,
    k_stride: int,
    v_stride: int,
    y_stride: int,
    table_stride: int,
    page: int,
) -> Work:
    """As `rotary_work`; `page` counts elements of the cache from page to page."""
    shapes = _shapes(rows, heads, head_dim, half)
    blocks = -(-heads // shapes["BH"]) + -(-kv_heads // shapes["BH"])
    return work(
        (rows, blocks), num_warps=2, KV_HEADS=kv_heads, BD=power_of_two(head_dim), Q_STRIDE=q_stride,
        K_STRIDE=k_stride, V_STRIDE=v_stride, Y_STRIDE=y_stride, TABLE_STRIDE=table_stride, PAGE=page, **shapes,
    )  # fmt: skip
