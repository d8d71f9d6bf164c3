"""What a place of `attention_wide` takes and in which order, and its warps that copy it into shared memory.

Letters as in `tandem.kernels.cuda.attention`. Knows nothing of products.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from tandem.kernels.cuda.groups import TILE, first_position, group_of

WARPS = gl.constexpr(4)
"""Of a group that computes, and of the one that copies."""
KEYS, VALUES = gl.constexpr(3), gl.constexpr(2)
"""Tiles that have room in shared memory."""
load_async = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared  # up to Triton 3.6


@gluon.jit
def _of_turn(turn, last_group, place, places):
    """The group that a place takes in a turn, from the last one down, to and fro: all have about as much. < 0: none."""
    return last_group - turn * places - gl.where(turn % 2 == 0, place, places - 1 - place)


@gluon.jit
def first_tile(end, place, places):
    """(group, first position) where a place begins with positions 0..end-1; group < 0: nowhere."""
    group = gl.where(end > 0, _of_turn(0, group_of(gl.maximum(end, 1) - 1), place, places), -1)
    return group, first_position(gl.maximum(group, 0))


@gluon.jit
def next_tile(turn, group, start, end, place, places):
    """(turn, group, first position) of the tile that a place takes behind the one at `start`."""
    over = start + TILE >= gl.minimum(end, first_position(group + 1))
    turn = gl.where(over, turn + 1, turn)
    group = gl.where(over, _of_turn(turn, group_of(end - 1), place, places), group)
    return turn, group, gl.where(over, first_position(gl.maximum(group, 0)), start + TILE)


@gluon.jit
def lane_rows(here, behind, position, lane, prefix, TREE: gl.constexpr, BM: gl.constexpr):
    """Of the rows of one lane from row `here` on: (lane, row behind them, end of what they see, below which all see
    all), which all groups of warps find alike."""
    i = gl.arange(0, BM, gl.BlockedLayout([BM // 32], [32], [WARPS], [0]))
    current = gl.load(lane + here)
    own = gl.load(lane + here + i, mask=here + i < behind, other=-1)
    after = here + gl.min(gl.where(own == current, BM, i), 0)
    if TREE:
        end = gl.load(prefix + after - 1) // TILE * TILE
        whole = end
    else:
        end = gl.load(position + after - 1) + 1
        whole = (gl.load(position + here) + 1) // TILE * TILE
    return current, after, end, whole


@gluon.jit
def next_room(index, phase, COUNT: gl.constexpr):
    """(index, phase) of the next room of COUNT."""
    over = index == COUNT - 1
    return gl.where(over, 0, index + 1), gl.where(over, phase ^ 1, phase)


@gluon.jit
def _fetch(shared, ready, tile, start, end, WRITTEN: gl.constexpr, D: gl.constexpr):
    """Begins to copy a plane of the tile at `start`; all of it is there if WRITTEN, else what is below `end`."""
    LOAD: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [WARPS, 1], [1, 0])
    place, d = gl.arange(0, TILE, gl.SliceLayout(1, LOAD)), gl.arange(0, D, gl.SliceLayout(0, LOAD))
    # Offsets of 64 bits, which the compiler splits in one of a thread and constants: addresses take few registers.
    offset = place.to(gl.int64)[:, None] * D + d.to(gl.int64)[None, :]
    if WRITTEN:
        load_async(shared, tile + offset)
    else:
        load_async(shared, tile + offset, mask=(start + place < end)[:, None])
    async_copy.mbarrier_arrive(ready, increment_count=False)


@gluon.jit
def copy_tiles(
    k, v, k_ready, k_free, v_ready, v_free, k_cache, v_cache, position, lane, prefix, block_table, here, behind, place,
    places, at, TREE: gl.constexpr, D: gl.constexpr, TABLE_STRIDE: gl.constexpr, PAGE: gl.constexpr, BM: gl.constexpr,
):  # fmt: skip
    """Copies the tiles of every lane as rooms come free, keys a tile ahead of values."""
    key, k_phase, value, v_phase = 0, 1, 0, 1
    v_tile, v_start, v_end = v_cache, -1, 0
    while here < behind:
        current, here, end, _whole = lane_rows(here, behind, position, lane, prefix, TREE, BM)
        table = block_table + current * TABLE_STRIDE
        turn = 0
        group, start = first_tile(end, place, places)
        while group >= 0:
            page = gl.load(table + start // TILE).to(gl.int64) * PAGE + at
            mbarrier.wait(k_free.index(key), k_phase)
            _fetch(k.index(key), k_ready.index(key), k_cache + page, start, end, TREE, D)
            key, k_phase = next_room(key, k_phase, KEYS)
            if v_start >= 0:
                mbarrier.wait(v_free.index(value), v_phase)
                _fetch(v.index(value), v_ready.index(value), v_tile, v_start, v_end, TREE, D)
                value, v_phase = next_room(value, v_phase, VALUES)
            v_tile, v_start, v_end = v_cache + page, start, end
            turn, group, start = next_tile(turn, group, start, end, place, places)
    if v_start >= 0:
        mbarrier.wait(v_free.index(value), v_phase)
        _fetch(v.index(value), v_ready.index(value), v_tile, v_start, v_end, TREE, D)
