"""Causal depthwise convolution with SiLU over a row and its nearest ancestors, and the tail it leaves behind.

The tail of a slot are the last W - 1 raw inputs, oldest first. A raw input counts as it is kept in the tail: rounded to
the tail's type before its first use, so it matters to nobody where one pass ended and the next began. Taps are summed
oldest first. Rows, parents and slots are those of `path`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tandem.kernels.path import carried, row_before
from tandem.kernels.precision import compute_dtype


def _window(raw: Tensor, row: int, past: tuple[Tensor, Tensor, Tensor, Tensor, Tensor], tree: bool) -> Tensor:
    """The W raw inputs that `row` sees, oldest first, [W, C]."""
    tail, state_slot, lane, position, parent = past
    width = tail.shape[1] + 1
    path = [row]
    while len(path) < width and (above := row_before(path[-1], parent, tree)) >= 0:
        path.append(above)
    inputs = raw[path[::-1]]
    if len(path) == width:
        return inputs
    before = carried(tail, int(state_slot[lane[row]]), int(position[path[-1]]))
    return torch.cat((before[len(path) - 1 :], inputs))


def _convolved(window: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    taps = weight.to(dtype).view(window.shape)
    products = window.to(dtype) * taps
    total = products[0]
    for product in products[1:]:
        total = total + product
    return torch.nn.functional.silu(total)


@torch.library.custom_op("tandem::causal_conv", mutates_args=("tail",))
def causal_conv(
    x: Tensor, weight: Tensor, tail: Tensor, state_slot: Tensor, lane: Tensor, position: Tensor, parent: Tensor
) -> Tensor:
    """x [R, C], weight [W * C], tail [S, W - 1, C], state_slot [L], lane, position and parent [R] int32 -> [R, C].

    For rows that all stay: every lane's rows are a line, and its tail is moved on to its last row. The weight holds the
    C factors of the oldest tap first.
    """
    raw, y = x.to(tail.dtype), torch.empty(x.shape, dtype=compute_dtype(x), device=x.device)
    last = x.shape[0] - 1
    for row in range(x.shape[0]):
        window = _window(raw, row, (tail, state_slot, lane, position, parent), False)
        y[row] = _convolved(window, weight, y.dtype)
        if row == last or int(parent[row + 1]) < 0:
            tail[state_slot[lane[row]].long()] = window[1:]
    return y


@causal_conv.register_fake
def _(
    x: Tensor, weight: Tensor, tail: Tensor, state_slot: Tensor, lane: Tensor, position: Tensor, parent: Tensor
) -> Tensor:
    return x.new_empty(x.shape, dtype=compute_dtype(x))


@torch.library.custom_op("tandem::conv_verify", mutates_args=("raw",))
def conv_verify(
    x: Tensor,
    weight: Tensor,
    tail: Tensor,
    state_slot: Tensor,
    lane: Tensor,
    position: Tensor,
    parent: Tensor,
    raw: Tensor,
    tree: bool,
) -> Tensor:
    """As `causal_conv`, for rows of which some may stay: the tail is left, and raw [F, C], in the tail's type, gets x.

    F is at least R. With `tree` a row gathers its ancestors by `parent`.
    """
    y = torch.empty(x.shape, dtype=compute_dtype(x), device=x.device)
    raw[: x.shape[0]] = x.to(raw.dtype)
    for row in range(x.shape[0]):
        window = _window(raw, row, (tail, state_slot, lane, position, parent), tree)
        y[row] = _convolved(window, weight, y.dtype)
    return y


@conv_verify.register_fake
def _(
    x: Tensor,
    weight: Tensor,
    tail: Tensor,
    state_slot: Tensor,
    lane: Tensor,
    position: Tensor,
    parent: Tensor,
    raw: Tensor,
    tree: bool,
) -> Tensor:
    return x.new_empty(x.shape, dtype=compute_dtype(x))


@torch.library.custom_op("tandem::conv_commit", mutates_args=("tail",))
def conv_commit(
    raw: Tensor, tail: Tensor, state_slot: Tensor, move_lane: Tensor, move_row: Tensor, move_target: Tensor
) -> None:
    """Moves tails on by accepted rows of the last `conv_verify`: what `causal_conv` of them would have left.

    raw [F, C], tail [S, W - 1, C], state_slot [L]; move_lane, move_row and move_target [M] int32: in order, row
    move_row[i] of that pass becomes position move_target[i] of lane move_lane[i]. Each accepted path is there whole.
    """
    for lane, row, target in zip(move_lane.tolist(), move_row.tolist(), move_target.tolist(), strict=True):
        slot = int(state_slot[lane])
        tail[slot] = torch.cat((carried(tail, slot, target)[1:], raw[row, None]))


@conv_commit.register_fake
def _(raw: Tensor, tail: Tensor, state_slot: Tensor, move_lane: Tensor, move_row: Tensor, move_target: Tensor) -> None:
    return None
