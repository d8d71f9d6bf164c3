"""Causal depthwise convolution on CUDA: a row's window of inputs, its convolution, and a tail moved on.

What `recurrent_inputs` is made of, and the launch that moves tails on behind a chunk; the definitions are those of
`tandem.kernels.conv`. Knows nothing of keys and gates.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tandem.kernels.cuda.kv import power_of_two
from tandem.kernels.cuda.launch import Work, kernel, work
from tandem.kernels.cuda.order import begin


@triton.jit
def ancestors(row, inside, parent, WIDTH: tl.constexpr, TREE: tl.constexpr):
    """Each row [BR] and its WIDTH - 1 nearest ancestors in the pass, WIDTH tensors [BR]; -1 beyond, and not `inside`.

    Without TREE only the sign of `parent` counts, and all loads are under way at once.
    """
    above = tl.where(inside, row, -1)
    path = (above,)
    for step in tl.static_range(WIDTH - 1):
        if row.shape[0] == 1:  # a row alone follows none
            above = above * 0 - 1
        elif TREE:
            above = tl.load(parent + above, mask=above >= 0, other=-1)
        else:
            before = tl.load(parent + row - step, mask=inside & (row >= step), other=-1)
            above = tl.where((above >= 0) & (before >= 0), row - step - 1, -1)
        path = path + (above,)  # noqa: RUF005 - Triton knows no star
    return path


@triton.jit
def load_window(
    x, tail, path, state_slot, lane, position, c, wanted,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, X_STRIDE: tl.constexpr, SLOT: tl.constexpr,
):  # fmt: skip
    """The WIDTH inputs that rows see in channels c [1, BC] where `wanted`, oldest first: tensors [BR, BC] of the
    tail's type. `path` as `ancestors` gives it; what lies before it comes from the tails, [WIDTH - 1, CHANNELS] every
    SLOT elements, zeros where nothing was committed."""
    row, known = path[0], path[0] >= 0
    number = known.to(tl.int32)
    for step in tl.static_range(1, WIDTH):
        number += (path[step] >= 0).to(tl.int32)
    began = known & (tl.load(position + row, mask=known, other=0) >= number)
    slot = tl.load(state_slot + tl.load(lane + row, mask=known, other=0), mask=known, other=0).to(tl.int64) * SLOT
    window = ()
    for tap in tl.static_range(WIDTH):
        source = path[WIDTH - 1 - tap]
        fresh, at = (source >= 0)[:, None], source.to(tl.int64)[:, None] * X_STRIDE + c
        value = tl.load(x + at, mask=fresh & wanted, other=0.0).to(tail.dtype.element_ty)
        if tap < WIDTH - 1:
            carried = (began & (source < 0))[:, None] & wanted
            place = slot[:, None] + (number + (tap - 1))[:, None] * CHANNELS + c
            value = tl.where(fresh, value, tl.load(tail + place, mask=carried, other=0.0))
        window = window + (value,)  # noqa: RUF005
    return window


@triton.jit
def convolved(window, taps, WIDTH: tl.constexpr):
    """silu of the sum over `taps` [1, BC], oldest first, fp32."""
    total = window[0].to(tl.float32) * taps[0]
    for tap in tl.static_range(1, WIDTH):
        total = total + window[tap].to(tl.float32) * taps[tap]
    return total / (1.0 + tl.exp(-total))


@triton.jit
def move_tail(
    tail, window, row, inside, rows, state_slot, lane, parent, c, wanted,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, SLOT: tl.constexpr,
):  # fmt: skip
    """Tails become the windows of their lanes' last rows. All of the tail that this program wants was read before."""
    last = inside & ((row == rows - 1) | (tl.load(parent + row + 1, mask=row < rows - 1, other=0) < 0))
    slot = tl.load(state_slot + tl.load(lane + row, mask=last, other=0), mask=last, other=0).to(tl.int64) * SLOT
    tl.debug_barrier()
    for place in tl.static_range(WIDTH - 1):
        tl.store(tail + slot[:, None] + place * CHANNELS + c, window[place + 1], mask=last[:, None] & wanted)


@kernel("<x <state_slot <lane <position <parent <count !tail")
@triton.jit
def conv_tail(
    x, state_slot, lane, position, parent, count, tail,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, X_STRIDE: tl.constexpr, SLOT: tl.constexpr, BR: tl.constexpr,
    BC: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """x fp32 [rows, X_STRIDE], lines of lanes; tails [WIDTH - 1, CHANNELS] every SLOT elements -> tails moved on.

    Grid (blocks of BR rows, blocks of BC channels).
    """
    rows = begin(count, PDL)
    row = tl.program_id(0) * BR + tl.arange(0, BR)
    ends = (row < rows) & ((row == rows - 1) | (tl.load(parent + row + 1, mask=row < rows - 1, other=0) < 0))
    if tl.max(ends.to(tl.int32), 0) > 0:
        c = tl.program_id(1) * BC + tl.arange(0, BC)[None, :]
        path = ancestors(row, ends, parent, WIDTH, False)
        window = load_window(
            x, tail, path, state_slot, lane, position, c, c < CHANNELS, WIDTH, CHANNELS, X_STRIDE, SLOT
        )  # fmt: skip
        move_tail(
            tail, window, row, ends, rows, state_slot, lane, parent, c, c < CHANNELS, WIDTH, CHANNELS, SLOT
        )  # fmt: skip


def conv_tail_work(*, rows: int, channels: int, width: int, x_stride: int, slot: int) -> Work:
    """Behind `recurrent_inputs` of more than FEW_ROWS rows that stay; `x_stride` and `slot` count elements."""
    br, bc = min(32, power_of_two(rows)), 128
    return work(
        (-(-rows // br), -(-channels // bc)), WIDTH=width, CHANNELS=channels, X_STRIDE=x_stride, SLOT=slot, BR=br, BC=bc
    )
