"""All that a recurrent layer's rows need before the delta rule, in one launch: convolution with SiLU, keys and queries
of length one, and gates. Definitions: `conv` and `delta` of `tandem.kernels`.

A program takes one head's channels of q or k, or as many of v, or all gates, of some rows. Knows nothing of states.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tandem.kernels.cuda.conv import ancestors, convolved, load_window, move_tail
from tandem.kernels.cuda.kv import power_of_two
from tandem.kernels.cuda.launch import Work, kernel, work
from tandem.kernels.cuda.order import begin
from tandem.kernels.cuda.pairs import summed
from tandem.kernels.delta import EPSILON

FEW_ROWS = 32
"""Up to here a program has all rows of the pass, and so may write the tail that it read."""
CHUNK_ROWS = 16
TILE = 1024
"""Elements of a tile that four warps hold, or fewer."""


@triton.jit
def unit(x, EPSILON: tl.constexpr):
    """Rows [BR, BC] of length one."""
    return x * tl.rsqrt(summed(x * x) + EPSILON)


@triton.jit
def softplus(x):
    """log(1 + exp(x)) = max(x, 0) + log(1 + e), e = exp(-|x|) <= 1, by 2 atanh(e / (2 + e)): small ones to the last
    bits, and x itself from 17 up."""
    e = tl.exp(-tl.abs(x))
    s = e / (2.0 + e)
    square = s * s
    series = tl.full(x.shape, 1 / 15, tl.float32)
    for i in tl.static_range(7):
        series = tl.fma(series, square, tl.full(x.shape, 1 / (13 - 2 * i), tl.float32))
    return tl.maximum(x, 0.0) + 2.0 * s * series


@triton.jit
def _gates(
    a, b, a_log, dt_bias, decay, beta, row, inside,
    HEADS: tl.constexpr, BH: tl.constexpr, AB_STRIDE: tl.constexpr,
):  # fmt: skip
    """decay = exp(-exp(a_log) softplus(a + dt_bias)) and beta = sigmoid(b) of rows [BR], both [rows, HEADS]."""
    head = tl.arange(0, BH)[None, :]
    there = inside[:, None] & (head < HEADS)
    source, target = row.to(tl.int64)[:, None] * AB_STRIDE + head, row.to(tl.int64)[:, None] * HEADS + head
    rate = softplus(
        tl.load(a + source, mask=there, other=0.0) + tl.load(dt_bias + head, mask=head < HEADS, other=0.0)
    )  # fmt: skip
    tl.store(decay + target, tl.exp(-tl.exp(tl.load(a_log + head, mask=head < HEADS, other=0.0)) * rate), mask=there)
    tl.store(beta + target, 1.0 / (1.0 + tl.exp(-tl.load(b + source, mask=there, other=0.0))), mask=there)


@kernel(
    "<x <weight <a <b <a_log <dt_bias <state_slot <lane <position <parent <count !tail >raw >k_factor >decay >beta >y"
)
@triton.jit
def recurrent_inputs(
    x, weight, a, b, a_log, dt_bias, state_slot, lane, position, parent, count, tail, raw, k_factor, decay, beta, y,
    MOVE: tl.constexpr, TREE: tl.constexpr, WIDTH: tl.constexpr, KEY_HEADS: tl.constexpr, DK: tl.constexpr,
    CHANNELS: tl.constexpr, HEADS: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, BH: tl.constexpr,
    X_STRIDE: tl.constexpr, AB_STRIDE: tl.constexpr, SLOT: tl.constexpr, EPSILON: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """x fp32 [rows, X_STRIDE] of CHANNELS: KEY_HEADS queries of DK, as many keys, then values; weight fp32
    [WIDTH, CHANNELS], oldest tap first; a and b fp32 [rows, AB_STRIDE] of HEADS, a_log and dt_bias fp32 [HEADS];
    state_slot [lanes], lane, position and parent [rows], count [1] int32; tails [WIDTH - 1, CHANNELS] every SLOT
    elements, their type that of all inputs -> y fp32 [rows, CHANNELS]: q of length 1 / sqrt(DK), k of length one, v;
    decay and beta fp32 [rows, HEADS].

    With MOVE rows are lines that stay, and tails are moved on. For a verify, raw [rows, CHANNELS] in the tail's type
    and k_factor fp32 [rows, KEY_HEADS, DK] get what a commit wants, else they are None. Grid (blocks of BR rows,
    2 KEY_HEADS + blocks of BC values + 1).
    """
    block, row = tl.program_id(1), tl.program_id(0) * BR + tl.arange(0, BR)
    keyed = block < 2 * KEY_HEADS
    c = tl.where(keyed, block * DK, 2 * KEY_HEADS * DK + (block - 2 * KEY_HEADS) * BC) + tl.arange(0, BC)[None, :]
    wanted = c < tl.where(keyed, (block + 1) * DK, CHANNELS)
    taps = ()
    for tap in tl.static_range(WIDTH):
        taps = taps + (tl.load(weight + tap * CHANNELS + c, mask=wanted, other=0.0),)  # noqa: RUF005
    rows = begin(count, PDL)
    inside = row < rows
    if block == tl.num_programs(1) - 1:
        _gates(a, b, a_log, dt_bias, decay, beta, row, inside, HEADS, BH, AB_STRIDE)
    elif tl.program_id(0) * BR < rows:
        path = ancestors(row, inside, parent, WIDTH, TREE)
        window = load_window(x, tail, path, state_slot, lane, position, c, wanted, WIDTH, CHANNELS, X_STRIDE, SLOT)
        there, at = inside[:, None] & wanted, row.to(tl.int64)[:, None] * CHANNELS + c
        if raw is not None:
            tl.store(raw + at, window[WIDTH - 1], mask=there)
        result = convolved(window, taps, WIDTH)
        if keyed:
            result = unit(result, EPSILON)
            if block < KEY_HEADS:
                result = result * DK**-0.5
            elif k_factor is not None:
                to = row.to(tl.int64)[:, None] * (KEY_HEADS * DK) + (c - KEY_HEADS * DK)
                tl.store(k_factor + to, result, mask=there)
        tl.store(y + at, result, mask=there)
        if MOVE:
            move_tail(
                tail, window, row, inside, rows, state_slot, lane, parent, c, wanted, WIDTH, CHANNELS, SLOT
            )  # fmt: skip


def recurrent_inputs_work(
    *,
    rows: int,
    verify: bool,
    tree: bool,
    width: int,
    key_heads: int,
    dk: int,
    channels: int,
    heads: int,
    x_stride: int,
    ab_stride: int,
    slot: int,
) -> Work:
    """`width` taps, `heads` gates (value heads); strides and `slot` count elements.

    Rows that stay (not `verify`) leave tails to `conv_tail` where there are more than FEW_ROWS.
    """
    few = rows <= FEW_ROWS
    br, bc = power_of_two(rows) if few else CHUNK_ROWS, max(32, power_of_two(dk))
    blocks = 2 * key_heads + -(-(channels - 2 * key_heads * dk) // bc) + 1
    return work(
        (-(-rows // br), blocks), num_warps=max(1, min(8, br * bc // (TILE // 4))), MOVE=few and not verify, TREE=tree,
        WIDTH=width, KEY_HEADS=key_heads, DK=dk, CHANNELS=channels, HEADS=heads, BR=br, BC=bc,
        BH=power_of_two(heads), X_STRIDE=x_stride, AB_STRIDE=ab_stride, SLOT=slot, EPSILON=EPSILON,
    )  # fmt: skip
