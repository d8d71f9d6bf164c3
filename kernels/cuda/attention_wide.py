"""`attention_split` for many pairs behind a long context: the same arguments, the same bits, about a third less time.

Written in Gluon, Triton's language of layouts and explicit waits, because what makes it fast is an order that Triton's
own pipeliner does not find: while tensor cores multiply the values of one tile, the exponentials of the next are taken
(Shah et al., "FlashAttention-3", 2024, section 3.2), and the copies of tiles run on across the borders of groups.

Letters as in `tandem.kernels.cuda.attention`.
"""

# ruff: noqa: E741 - m, l and acc are what every paper on online softmax calls them.
from __future__ import annotations

from triton import constexpr_function
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from tandem.kernels.cuda.groups import NUM_SMALL, TILE, first_position, group_of
from tandem.kernels.cuda.launch import Constant, Work, kernel, work
from tandem.kernels.cuda.softmax import COLUMNS, finite

WARPS = gl.constexpr(8)
BM = 128
"""Pairs of a tile: two warp groups of 64, which share each copy of keys and values."""
# Older names, of Triton up to 3.6.
barrier = getattr(gl, "barrier", None) or gl.thread_barrier
load_async = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared


@constexpr_function
def _layout(rows, columns):
    """Of a tile in shared memory, as whole groups of warps multiply it."""
    return gl.NVMMASharedLayout.get_default_for([rows, columns], gl.bfloat16)


@constexpr_function
def _accumulator(columns):
    """Of a product's result, 64 rows of each group of four warps."""
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[WARPS, 1], instr_shape=[16, columns, 16])


@gluon.jit
def _of_turn(turn, last_group, place, places):
    """The group that a place takes in a turn, from the last one down, to and fro: all have about as much. < 0: none."""
    return last_group - turn * places - gl.where(turn % 2 == 0, place, places - 1 - place)


@gluon.jit
def _behind(turn, group, start, end, last_group, place, places):
    """(turn, group, first position) of the tile that a place takes behind the one at `start`."""
    over = start + TILE >= gl.minimum(end, first_position(group + 1))
    turn = gl.where(over, turn + 1, turn)
    group = gl.where(over, _of_turn(turn, last_group, place, places), group)
    return turn, group, gl.where(over, first_position(gl.maximum(group, 0)), start + TILE)


