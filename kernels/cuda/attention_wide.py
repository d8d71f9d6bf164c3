"""`attention_split` for many pairs behind a long context: the same arguments, the same bits, about 40 % less time.

Written in Gluon, Triton's language of layouts and explicit waits, for an order that Triton's own pipeliner does not
find: warps that only copy run ahead of two groups of warps that only compute, each with 64 pairs, so that tensor cores
multiply for one while the other takes exponentials (Shah et al., "FlashAttention-3", 2024, section 3.1). In a group of
warps, the values of one tile are multiplied while the exponentials of the next are taken (section 3.2).

Letters as in `tandem.kernels.cuda.attention`.
"""

# ruff: noqa: E741 - m, l and acc are what every paper on online softmax calls them.
from __future__ import annotations

from triton import constexpr_function
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from tandem.kernels.cuda.attention_copies import (
    KEYS,
    VALUES,
    WARPS,
    copy_tiles,
    first_tile,
    lane_rows,
    next_room,
    next_tile,
)
from tandem.kernels.cuda.groups import NUM_SMALL, TILE
from tandem.kernels.cuda.launch import Constant, Work, kernel, work
from tandem.kernels.cuda.softmax import COLUMNS, finite

HALF = gl.constexpr(64)
"""Pairs of a group of warps; two of them share each copy of keys and values."""
BM = 128
COMPUTING, COPYING = gl.constexpr(232), gl.constexpr(40)
"""Registers of a thread, of the 504 that one of each of the three groups of warps has together. The groups that compute
hold 128 of sums, 32 of scores and 16 of weights at once; with 224 they are slower, with 208 products are serialized."""
barrier = getattr(gl, "barrier", None) or gl.thread_barrier  # up to Triton 3.6


@constexpr_function
def _layout(rows, columns):
    """Of a tile in shared memory, as whole groups of warps multiply it."""
    return gl.NVMMASharedLayout.get_default_for([rows, columns], gl.bfloat16)


@constexpr_function
def _accumulator(columns):
    """Of a product's result, 64 rows of a group of four warps."""
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[WARPS, 1], instr_shape=[16, columns, 16])


@gluon.jit
def _weighed(s, m, SCALE: gl.constexpr):
    """What `take_tile` makes of the scores of a tile, bit for bit -> (the new m, by how much what was summed shrinks,
    the exponentials)."""
    larger = gl.maximum(m, gl.max(s, 1) * SCALE)
    zero = finite(larger)
    p = gl.exp2(gl.fma(s, gl.full_like(s, SCALE), gl.full_like(s, 0.0) - zero[:, None]))
    return larger, gl.exp2(m - zero), p


@gluon.jit
def _masked(s, start, whole, position, pair, rows, TREE: gl.constexpr, G: gl.constexpr, S: gl.constexpr):
    """Scores of the tile at `start`, -inf where a pair does not see; below `whole` all pairs see all."""
    if not TREE:  # noqa: SIM102 - the compiler's
        if start + TILE > whole:
            row = (pair + gl.arange(0, HALF, gl.SliceLayout(1, S))) // G
            seen = gl.load(position + row, mask=row < rows, other=0)
            place = start + gl.arange(0, TILE, gl.SliceLayout(0, S))
            s = gl.where(place[None, :] <= seen[:, None], s, float("-inf"))
    return s


@gluon.jit
def _product(p, b, sums, parent: gl.constexpr):
    """Begins sums + p b with p from registers."""
    return warpgroup_mma(gl.convert_layout(p, gl.DotOperandLayout(0, parent, 2)), b, sums, is_async=True)


@gluon.jit
def _scores(queries, k, ready, phase, S: gl.constexpr):
    """Begins the products of queries and the keys that are waited for."""
    mbarrier.wait(ready, phase)
    none = gl.zeros([HALF, TILE], gl.float32, S)
    return warpgroup_mma(queries, k.permute((1, 0)), none, use_acc=False, is_async=True)


@gluon.jit
def _release(free):
    """The room is read by none of this group's warps any more."""
    barrier()
    mbarrier.arrive(free)


@gluon.jit
def _store(
    m, l, acc, part_m, sums, part_acc, pair, low, high, first,
    S: gl.constexpr, L: gl.constexpr, O: gl.constexpr, D: gl.constexpr,
):  # fmt: skip
    """A group's results for the pairs low..high-1 of those from `pair` on; that of pair 0 stands at `first`."""
    row = pair + gl.arange(0, HALF, gl.SliceLayout(1, S))
    gl.store(m + first + row, part_m, mask=(row >= low) & (row < high))
    row = pair + gl.arange(0, HALF, gl.SliceLayout(1, L))
    gl.store(l + first + row, gl.max(sums, 1), mask=(row >= low) & (row < high))
    row, d = pair + gl.arange(0, HALF, gl.SliceLayout(1, O)), gl.arange(0, D, gl.SliceLayout(0, O))
    inside = ((row >= low) & (row < high))[:, None]
    gl.store(acc + (first + row)[:, None] * D + d[None, :], part_acc, mask=inside)


