"""The gated delta rule on CUDA, for rows that stay and for rows that may: the definitions of `tandem.kernels.delta`.

A program walks the rows of one lane in order with some columns of one value head's state in registers. Keys and queries
come of length one, as `recurrent_inputs` makes them. At a branch of a tree the state of the row above is made again
from the slot's, by the path's keys, u and decays: half the arithmetic of a row each, and operands that lie in the
first-level cache. States kept instead would move the whole of a layer's states through the second-level cache twice a
branch, and push out of it the weights that the next product has asked for.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tandem.kernels.cuda.delta_tiles import (
    StateTiles,
    added,
    deal,
    faded,
    load_head,
    load_state,
    places,
    stepped,
    store_state,
)
from tandem.kernels.cuda.kv import power_of_two
from tandem.kernels.cuda.launch import Work, kernel, work
from tandem.kernels.cuda.order import let_next, wait

MAX_VERIFY_ROWS = 32
"""Rows of a path are bits of one number."""
AHEAD = tl.constexpr(4)
"""Rows whose inputs are under way at once: a row's arithmetic takes less time than memory does to answer."""


@triton.jit
def run_of(own, lane, rows, BR: tl.constexpr):
    """(first row, number of rows) of lane `own` in a pass of `rows` rows."""
    i = tl.arange(0, BR)
    here = tl.load(lane + i, mask=i < rows, other=-1) == own
    return tl.min(tl.where(here, i, BR), 0), tl.sum(here.to(tl.int32), 0)


@triton.jit
def _run(lane, count, BR: tl.constexpr):
    """(lane, first row, number of rows) of this program; the first row is one of BR also where there are none."""
    rows = tl.load(count)
    if BR == 1:
        own, first, number = tl.where(rows > 0, tl.load(lane), 0), rows * 0, rows
    else:
        own = tl.program_id(1)
        first, number = run_of(own, lane, rows, BR)
        first = tl.minimum(first, BR - 1)
    return own, first, number


