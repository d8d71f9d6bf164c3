"""What a draft block of DFlash2 has of its own: attention with a window behind it, and a convolution inside it.

A block's rows stand together in a pass, the anchor first. `prefix` is the anchor's position for each of them, so a row
stands at position - prefix of its block; positions below prefix are context.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tandem.kernels.kv import places
from tandem.kernels.precision import compute_dtype


@torch.library.custom_op("tandem::block_attention", mutates_args=())
def block_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    position: Tensor,
    lane: Tensor,
    prefix: Tensor,
    block_table: Tensor,
    scale: float,
    block: int,
    window: int,
) -> Tensor:
    """q [R, heads, D], k_cache [P, G, D, T], v_cache [P, G, T, D], block_table [L, B] -> [R, heads, D].

    position, lane and prefix [R] int32. A row sees all `block` positions from prefix on, whichever side of it, and the
    context less than `window` positions before its own. Position t lies in slot t; the rows' own K and V must have been
    written.
    """
    dtype, page_tokens = compute_dtype(q), v_cache.shape[2]
    num_rows, num_heads, head_dim = q.shape
    num_kv_heads = k_cache.shape[1]
    out = torch.empty(q.shape, dtype=dtype, device=q.device)
    for row in range(num_rows):
        begin, end = max(0, int(position[row]) - window + 1), int(prefix[row]) + block
        slots = torch.arange(begin, end, dtype=torch.int32, device=q.device)
        page, place = places(lane[row].expand_as(slots), slots, block_table, page_tokens)
        k = k_cache[page, :, :, place].to(dtype)  # [positions, G, D]
        v = v_cache[page, :, place].to(dtype)
        group = q[row].to(dtype).view(num_kv_heads, num_heads // num_kv_heads, head_dim)
        scores = torch.einsum("ghd,tgd->ght", group, k) * scale
        out[row] = torch.einsum("ght,tgd->ghd", scores.softmax(-1), v).reshape(num_heads, head_dim)
    return out


@block_attention.register_fake
def _(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    position: Tensor,
    lane: Tensor,
    prefix: Tensor,
    block_table: Tensor,
    scale: float,
    block: int,
    window: int,
) -> Tensor:
    return q.new_empty(q.shape, dtype=compute_dtype(q))


@torch.library.custom_op("tandem::block_conv", mutates_args=())
def block_conv(x: Tensor, delta: Tensor, weight: Tensor, position: Tensor, prefix: Tensor, taps: int) -> Tensor:
    """x [R, C], delta [R, taps * groups], weight [taps * C], position and prefix [R] int32 -> [R, C].

    Depthwise: sum over taps t, in order, of (weight[t, c] + delta[row, t, c's group]) * x[row - t, c]. Both factors
    hold the row's own tap first; groups are equal runs of channels. A tap that would leave the block is left out.
    """
    dtype, channels = compute_dtype(x), x.shape[1]
    own, fixed = delta.to(dtype).view(x.shape[0], taps, -1), weight.to(dtype).view(taps, channels)
    group, y = channels // own.shape[2], torch.empty(x.shape, dtype=dtype, device=x.device)
    for row in range(x.shape[0]):
        within = int(position[row]) - int(prefix[row])
        total = torch.zeros(channels, dtype=dtype, device=x.device)
        for tap in range(min(taps, within + 1)):
            total = total + (fixed[tap] + own[row, tap].repeat_interleave(group)) * x[row - tap].to(dtype)
        y[row] = total
    return y


@block_conv.register_fake
def _(x: Tensor, delta: Tensor, weight: Tensor, position: Tensor, prefix: Tensor, taps: int) -> Tensor:
    return x.new_empty(x.shape, dtype=compute_dtype(x))