@gluon.jit
def _compute(
    queries, ones, k, v, k_ready, k_free, v_ready, v_free, m, l, acc, position, lane, prefix, here, behind, rows, pair,
    place, places, kv_head, TREE: gl.constexpr, D: gl.constexpr, G: gl.constexpr, SCALE: gl.constexpr,
    PAIRS: gl.constexpr, NUM_GROUPS: gl.constexpr, BM: gl.constexpr,
):  # fmt: skip
    """What a group of warps does for the 64 pairs from `pair` on, lane by lane."""
    S: gl.constexpr = _accumulator(TILE)
    O: gl.constexpr = _accumulator(D)
    L: gl.constexpr = _accumulator(COLUMNS)
    key, k_phase, value, v_phase = 0, 0, 0, 0
    nothing = gl.full([HALF], float("-inf"), gl.float32, gl.SliceLayout(1, S))
    while here < behind:
        low = here * G
        _current, here, end, whole = lane_rows(here, behind, position, lane, prefix, TREE, BM)
        turn = 0
        group, start = first_tile(end, place, places)
        if (group >= 0) & (low < pair + HALF) & (here * G > pair):
            s = _scores(queries, k.index(key), k_ready.index(key), k_phase, S)
            s = _masked(warpgroup_mma_wait(0, deps=[s]), start, whole, position, pair, rows, TREE, G, S)
            _release(k_free.index(key))
            key, k_phase = next_room(key, k_phase, KEYS)
            part_m, shrink, weights = _weighed(s, nothing, SCALE)
            p = weights.to(gl.bfloat16)
            sums, part_acc = gl.zeros([HALF, COLUMNS], gl.float32, L), gl.zeros([HALF, D], gl.float32, O)
            turn, next_group, start = next_tile(turn, group, start, end, place, places)
            while next_group >= 0:
                s = _scores(queries, k.index(key), k_ready.index(key), k_phase, S)
                mbarrier.wait(v_ready.index(value), v_phase)
                run_sums, run_acc = _product(p, ones, sums, L), _product(p, v.index(value), part_acc, O)
                s = _masked(warpgroup_mma_wait(2, deps=[s]), start, whole, position, pair, rows, TREE, G, S)
                _release(k_free.index(key))
                key, k_phase = next_room(key, k_phase, KEYS)
                border, before_m = next_group != group, part_m
                part_m, shrink, weights = _weighed(s, gl.where(border, nothing, part_m), SCALE)
                # The wait stands in both branches: in front of them, the compiler would take exponentials behind it.
                if border:
                    sums, part_acc = warpgroup_mma_wait(0, deps=[run_sums, run_acc])
                    _release(v_free.index(value))
                    first = (kv_head * NUM_GROUPS + group) * PAIRS
                    _store(m, l, acc, before_m, sums, part_acc, pair, low, here * G, first, S, L, O, D)
                    sums, part_acc = gl.zeros([HALF, COLUMNS], gl.float32, L), gl.zeros([HALF, D], gl.float32, O)
                else:
                    sums, part_acc = warpgroup_mma_wait(0, deps=[run_sums, run_acc])
                    _release(v_free.index(value))
                    sums = sums * gl.convert_layout(shrink, gl.SliceLayout(1, L))[:, None]
                    part_acc = part_acc * gl.convert_layout(shrink, gl.SliceLayout(1, O))[:, None]
                value, v_phase = next_room(value, v_phase, VALUES)
                p = weights.to(gl.bfloat16)
                group = next_group
                turn, next_group, start = next_tile(turn, group, start, end, place, places)
            mbarrier.wait(v_ready.index(value), v_phase)
            sums, part_acc = _product(p, ones, sums, L), _product(p, v.index(value), part_acc, O)
            sums, part_acc = warpgroup_mma_wait(0, deps=[sums, part_acc])
            _release(v_free.index(value))
            value, v_phase = next_room(value, v_phase, VALUES)
            first = (kv_head * NUM_GROUPS + group) * PAIRS
            _store(m, l, acc, part_m, sums, part_acc, pair, low, here * G, first, S, L, O, D)
        else:  # a lane of the other group of warps
            while group >= 0:
                mbarrier.wait(k_ready.index(key), k_phase)
                _release(k_free.index(key))
                key, k_phase = next_room(key, k_phase, KEYS)
                mbarrier.wait(v_ready.index(value), v_phase)
                _release(v_free.index(value))
                value, v_phase = next_room(value, v_phase, VALUES)
                turn, group, start = next_tile(turn, group, start, end, place, places)


