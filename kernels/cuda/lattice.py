"""The lattice of a draft block on CUDA: its scores and the greedy walk, the definitions of `tandem.kernels.lattice`.

Letters as there. A block's slots stand together, the one behind the anchor first.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tandem.kernels.cuda.kv import power_of_two
from tandem.kernels.cuda.launch import Work, kernel, work
from tandem.kernels.cuda.order import let_next, wait
from tandem.kernels.cuda.pairs import summed

SLOTS = 16
"""Slots that a walk loads at once: those of a block of up to 17 rows."""
THREAD_ELEMENTS = 32
"""Products of a thread, until MAX_WARPS are reached."""
MAX_WARPS = 8


@triton.jit
def _begins(row, inside, position, prefix):
    """Of rows that are slots, where `inside`: whether they stand right behind an anchor."""
    at = tl.load(position + row, mask=inside, other=0)
    return inside & (at - tl.load(prefix + row, mask=inside, other=0) == 1)


@kernel("<candidate <unary <gate <token <output_row <position <prefix <predecessor <successor <count >score")
@triton.jit
def lattice_scores(
    candidate, unary, gate, token, output_row, position, prefix, predecessor, successor, count, score,
    K: tl.constexpr, RANK: tl.constexpr, GATE_STRIDE: tl.constexpr, BK: tl.constexpr, BJ: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """candidate int32 and unary fp32 [slots, K], gate fp32 [slots, GATE_STRIDE], token, position, prefix int32 [rows],
    output_row int32 [slots], predecessor and successor [V, RANK], count int32 [1] -> score fp32 [slots, K, K].

    Grid (slots, K): each program has one candidate of the slot before. Products are rounded one by one and summed in
    pairs.
    """
    let_next(PDL)
    slot, before, slots = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.load(count)
    there = slot < slots
    row = tl.load(output_row + slot, mask=there, other=1)
    begins = _begins(row, there, position, prefix)
    anchor = tl.load(token + row - 1, mask=begins, other=0)
    wait(PDL)
    if there:
        c, j = tl.arange(0, BK), tl.arange(0, BJ)
        inside, within = c < K, j < RANK
        previous = tl.load(candidate + (slot - 1) * K + before, mask=begins == 0, other=0)
        source = tl.where(begins, anchor, previous).to(tl.int64)
        target = tl.load(candidate + slot * K + c, mask=inside, other=0).to(tl.int64)
        follower = tl.load(
            successor + target[:, None] * RANK + j[None, :], mask=inside[:, None] & within[None, :], other=0.0
        ).to(tl.float32)
        gated = tl.load(predecessor + source * RANK + j, mask=within, other=0.0).to(tl.float32)
        gated = gated * tl.load(gate + slot * GATE_STRIDE + j, mask=within, other=0.0)
        bond = tl.reshape(summed(follower * gated[None, :]), (BK,))
        total = tl.load(unary + slot * K + c, mask=inside, other=0.0) + bond
        tl.store(score + (slot * K + before) * K + c, total, mask=inside)


@triton.jit
def _best(score, slot, inside, K: tl.constexpr, BK: tl.constexpr):
    """Of slots [S], where `inside`, the best candidate behind each of the slot before: int32 [S, BK].

    The first of equal ones; NaN counts as minus infinity.
    """
    place, c = tl.arange(0, BK), tl.arange(0, BK)
    line = ((slot[:, None] * K + place[None, :]) * K)[:, :, None] + c[None, None, :]
    held = (inside[:, None] & (place < K)[None, :])[:, :, None] & (c < K)[None, None, :]
    value = tl.load(score + line, mask=held, other=-float("inf"))
    value = tl.where(value == value, value, -float("inf"))
    which = tl.broadcast_to(c[None, None, :], value.shape)
    return tl.min(tl.where(value == tl.max(value, 2)[:, :, None], which, BK), 2)


@kernel("<score <output_row <position <prefix <count >greedy")
@triton.jit
def lattice_walk(
    score, output_row, position, prefix, count, greedy,
    K: tl.constexpr, BK: tl.constexpr, SLOTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """score fp32 [slots, K, K], output_row int32 [slots], position, prefix int32 [rows], count int32 [1] -> greedy
    int32 [slots]. Grid (slots,): a block's first slot walks all of it, SLOTS at a time."""
    let_next(PDL)
    begin, slots = tl.program_id(0), tl.load(count)
    there = begin < slots
    walks = _begins(tl.load(output_row + begin, mask=there, other=0), there, position, prefix)
    wait(PDL)
    i, place = tl.arange(0, SLOTS), tl.arange(0, BK)
    first, taken = begin, begin * 0
    while walks:
        slot = first + i
        known = slot < slots
        others = (slot > begin) & _begins(tl.load(output_row + slot, mask=known, other=0), known, position, prefix)
        end = tl.min(tl.where(others | (slot >= slots), slot, first + SLOTS), 0)
        best, walk = _best(score, slot.to(tl.int64), slot < end, K, BK), i * 0
        for step in tl.static_range(SLOTS):
            here = (i == step)[:, None] & (place == taken)[None, :]
            taken = tl.sum(tl.sum(tl.where(here, best, 0), 1), 0)
            walk = tl.where(i == step, taken, walk)
        tl.store(greedy + slot, walk, mask=slot < end)
        walks = end == first + SLOTS
        first = end


def lattice_scores_work(*, slots: int, k: int, rank: int, gate_stride: int) -> Work:
    """Work of `lattice_scores` for `slots` slots; `gate_stride` in elements."""
    bk, bj = power_of_two(k), power_of_two(rank)
    warps = min(max(bk * bj // (32 * THREAD_ELEMENTS), 1), MAX_WARPS)
    return work((slots, k), num_warps=warps, K=k, RANK=rank, GATE_STRIDE=gate_stride, BK=bk, BJ=bj)


def lattice_walk_work(slots: int, k: int) -> Work:
    """Work of `lattice_walk` after `lattice_scores_work`."""
    bk = power_of_two(k)
    return work((slots,), num_warps=1 if bk <= 16 else 4, K=k, BK=bk, SLOTS=SLOTS)
