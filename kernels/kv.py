"""The paged KV cache: write the rows of a pass, move accepted rows into place.

Logical slot s of a lane lives in page block_table[lane, s // T] at place s % T. Inside a page K is
transposed, [P, G, D, T], and V is [P, G, T, D]. Values are rounded to the cache's type when written.
"""

from __future__ import annotations

import torch
from torch import Tensor


def places(lane: Tensor, slot: Tensor, block_table: Tensor, page_tokens: int) -> tuple[Tensor, Tensor]:
    """(page, place) of logical slots; `lane` and `slot` are int32 of one shape, the results int64."""
    lane, slot = lane.long(), slot.long()
    return block_table[lane, slot // page_tokens].long(), slot % page_tokens


@torch.library.custom_op("tandem::kv_write", mutates_args=("k_cache", "v_cache"))
def kv_write(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, lane: Tensor, slot: Tensor, block_table: Tensor
) -> None:
    """k and v [R, G, D] go to logical slot `slot` [R] of lane `lane` [R]; block_table [L, B] int32."""
    page, place = places(lane, slot, block_table, v_cache.shape[2])
    k_cache[page, :, :, place] = k.to(k_cache.dtype)
    v_cache[page, :, place] = v.to(v_cache.dtype)


@kv_write.register_fake
def _(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, lane: Tensor, slot: Tensor, block_table: Tensor) -> None:
    return None


@torch.library.custom_op("tandem::kv_move", mutates_args=("k_cache", "v_cache"))
def kv_move(
    k_cache: Tensor,
    v_cache: Tensor,
    move_lane: Tensor,
    move_source: Tensor,
    move_target: Tensor,
    block_table: Tensor,
) -> None:
    """In order, K and V of slot move_source[i] become those of move_target[i] in lane move_lane[i]; all [M] int32."""
    from_page, from_place = places(move_lane, move_source, block_table, v_cache.shape[2])
    to_page, to_place = places(move_lane, move_target, block_table, v_cache.shape[2])
    # One by one: a target may be the source of an earlier move.
    for i in range(move_lane.shape[0]):
        k_cache[to_page[i], :, :, to_place[i]] = k_cache[from_page[i], :, :, from_place[i]]
        v_cache[to_page[i], :, to_place[i]] = v_cache[from_page[i], :, from_place[i]]


@kv_move.register_fake
def _(
    k_cache: Tensor,
    v_cache: Tensor,
    move_lane: Tensor,
    move_source: Tensor,
    move_target: Tensor,
    block_table: Tensor,
) -> None:
    return None