@triton.jit
def _row(
    q, k, v, decay, beta, row, head, column,
    HEADS: tl.constexpr, GROUP: tl.constexpr, Q_STRIDE: tl.constexpr, K_STRIDE: tl.constexpr, V_STRIDE: tl.constexpr,
    DK: tl.constexpr, DV: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """What a row brings to a value head: q and k [BK], v [THREADS] by column, decay, beta."""
    at = row.to(tl.int64)
    return (
        load_head(q + at * Q_STRIDE + head // GROUP * DK, DK, BK),
        load_head(k + at * K_STRIDE + head // GROUP * DK, DK, BK),
        tl.load(v + at * V_STRIDE + head * DV + column, mask=column < DV, other=0.0),
        tl.load(decay + at * HEADS + head),
        tl.load(beta + at * HEADS + head),
    )


@triton.jit
def _rows_ahead(
    q, k, v, decay, beta, first, last, head, column,
    HEADS: tl.constexpr, GROUP: tl.constexpr, Q_STRIDE: tl.constexpr, K_STRIDE: tl.constexpr, V_STRIDE: tl.constexpr,
    DK: tl.constexpr, DV: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """What each of the AHEAD rows from `first` on brings, `last` again and again behind it."""
    rows = ()
    for i in tl.static_range(AHEAD):
        row = _row(
            q, k, v, decay, beta, tl.minimum(first + i, last), head, column, HEADS, GROUP, Q_STRIDE, K_STRIDE, V_STRIDE,
            DK, DV, BK,
        )  # fmt: skip
        rows = rows + (row,)  # noqa: RUF005 - Triton knows no star
    return rows


@kernel("<q <k <v <decay <beta <state_slot <lane <position <count !state >y")
@triton.jit
def delta_rule(
    q, k, v, decay, beta, state_slot, lane, position, count, state, y,
    BR: tl.constexpr, HEADS: tl.constexpr, GROUP: tl.constexpr, Q_STRIDE: tl.constexpr,
    K_STRIDE: tl.constexpr, V_STRIDE: tl.constexpr, Y_STRIDE: tl.constexpr, SLOT: tl.constexpr, DK: tl.constexpr,
    DV: tl.constexpr, PARTS: tl.constexpr, COLUMNS: tl.constexpr, WARPS: tl.constexpr, EACH: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """q [rows, Q_STRIDE], k and v alike, decay and beta [rows, HEADS] fp32; state_slot [lanes], lane and position
    [rows], count [1] int32; state fp32, this layer's [HEADS, DK, DV] in slot 0 and SLOT elements further in the next
    -> y [rows, Y_STRIDE] in y's own type, and every lane's state behind its last row. Value head h reads key head
    h // GROUP. Grid (heads * blocks of columns, lanes or one row)."""
    let_next(PDL)
    BLOCKS: tl.constexpr = (DV + WARPS * COLUMNS - 1) // (WARPS * COLUMNS)
    head = tl.program_id(0) // BLOCKS
    part, column = places(tl.program_id(0) % BLOCKS, PARTS, COLUMNS, WARPS)
    own, first, number = _run(lane, count, BR)
    at = state + tl.load(state_slot + own).to(tl.int64) * SLOT + head * (DK * DV)
    held = load_state(at, part, column, (number > 0) & (tl.load(position + first) > 0), PARTS, EACH, DK, DV)
    wait(PDL)
    if number > 0:
        last = first + number - 1
        following = _rows_ahead(
            q, k, v, decay, beta, first, last, head, column, HEADS, GROUP, Q_STRIDE, K_STRIDE, V_STRIDE, DK, DV,
            PARTS * EACH,
        )  # fmt: skip
        for step in range(number):
            row = first + step
            own_q, own_k, own_v, own_decay, own_beta = following[0]
            if BR > 1:
                behind = _row(
                    q, k, v, decay, beta, tl.minimum(row + AHEAD, last), head, column, HEADS, GROUP, Q_STRIDE,
                    K_STRIDE, V_STRIDE, DK, DV, PARTS * EACH,
                )  # fmt: skip
                following = following[1], following[2], following[3], behind
            keys = deal(own_k, PARTS, COLUMNS, WARPS, EACH)
            queries = deal(own_q, PARTS, COLUMNS, WARPS, EACH)
            held, _u, o = stepped(held, keys, queries, own_v, own_decay, own_beta, PARTS, COLUMNS, WARPS, EACH)
            to = y + row.to(tl.int64) * Y_STRIDE + head * DV + column
            tl.store(to, o.to(y.dtype.element_ty), mask=(part == 0) & (column < DV))
        store_state(at, held, part, column, True, PARTS, EACH, DK, DV)


@triton.jit
def _lowest(mask):
    """The place of the lowest bit of an int64 of up to 32 bits, not zero: the exponent of that bit as a float."""
    return ((mask & -mask).to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127


@triton.jit
def _path(above, before, first, parent):
    """The rows from the lane's first down to row `above`, a bit each; `before` are those of some row, most often of a
    descendant of it, whose path says it all."""
    bit = (above - first).to(tl.int64)
    path = before & ((tl.full((), 2, tl.int64) << bit) - 1)
    if (before >> bit) & 1 == 0:
        path = path * 0
        while above >= first:
            path = path | (tl.full((), 1, tl.int64) << (above - first).to(tl.int64))
            above = tl.load(parent + above)
    return path


@triton.jit
def load_factors(
    k, u_factor, decay, row, head, column,
    HEADS: tl.constexpr, GROUP: tl.constexpr, K_STRIDE: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    BK: tl.constexpr,
):  # fmt: skip
    """What an earlier row did to a value head's state: k [BK], u [THREADS] by column, decay."""
    at = row.to(tl.int64)
    u = tl.load(u_factor + at * (HEADS * DV) + head * DV + column, mask=column < DV, other=0.0)
    return load_head(k + at * K_STRIDE + head // GROUP * DK, DK, BK), u, tl.load(decay + at * HEADS + head)


@triton.jit
def _replayed(
    held, path, first, k, u_factor, decay, head, column,
    HEADS: tl.constexpr, GROUP: tl.constexpr, K_STRIDE: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    PARTS: tl.constexpr, COLUMNS: tl.constexpr, WARPS: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """The state behind the rows of `path`, not none, from that before them."""
    following = load_factors(
        k, u_factor, decay, first + _lowest(path), head, column, HEADS, GROUP, K_STRIDE, DK, DV, PARTS * EACH
    )  # fmt: skip
    while path != 0:
        own_k, u, own_decay = following
        rest = path & (path - 1)
        following = load_factors(
            k, u_factor, decay, first + _lowest(tl.where(rest != 0, rest, path)), head, column, HEADS, GROUP, K_STRIDE,
            DK, DV, PARTS * EACH,
        )  # fmt: skip
        held = added(faded(held, own_decay, EACH), deal(own_k, PARTS, COLUMNS, WARPS, EACH), u, EACH)
        path = rest
    return held


@kernel("<q <k <v <decay <beta <state_slot <lane <position <parent <count <state !u_factor >y")
@triton.jit
def delta_verify(
    q, k, v, decay, beta, state_slot, lane, position, parent, count, state, u_factor, y,
    TREE: tl.constexpr, BR: tl.constexpr, HEADS: tl.constexpr, GROUP: tl.constexpr,
    Q_STRIDE: tl.constexpr, K_STRIDE: tl.constexpr, V_STRIDE: tl.constexpr, Y_STRIDE: tl.constexpr,
    SLOT: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, PARTS: tl.constexpr, COLUMNS: tl.constexpr,
    WARPS: tl.constexpr, EACH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """As `delta_rule`, with `parent` [rows] int32 read where TREE; the state is left, and u_factor fp32
    [rows, HEADS, DV] gets each row's u. Of the commit's other factors, `k` and `decay` themselves are kept by whoever
    gave them. At most 32 rows of a lane."""
    let_next(PDL)
    BLOCKS: tl.constexpr = (DV + WARPS * COLUMNS - 1) // (WARPS * COLUMNS)
    head = tl.program_id(0) // BLOCKS
    part, column = places(tl.program_id(0) % BLOCKS, PARTS, COLUMNS, WARPS)
    own, first, number = _run(lane, count, BR)
    at = state + tl.load(state_slot + own).to(tl.int64) * SLOT + head * (DK * DV)
    entry = load_state(at, part, column, (number > 0) & (tl.load(position + first) > 0), PARTS, EACH, DK, DV)
    wait(PDL)
    if number > 0:
        held = entry
        path = tl.full((), 0, tl.int64)
        last = first + number - 1
        following = _rows_ahead(
            q, k, v, decay, beta, first, last, head, column, HEADS, GROUP, Q_STRIDE, K_STRIDE, V_STRIDE, DK, DV,
            PARTS * EACH,
        )  # fmt: skip
        for step in range(number):
            row = first + step
            own_q, own_k, own_v, own_decay, own_beta = following[0]
            if BR > 1:
                behind = _row(
                    q, k, v, decay, beta, tl.minimum(row + AHEAD, last), head, column, HEADS, GROUP, Q_STRIDE,
                    K_STRIDE, V_STRIDE, DK, DV, PARTS * EACH,
                )  # fmt: skip
                following = following[1], following[2], following[3], behind
            if TREE:
                above = tl.load(parent + row)
                if (step > 0) & (above != row - 1):
                    tl.debug_barrier()  # u of the rows before was written by other threads
                    path = _path(above, path, first, parent)
                    held = _replayed(
                        entry, path, first, k, u_factor, decay, head, column, HEADS, GROUP, K_STRIDE, DK, DV, PARTS,
                        COLUMNS, WARPS, EACH,
                    )  # fmt: skip
                path = path | (tl.full((), 1, tl.int64) << (row - first).to(tl.int64))
            keys = deal(own_k, PARTS, COLUMNS, WARPS, EACH)
            queries = deal(own_q, PARTS, COLUMNS, WARPS, EACH)
            held, u, o = stepped(held, keys, queries, own_v, own_decay, own_beta, PARTS, COLUMNS, WARPS, EACH)
            mine, to = (part == 0) & (column < DV), head * DV + column
            tl.store(u_factor + row.to(tl.int64) * (HEADS * DV) + to, u, mask=mine)
            tl.store(y + row.to(tl.int64) * Y_STRIDE + to, o.to(y.dtype.element_ty), mask=mine)


def _work(
    rows: int, lanes: int, key_heads: int, heads: int, dk: int, dv: int, slot: int, others: dict[str, int]
) -> Work:
    tiles = StateTiles(dk, dv)
    return work(
        (heads * tiles.blocks, 1 if rows == 1 else lanes), num_warps=tiles.warps, num_stages=1, BR=power_of_two(rows),
        HEADS=heads, GROUP=heads // key_heads, SLOT=slot, **others, **tiles.constants(),
    )  # fmt: skip


def delta_rule_work(
    *,
    rows: int,
    lanes: int,
    key_heads: int,
    heads: int,
    dk: int,
    dv: int,
    q_stride: int,
    k_stride: int,
    v_stride: int,
    y_stride: int,
    slot: int,
) -> Work:
    """Rows of any lane below `lanes`; `heads` counts value heads, strides and `slot` elements."""
    strides = {"Q_STRIDE": q_stride, "K_STRIDE": k_stride, "V_STRIDE": v_stride, "Y_STRIDE": y_stride}
    return _work(rows, lanes, key_heads, heads, dk, dv, slot, strides)


def delta_verify_work(
    *,
    rows: int,
    tree: bool,
    lanes: int,
    key_heads: int,
    heads: int,
    dk: int,
    dv: int,
    q_stride: int,
    k_stride: int,
    v_stride: int,
    y_stride: int,
    slot: int,
) -> Work:
    """As `delta_rule_work`, for at most MAX_VERIFY_ROWS rows; without `tree` a lane's rows are a line."""
    assert rows <= MAX_VERIFY_ROWS, f"{rows} rows"
    strides = {"Q_STRIDE": q_stride, "K_STRIDE": k_stride, "V_STRIDE": v_stride, "Y_STRIDE": y_stride}
    branches = tree and rows > 2  # two rows of a lane are a line
    return _work(rows, lanes, key_heads, heads, dk, dv, slot, {**strides, "TREE": branches})