@kernel("<q <k_cache <v_cache <position <lane <prefix <block_table <count >m >l >acc")
@gluon.jit
def attention_wide(
    q, k_cache, v_cache, position, lane, prefix, block_table, count, m, l, acc,
    TREE: gl.constexpr, ROWS: gl.constexpr, HEADS: gl.constexpr, KV_HEADS: gl.constexpr, HEAD_DIM: gl.constexpr,
    SCALE: gl.constexpr, NUM_GROUPS: gl.constexpr, Q_STRIDE: gl.constexpr, TABLE_STRIDE: gl.constexpr,
    PAGE: gl.constexpr, BM: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """As `attention_split`, of bf16. Grid (kv heads, tiles of BM pairs, places): a place takes a group in each turn,
    the same one of all tiles, so that one copy of its keys and values leaves the device's memory."""
    G: gl.constexpr = HEADS // KV_HEADS
    D: gl.constexpr = HEAD_DIM
    LOAD: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [WARPS, 1], [1, 0])
    if PDL:
        gdc_launch_dependents()
    kv_head, pair, place, places = gl.program_id(0), gl.program_id(1) * BM, gl.program_id(2), gl.num_programs(2)
    rows = gl.load(count)
    if PDL:
        gdc_wait()
    k = gl.allocate_shared_memory(gl.bfloat16, [KEYS, TILE, D], _layout(TILE, D))
    v = gl.allocate_shared_memory(gl.bfloat16, [VALUES, TILE, D], _layout(TILE, D))
    queries = gl.allocate_shared_memory(gl.bfloat16, [2, HALF, D], _layout(HALF, D))
    ones = gl.allocate_shared_memory(gl.bfloat16, [TILE, COLUMNS], _layout(TILE, COLUMNS))
    k_ready = gl.allocate_shared_memory(gl.int64, [KEYS, 1], mbarrier.MBarrierLayout())
    k_free = gl.allocate_shared_memory(gl.int64, [KEYS, 1], mbarrier.MBarrierLayout())
    v_ready = gl.allocate_shared_memory(gl.int64, [VALUES, 1], mbarrier.MBarrierLayout())
    v_free = gl.allocate_shared_memory(gl.int64, [VALUES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(KEYS):
        mbarrier.init(k_ready.index(i), count=WARPS * 32)
        mbarrier.init(k_free.index(i), count=2)
    for i in gl.static_range(VALUES):
        mbarrier.init(v_ready.index(i), count=WARPS * 32)
        mbarrier.init(v_free.index(i), count=2)
    ones.store(gl.full([TILE, COLUMNS], 1.0, gl.bfloat16, gl.BlockedLayout([1, 2], [4, 8], [WARPS, 1], [1, 0])))
    here, behind = pair // G, gl.minimum((pair + BM - 1) // G + 1, rows)
    if here < behind:
        for half in gl.static_range(2):
            own = pair + half * HALF + gl.arange(0, HALF, gl.SliceLayout(1, LOAD))
            at = q + (own // G * Q_STRIDE + (kv_head * G + own % G) * D)[:, None]
            at += gl.arange(0, D, gl.SliceLayout(0, LOAD))[None, :]
            queries.index(half).store(gl.load(at, mask=(own < rows * G)[:, None], other=0.0))
        fence_async_shared()
        gl.warp_specialize(
            [
                (_compute, (
                    queries.index(0), ones, k, v, k_ready, k_free, v_ready, v_free, m, l, acc, position, lane, prefix,
                    here, behind, rows, pair, place, places, kv_head, TREE, D, G, SCALE, ROWS * G, NUM_GROUPS, BM,
                )),
                (_compute, (
                    queries.index(1), ones, k, v, k_ready, k_free, v_ready, v_free, m, l, acc, position, lane, prefix,
                    here, behind, rows, pair + HALF, place, places, kv_head, TREE, D, G, SCALE, ROWS * G, NUM_GROUPS,
                    BM,
                )),
                (copy_tiles, (
                    k, v, k_ready, k_free, v_ready, v_free, k_cache, v_cache, position, lane, prefix, block_table,
                    here, behind, place, places, kv_head * (TILE * D), TREE, D, TABLE_STRIDE, PAGE, BM,
                )),
            ],
            [WARPS, WARPS],
            [COMPUTING, COPYING],
        )  # fmt: skip


def fits(pairs: int, groups: int, head_dim: int, itemsize: int) -> bool:
    """Whether it serves passes of `pairs` pairs of a kv head over `groups` groups, and is the faster one there."""
    return pairs > BM // 2 and groups > NUM_SMALL.value and head_dim in (64, 128, 256) and itemsize == 2


def attention_wide_work(pairs: int, groups: int, kv_heads: int, places: int, **constants: Constant) -> Work:
    """Its launch by as many programs as a GPU of `places` multiprocessors holds at once, one on each."""
    tiles = -(-pairs // BM)
    grid = kv_heads, tiles, max(1, min(groups, places // (kv_heads * tiles)))
    return work(grid, num_warps=WARPS.value, num_stages=2, BM=BM, **constants)
