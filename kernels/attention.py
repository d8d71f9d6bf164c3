"""Paged attention with grouped heads: each row over the positions 0..position of its own lane.

A tree row reads its shared prefix straight and its own ancestors through their slots, so it sees the same
keys in the same order as a one-token step at that prefix.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tandem.kernels.kv import places
from tandem.kernels.precision import compute_dtype


def _slots(row: int, position: Tensor, prefix: Tensor, ancestor: Tensor, tree: bool) -> Tensor:
    """Logical slots of positions 0..position of a row, [position + 1]."""
    length = int(position[row]) + 1
    straight = int(prefix[row]) if tree else length
    slots = torch.arange(straight, dtype=torch.int32, device=position.device)
    return torch.cat((slots, ancestor[row, : length - straight].to(torch.int32)))


@torch.library.custom_op("tandem::attention", mutates_args=())
def attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    position: Tensor,
    lane: Tensor,
    prefix: Tensor,
    ancestor: Tensor,
    block_table: Tensor,
    scale: float,
    tree: bool,
) -> Tensor:
    """q [R, heads, D], k_cache [P, G, D, T], v_cache [P, G, T, D], block_table [L, B] -> [R, heads, D].

    position, lane and prefix [R], ancestor [R, 32], all int32. Position t of a row is read from slot t where
    t < prefix, else from slot ancestor[t - prefix]; without `tree` all are read straight and prefix and
    ancestor ignored. The rows' own K and V must have been written.
    """
    dtype, page_tokens = compute_dtype(q), v_cache.shape[2]
    num_rows, num_heads, head_dim = q.shape
    num_kv_heads = k_cache.shape[1]
    out = torch.empty(q.shape, dtype=dtype, device=q.device)
    for row in range(num_rows):
        slots = _slots(row, position, prefix, ancestor, tree)
        page, place = places(lane[row].expand_as(slots), slots, block_table, page_tokens)
        k = k_cache[page, :, :, place].to(dtype)  # [positions, G, D]
        v = v_cache[page, :, place].to(dtype)
        group = q[row].to(dtype).view(num_kv_heads, num_heads // num_kv_heads, head_dim)
        scores = torch.einsum("ghd,tgd->ght", group, k) * scale
        out[row] = torch.einsum("ght,tgd->ghd", scores.softmax(-1), v).reshape(num_heads, head_dim)
    return out


@attention.register_fake
def _(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    position: Tensor,
    lane: Tensor,
    prefix: Tensor,
    ancestor: Tensor,
    block_table: Tensor,
    scale: float,
    tree: bool,
) -> Tensor:
    return q.new_empty(q.shape, dtype=compute_dtype(q))