@gluon.jit
def _fetch(shared, cache, table, at, start, end, WRITTEN: gl.constexpr, D: gl.constexpr, PAGE: gl.constexpr):
    """Begins to copy the tile at `start` of a plane; all of it is there if WRITTEN, else what is below `end`."""
    LOAD: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [WARPS, 1], [1, 0])
    place, d = gl.arange(0, TILE, gl.SliceLayout(1, LOAD)), gl.arange(0, D, gl.SliceLayout(0, LOAD))
    # Offsets of 64 bits, which the compiler splits in one of a thread and constants: addresses take few registers.
    offset = place.to(gl.int64)[:, None] * D + d.to(gl.int64)[None, :]
    tile = cache + gl.load(table + start // TILE).to(gl.int64) * PAGE + at
    if WRITTEN:
        load_async(shared, tile + offset)
    else:
        load_async(shared, tile + offset, mask=(start + place < end)[:, None])
    async_copy.commit_group()


@gluon.jit
def _weighed(s, m, SCALE: gl.constexpr):
    """What `take_tile` makes of the scores of a tile, bit for bit -> (the new m, by how much what was summed shrinks,
    the exponentials)."""
    larger = gl.maximum(m, gl.max(s, 1) * SCALE)
    zero = finite(larger)
    p = gl.exp2(gl.fma(s, gl.full_like(s, SCALE), gl.full_like(s, 0.0) - zero[:, None]))
    return larger, gl.exp2(m - zero), p


@gluon.jit
def _masked(s, start, whole, seen, TREE: gl.constexpr, S: gl.constexpr):
    """Scores of the tile at `start`, -inf where a pair does not see; below `whole` all pairs see all."""
    if not TREE:  # noqa: SIM102 - the compiler's
        if start + TILE > whole:
            place = start + gl.arange(0, TILE, gl.SliceLayout(0, S))
            s = gl.where(place[None, :] <= seen[:, None], s, float("-inf"))
    return s


@gluon.jit
def _product(p, b, sums, parent: gl.constexpr):
    """Begins sums + p b with p from registers."""
    return warpgroup_mma(gl.convert_layout(p, gl.DotOperandLayout(0, parent, 2)), b, sums, is_async=True)


@gluon.jit
def _store(
    m, l, acc, part_m, sums, part_acc, pair, low, high, kv_head, group,
    S: gl.constexpr, L: gl.constexpr, O: gl.constexpr, PAIRS: gl.constexpr, D: gl.constexpr, NUM_GROUPS: gl.constexpr,
):  # fmt: skip
    """A group's results for the pairs low..high-1 of those from `pair` on."""
    first = (kv_head * NUM_GROUPS + group) * PAIRS
    BM: gl.constexpr = part_acc.shape[0]
    row = pair + gl.arange(0, BM, gl.SliceLayout(1, S))
    gl.store(m + first + row, part_m, mask=(row >= low) & (row < high))
    row = pair + gl.arange(0, BM, gl.SliceLayout(1, L))
    gl.store(l + first + row, gl.max(sums, 1), mask=(row >= low) & (row < high))
    row, d = pair + gl.arange(0, BM, gl.SliceLayout(1, O)), gl.arange(0, D, gl.SliceLayout(0, O))
    inside = ((row >= low) & (row < high))[:, None]
    gl.store(acc + (first + row)[:, None] * D + d[None, :], part_acc, mask=inside)


@gluon.jit
def _take_lane(
    queries, k, v, ones, k_cache, v_cache, table, m, l, acc, seen, end, whole, group, last_group, place, places, pair,
    low, high, kv_head, TREE: gl.constexpr, D: gl.constexpr, SCALE: gl.constexpr, PAIRS: gl.constexpr,
    NUM_GROUPS: gl.constexpr, PAGE: gl.constexpr, BM: gl.constexpr,
):  # fmt: skip
    """What a place does for one lane: its groups from `group` on, whose results the pairs low..high-1 get.

    `queries` [BM, D], three tiles of k and two of v, and `ones` [TILE, COLUMNS] stand in shared memory. In each turn
    the scores of a tile and the values of the one before are multiplied while the exponentials of the scores are taken.
    Keys are under way for two turns, since the device's memory takes longer than one to give all that a turn reads.
    """
    S: gl.constexpr = _accumulator(TILE)
    O: gl.constexpr = _accumulator(D)
    L: gl.constexpr = _accumulator(COLUMNS)
    at = kv_head * (TILE * D)
    start = first_position(group)
    barrier()  # the last lane's tiles are no longer read
    _fetch(k.index(0), k_cache, table, at, start, end, TREE, D, PAGE)
    turn, next_group, next_start = _behind(0, group, start, end, last_group, place, places)
    _fetch(k.index(1), k_cache, table, at, next_start, end, TREE, D, PAGE)
    _fetch(v.index(0), v_cache, table, at, start, end, TREE, D, PAGE)
    turn, third_group, third_start = _behind(turn, next_group, next_start, end, last_group, place, places)
    _fetch(k.index(2), k_cache, table, at, third_start, end, TREE, D, PAGE)
    async_copy.wait_group(3)
    fence_async_shared()
    barrier()
    no_scores = gl.zeros([BM, TILE], gl.float32, S)
    s = warpgroup_mma(queries, k.index(0).permute((1, 0)), no_scores, use_acc=False, is_async=True)
    s = _masked(warpgroup_mma_wait(0, deps=[s]), start, whole, seen, TREE, S)
    nothing = gl.full([BM], float("-inf"), gl.float32, gl.SliceLayout(1, S))
    part_m, shrink, weights = _weighed(s, nothing, SCALE)
    p = weights.to(gl.bfloat16)
    sums, part_acc = gl.zeros([BM, COLUMNS], gl.float32, L), gl.zeros([BM, D], gl.float32, O)
    key, stage = 1, 0
    while next_group >= 0:
        async_copy.wait_group(2)
        barrier()  # keys are seen by all, and all are done with the tiles of the turn before
        s = warpgroup_mma(queries, k.index(key).permute((1, 0)), no_scores, use_acc=False, is_async=True)
        async_copy.wait_group(1)
        barrier()
        run_sums, run_acc = _product(p, ones, sums, L), _product(p, v.index(stage), part_acc, O)
        over, after, after_start = _behind(turn, third_group, third_start, end, last_group, place, places)
        free = gl.where(key == 0, 2, key - 1)
        _fetch(v.index(1 - stage), v_cache, table, at, next_start, end, TREE, D, PAGE)
        _fetch(k.index(free), k_cache, table, at, after_start, end, TREE, D, PAGE)
        s = _masked(warpgroup_mma_wait(2, deps=[s]), next_start, whole, seen, TREE, S)
        border, before_m = next_group != group, part_m
        part_m, shrink, weights = _weighed(s, gl.where(border, nothing, part_m), SCALE)
        if border:
            part_acc, sums = warpgroup_mma_wait(0, deps=[run_acc, run_sums])
            _store(
                m, l, acc, before_m, sums, part_acc, pair, low, high, kv_head, group, S, L, O, PAIRS, D, NUM_GROUPS
            )  # fmt: skip
            sums, part_acc = gl.zeros([BM, COLUMNS], gl.float32, L), gl.zeros([BM, D], gl.float32, O)
        else:
            sums, part_acc = warpgroup_mma_wait(0, deps=[run_sums, run_acc])
            sums = sums * gl.convert_layout(shrink, gl.SliceLayout(1, L))[:, None]
            part_acc = part_acc * gl.convert_layout(shrink, gl.SliceLayout(1, O))[:, None]
        p = weights.to(gl.bfloat16)
        turn, group, next_group, next_start, third_group, third_start = (
            over, next_group, third_group, third_start, after, after_start,
        )  # fmt: skip
        key, stage = gl.where(key == 2, 0, key + 1), 1 - stage
    async_copy.wait_group(0)
    barrier()
    sums, part_acc = _product(p, ones, sums, L), _product(p, v.index(stage), part_acc, O)
    sums, part_acc = warpgroup_mma_wait(0, deps=[sums, part_acc])
    _store(m, l, acc, part_m, sums, part_acc, pair, low, high, kv_head, group, S, L, O, PAIRS, D, NUM_GROUPS)


@kernel("<q <k_cache <v_cache <position <lane <prefix <block_table <count >m >l >acc")
@gluon.jit
def attention_wide(
    q, k_cache, v_cache, position, lane, prefix, block_table, count, m, l, acc,
    TREE: gl.constexpr, ROWS: gl.constexpr, HEADS: gl.constexpr, KV_HEADS: gl.constexpr, HEAD_DIM: gl.constexpr,
    SCALE: gl.constexpr, NUM_GROUPS: gl.constexpr, Q_STRIDE: gl.constexpr, TABLE_STRIDE: gl.constexpr,
    PAGE: gl.constexpr, BM: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """As `attention_split`, of bf16. Grid (kv heads, tiles of BM pairs, places): a place takes a group in each turn."""
    G: gl.constexpr = HEADS // KV_HEADS
    D: gl.constexpr = HEAD_DIM
    S: gl.constexpr = _accumulator(TILE)
    LOAD: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [WARPS, 1], [1, 0])
    if PDL:
        gdc_launch_dependents()
    kv_head, pair, place, places = gl.program_id(0), gl.program_id(1) * BM, gl.program_id(2), gl.num_programs(2)
    rows = gl.load(count)
    if PDL:
        gdc_wait()
    k = gl.allocate_shared_memory(gl.bfloat16, [3, TILE, D], _layout(TILE, D))
    v = gl.allocate_shared_memory(gl.bfloat16, [2, TILE, D], _layout(TILE, D))
    queries = gl.allocate_shared_memory(gl.bfloat16, [BM, D], _layout(BM, D))
    ones = gl.allocate_shared_memory(gl.bfloat16, [TILE, COLUMNS], _layout(TILE, COLUMNS))
    ones.store(gl.full([TILE, COLUMNS], 1.0, gl.bfloat16, gl.BlockedLayout([1, 2], [4, 8], [WARPS, 1], [1, 0])))
    here, behind = pair // G, gl.minimum((pair + BM - 1) // G + 1, rows)
    if here < behind:
        own, d = pair + gl.arange(0, BM, gl.SliceLayout(1, LOAD)), gl.arange(0, D, gl.SliceLayout(0, LOAD))
        at = q + (own // G * Q_STRIDE + (kv_head * G + own % G) * D)[:, None] + d[None, :]
        queries.store(gl.load(at, mask=(own < rows * G)[:, None], other=0.0))
    row = (pair + gl.arange(0, BM, gl.SliceLayout(1, S))) // G
    lanes = gl.load(lane + row, mask=row < rows, other=-1)
    seen = gl.load(position + row, mask=row < rows, other=0)
    while here < behind:  # the rows of one lane after the other
        current, low = gl.load(lane + here), here * G
        here = gl.max(gl.where(lanes == current, row, -1), 0) + 1
        if TREE:
            end = gl.load(prefix + here - 1) // TILE * TILE
            whole = end
        else:
            end = gl.load(position + here - 1) + 1
            whole = (gl.load(position + low // G) + 1) // TILE * TILE
        table, last_group = block_table + current * TABLE_STRIDE, group_of(end - 1)
        group = _of_turn(0, last_group, place, places)
        if (end > 0) & (group >= 0):
            _take_lane(
                queries, k, v, ones, k_cache, v_cache, table, m, l, acc, seen, end, whole, group, last_group, place,
                places, pair, low, here * G, kv_head, TREE, D, SCALE, ROWS * G, NUM_GROUPS, PAGE, BM,
            )  # fmt: skip


def fits(pairs: int, groups: int, head_dim: int, itemsize: int) -> bool:
    """Whether it serves passes of `pairs` pairs of a kv head over `groups` groups, and is the faster one there."""
    return pairs > BM // 2 and groups > NUM_SMALL.value and head_dim in (64, 128, 256) and itemsize == 2


def attention_wide_work(pairs: int, groups: int, kv_heads: int, places: int, **constants: Constant) -> Work:
    """Its launch by as many programs as a GPU of `places` multiprocessors holds at once, one on each."""
    tiles = -(-pairs // BM)
    grid = kv_heads, tiles, max(1, min(groups, places // (kv_heads * tiles)))
    return work(grid, num_warps=WARPS.value, num_stages=2, BM=BM, **constants)
