"""Commit of the recurrent layers on CUDA: states and tails moved on by accepted rows, all layers in a launch each.

Definitions: `delta_commit` of `tandem.kernels.delta`, `conv_commit` of `tandem.kernels.conv`. Knows nothing of a pass.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tandem.kernels.cuda.delta import load_factors, run_of
from tandem.kernels.cuda.delta_tiles import StateTiles, added, deal, empty_state, faded, load_state, places, store_state
from tandem.kernels.cuda.kv import power_of_two
from tandem.kernels.cuda.launch import Work, kernel, work
from tandem.kernels.cuda.order import begin

CHANNELS = 256
"""Of a program of `conv_commit`."""


@kernel("<k_factor <u_factor <decay_factor <state_slot <move_lane <move_row <move_target <count !state")
@triton.jit
def delta_commit(
    k_factor, u_factor, decay_factor, state_slot, move_lane, move_row, move_target, count, state,
    HEADS: tl.constexpr, GROUP: tl.constexpr, K_LAYER: tl.constexpr, U_LAYER: tl.constexpr,
    DECAY_LAYER: tl.constexpr, LAYER: tl.constexpr, SLOT: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    PARTS: tl.constexpr, COLUMNS: tl.constexpr, WARPS: tl.constexpr, EACH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """k_factor [F, HEADS / GROUP, DK], u_factor [F, HEADS, DV], decay_factor [F, HEADS] fp32 of the first layer, and
    *_LAYER elements further of the next; state_slot [lanes], moves and count [1] int32; state fp32 of the first layer
    in slot 0, LAYER elements from layer to layer and SLOT from slot to slot. Moves of a lane stand together.

    Grid (layers * heads * blocks of columns,).
    """
    moves = begin(count, PDL)
    BLOCKS: tl.constexpr = (DV + WARPS * COLUMNS - 1) // (WARPS * COLUMNS)
    KEY: tl.constexpr = HEADS // GROUP * DK
    head = tl.program_id(0) // BLOCKS % HEADS
    layer = (tl.program_id(0) // (BLOCKS * HEADS)).to(tl.int64)
    k_factor, u_factor = k_factor + layer * K_LAYER, u_factor + layer * U_LAYER
    decay_factor = decay_factor + layer * DECAY_LAYER
    part, column = places(tl.program_id(0) % BLOCKS, PARTS, COLUMNS, WARPS)
    at = state + layer * LAYER + head * (DK * DV)
    held = empty_state(PARTS * COLUMNS * WARPS, EACH)
    following = load_factors(
        k_factor, u_factor, decay_factor, tl.load(move_row, mask=moves > 0, other=0), head, column, HEADS, GROUP, KEY,
        DK, DV, PARTS * EACH,
    )  # fmt: skip
    for i in range(moves):
        own = tl.load(move_lane + i)
        k, u, decay = following
        following = load_factors(
            k_factor, u_factor, decay_factor, tl.load(move_row + tl.minimum(i + 1, moves - 1)), head, column, HEADS,
            GROUP, KEY, DK, DV, PARTS * EACH,
        )  # fmt: skip
        slot = tl.load(state_slot + own).to(tl.int64) * SLOT
        if own != tl.load(move_lane + i - 1, mask=i > 0, other=-1):
            held = load_state(at + slot, part, column, tl.load(move_target + i) > 0, PARTS, EACH, DK, DV)
        held = added(faded(held, decay, EACH), deal(k, PARTS, COLUMNS, WARPS, EACH), u, EACH)
        last = own != tl.load(move_lane + i + 1, mask=i + 1 < moves, other=-1)
        store_state(at + slot, held, part, column, last, PARTS, EACH, DK, DV)


@kernel("<raw <state_slot <move_lane <move_row <move_target <count !tail")
@triton.jit
def conv_commit(
    raw, state_slot, move_lane, move_row, move_target, count, tail,
    LANES: tl.constexpr, BM: tl.constexpr, CHANNELS: tl.constexpr, PAST: tl.constexpr, BP: tl.constexpr,
    BC: tl.constexpr, RAW_LAYER: tl.constexpr, LAYER: tl.constexpr, SLOT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """raw [F, CHANNELS] and tail [PAST, CHANNELS], of one type; the rest as in `delta_commit`. PAST is W - 1.

    Grid (layers, blocks of channels).
    """
    moves = begin(count, PDL)
    layer, c = tl.program_id(0).to(tl.int64), tl.program_id(1) * BC + tl.arange(0, BC)[None, :]
    place = tl.arange(0, BP)[:, None]
    inside = (place < PAST) & (c < CHANNELS)
    for own in range(LANES):
        first, number = run_of(own, move_lane, moves, BM)
        if number > 0:
            slot = tail + layer * LAYER + tl.load(state_slot + own).to(tl.int64) * SLOT
            # What comes to `place` stood `number` further: in the tail, or behind it among the rows.
            source = place + number
            carried = inside & (source < tl.where(tl.load(move_target + first) > 0, PAST, 0))
            kept = tl.load(slot + source * CHANNELS + c, mask=carried, other=0.0)
            fresh = inside & (source >= PAST)
            row = tl.load(move_row + first + source - PAST, mask=fresh, other=0)
            new = tl.load(raw + layer * RAW_LAYER + row.to(tl.int64) * CHANNELS + c, mask=fresh, other=0.0)
            tl.debug_barrier()
            tl.store(slot + place * CHANNELS + c, tl.where(source < PAST, kept, new), mask=inside)


def delta_commit_work(
    *,
    layers: int,
    key_heads: int,
    heads: int,
    dk: int,
    dv: int,
    k_layer: int,
    u_layer: int,
    decay_layer: int,
    layer: int,
    slot: int,
) -> Work:
    """All sizes from layer to layer and `slot` in elements; `heads` counts value heads."""
    tiles = StateTiles(dk, dv)
    return work(
        (layers * heads * tiles.blocks,), num_warps=tiles.warps, num_stages=1, HEADS=heads, GROUP=heads // key_heads,
        K_LAYER=k_layer, U_LAYER=u_layer, DECAY_LAYER=decay_layer, LAYER=layer, SLOT=slot, **tiles.constants(),
    )  # fmt: skip


def conv_commit_work(
    *, moves: int, layers: int, lanes: int, channels: int, width: int, raw_layer: int, layer: int, slot: int
) -> Work:
    """Up to `moves` moves of lanes below `lanes`; `width` taps, the rest in elements of the tail's type."""
    return work(
        (layers, -(-channels // CHANNELS)), LANES=lanes, BM=power_of_two(moves), CHANNELS=channels, PAST=width - 1,
        BP=power_of_two(width - 1), BC=CHANNELS, RAW_LAYER=raw_layer, LAYER=layer, SLOT=slot,
    )  # fmt: skip
