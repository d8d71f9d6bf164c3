"""What a draft block has of its own, the definitions of `tandem.kernels.draft_block`: attention and convolution.

Attention takes two launches: `block_attention_split` reduces each span of positions by itself, `block_attention_merge`
folds a row's spans in order. Spans have absolute borders, of a length that the window alone decides, so a short window
keeps a whole GPU busy at any length of text, and no neighbour moves a bit. Letters as in
`tandem.kernels.cuda.attention`.
"""

# ruff: noqa: E741 - m, l and acc are what every paper on online softmax calls them.
from __future__ import annotations

import triton
import triton.language as tl

from tandem.kernels.cuda.attention import exponent_scale, padded
from tandem.kernels.cuda.attention_tiles import ask_tile, load_rows, merge_groups, part_at
from tandem.kernels.cuda.groups import TILE
from tandem.kernels.cuda.kv import power_of_two
from tandem.kernels.cuda.launch import Work, kernel, work
from tandem.kernels.cuda.order import let_next, wait
from tandem.kernels.cuda.parts import sum_of_parts
from tandem.kernels.cuda.softmax import begun, empty, ended, take_tile

CHANNELS = 512
"""Channels of one program of the convolution."""
WINDOW_SPANS = 16
"""Spans of a long window: with the kv heads of a large drafter enough programs for all multiprocessors."""


@triton.jit
def _first_span(prefix, WINDOW: tl.constexpr, SPAN: tl.constexpr):
    """The span that holds the oldest position a block sees."""
    return tl.maximum(prefix - WINDOW + 1, 0) // SPAN


@triton.jit
def _ask_span(
    k_cache, v_cache, table, kv_head, span, prefix,
    WINDOW: tl.constexpr, SPAN: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """Asks the first two tiles of a span into L2, as far as a block sees context there."""
    for ahead in tl.static_range(2):
        first = (_first_span(prefix, WINDOW, SPAN) + span) * SPAN + ahead * TILE
        if (first + TILE > prefix - WINDOW + 1) & (first < prefix):
            ask_tile(k_cache, v_cache, table, kv_head, first, D, BD, PAGE)


@triton.jit
def _take_span(
    rows, k_cache, v_cache, table, kv_head, positions, first, begin, end,
    BM: tl.constexpr, WINDOW: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, SCALE: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """(m, l, acc) of pairs at `positions` [BM] over first..end-1, of which positions below `begin` are not read."""
    m, l, acc = empty(BM, BD)
    m, sums, acc = begun(m, l, acc)
    start_at = tl.maximum(first, begin // TILE * TILE)
    next_page = tl.load(table + start_at // TILE, mask=start_at < end, other=0)
    for start in range(start_at, end, TILE):
        page = next_page.to(tl.int64) * PAGE + kv_head * TILE * D
        next_page = tl.load(table + start // TILE + 1, mask=end - start > TILE, other=0)
        place = tl.arange(0, TILE)
        there = (start + place >= begin) & (start + place < end)
        k = load_rows(k_cache + page, place * D, there, D, BD)
        v = load_rows(v_cache + page, place * D, there, D, BD)
        visible = there[None, :] & ((start + place)[None, :] > (positions - WINDOW)[:, None])
        m, sums, acc = take_tile(rows, k, v, visible, m, sums, acc, SCALE)
    return ended(m, sums, acc)


@kernel("<q <k_cache <v_cache <position <lane <prefix <block_table <count >m >l >acc")
@triton.jit
def block_attention_split(
    q, k_cache, v_cache, position, lane, prefix, block_table, count, m, l, acc,
    ROWS: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BD: tl.constexpr,
    SCALE: tl.constexpr, BLOCK: tl.constexpr, WINDOW: tl.constexpr, SPAN: tl.constexpr, SPANS: tl.constexpr,
    Q_STRIDE: tl.constexpr, TABLE_STRIDE: tl.constexpr, PAGE: tl.constexpr, TILE_ROWS: tl.constexpr, BM: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """q [rows, Q_STRIDE], caches at this layer's planes of page 0 (elements PAGE apart), position, lane, prefix [rows],
    block_table [lanes, TABLE_STRIDE], count [1] -> m, l [KV_HEADS, SPANS, ROWS * G], acc [.., HEAD_DIM], fp32.

    Grid (kv heads, tiles of TILE_ROWS rows, spans from the first that a row's block sees).
    """
    let_next(PDL)
    G: tl.constexpr = HEADS // KV_HEADS
    kv_head, span, here = tl.program_id(0), tl.program_id(2), tl.program_id(1) * TILE_ROWS
    pair = tl.arange(0, BM)
    row, head = here + pair // G, kv_head * G + pair % G
    num_rows = tl.load(count)
    behind = tl.minimum(here + TILE_ROWS, num_rows)
    inside = row < behind
    positions = tl.load(position + row, mask=inside, other=-1)
    lanes, prefixes = tl.load(lane + row, mask=inside, other=-1), tl.load(prefix + row, mask=inside, other=-1)
    if PDL and here < num_rows:
        table = block_table + tl.load(lane + here) * TABLE_STRIDE
        _ask_span(
            k_cache, v_cache, table, kv_head, span, tl.load(prefix + here), WINDOW, SPAN, HEAD_DIM, BD, PAGE
        )  # fmt: skip
    wait(PDL)
    while here < behind:  # rows of one block at a time: in a draft of whole blocks, all of the tile
        own_lane, own_prefix = tl.load(lane + here), tl.load(prefix + here)
        others = inside & (row > here) & ((lanes != own_lane) | (prefixes != own_prefix))
        next_block = tl.min(tl.where(others, row, behind), 0)
        mine = (row >= here) & (row < next_block)
        first = (_first_span(own_prefix, WINDOW, SPAN) + span) * SPAN
        end = tl.minimum(first + SPAN, own_prefix + BLOCK)
        if first < end:
            begin = tl.min(tl.where(mine, positions, own_prefix + BLOCK), 0) - WINDOW + 1
            rows = load_rows(q, row.to(tl.int64) * Q_STRIDE + head * HEAD_DIM, mine, HEAD_DIM, BD)
            part_m, part_l, part_acc = _take_span(
                rows, k_cache, v_cache, block_table + own_lane * TABLE_STRIDE, kv_head, positions, first,
                tl.maximum(begin, 0), end, BM, WINDOW, HEAD_DIM, BD, SCALE, PAGE,
            )  # fmt: skip
            at, d = part_at(row, kv_head, span, ROWS, G, SPANS) + pair % G, tl.arange(0, BD)
            tl.store(m + at, part_m, mask=mine)
            tl.store(l + at, part_l, mask=mine)
            tl.store(
                acc + at[:, None] * HEAD_DIM + d[None, :], part_acc, mask=mine[:, None] & (d < HEAD_DIM)[None, :]
            )  # fmt: skip
        here = next_block


@kernel("<m <l <acc <prefix <count >y")
@triton.jit
def block_attention_merge(
    m, l, acc, prefix, count, y,
    ROWS: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BD: tl.constexpr,
    BLOCK: tl.constexpr, WINDOW: tl.constexpr, SPAN: tl.constexpr, SPANS: tl.constexpr, DEPTH: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """m, l and acc of `block_attention_split`, prefix [rows] -> y [rows, HEADS * HEAD_DIM] in y's own type.

    Grid (rows, heads). DEPTH spans are loaded at once.
    """
    let_next(PDL)
    G: tl.constexpr = HEADS // KV_HEADS
    row, head = tl.program_id(0), tl.program_id(1)
    rows, own_prefix = tl.load(count), tl.load(prefix + row)  # both under way at once
    wait(PDL)
    if row < rows:
        at = part_at(row, head // G, 0, ROWS, G, SPANS) + head % G
        behind = (own_prefix + BLOCK - 1) // SPAN - _first_span(own_prefix, WINDOW, SPAN) + 1
        merge_groups(m, l, acc, y, at, row * HEADS + head, behind, ROWS * G, HEAD_DIM, BD, DEPTH)


@kernel("<x <delta <weight <position <prefix <count >y")
@triton.jit
def block_conv(
    x, delta, weight, position, prefix, count, y,
    TAPS: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr, PARTS: tl.constexpr, X_STRIDE: tl.constexpr,
    DELTA_STRIDE: tl.constexpr, Y_STRIDE: tl.constexpr, CHANNELS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """x [rows, PARTS, WIDTH], delta fp32 [rows, TAPS * WIDTH / GROUP], weight fp32 [TAPS, WIDTH], position and prefix
    [rows], count [1] int32 -> y [rows, WIDTH] in its own type. Rows begin every *_STRIDE elements.

    The row's own tap first, behind it by fused multiply-adds. Grid (rows, blocks of CHANNELS).
    """
    let_next(PDL)
    row = tl.program_id(0)
    i = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside, place = i < WIDTH, row.to(tl.int64)
    rows, within = tl.load(count), tl.load(position + row) - tl.load(prefix + row)
    fixed = ()
    for tap in tl.static_range(TAPS):
        fixed = fixed + (tl.load(weight + tap * WIDTH + i, mask=inside, other=0.0),)  # noqa: RUF005 - Triton knows no star
    wait(PDL)
    if row < rows:
        added = delta + place * DELTA_STRIDE + i // GROUP
        total = tl.zeros((CHANNELS,), tl.float32)
        for tap in tl.static_range(TAPS):
            there = i < tl.where(within >= tap, WIDTH, 0)
            value = sum_of_parts(x + (place - tap) * X_STRIDE + i, there, PARTS, WIDTH).to(tl.float32)
            factor = fixed[tap] + tl.load(added + tap * (WIDTH // GROUP), mask=there, other=0.0)
            total = value * factor if tap == 0 else tl.where(there, tl.fma(value, factor, total), total)
        tl.store(y + place * Y_STRIDE + i, total.to(y.dtype.element_ty), mask=inside)


def span_of(window: int) -> int:
    """Positions of a span: of the window alone, or a row would have other bits in another pass."""
    return max(2 * TILE.value, power_of_two(window) // WINDOW_SPANS)


def num_spans(window: int, block: int, context: int) -> int:
    """The most spans that a block sees positions of, all of them below `context`."""
    span = span_of(window)
    return min((window + block - 2) // span + 2, -(-context // span))


def block_attention_works(
    *,
    rows: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    block: int,
    window: int,
    context: int,
    scale: float,
    q_stride: int,
    table_stride: int,
    page: int,
    itemsize: int,
) -> tuple[Work, Work]:
    """Works of `block_attention_split` and `block_attention_merge` for up to `rows` rows.

    Their partial results are m and l, fp32 [rows, heads, num_spans(window, block, context)], and acc, [.., head_dim].
    `page` counts elements of `itemsize` bytes; positions, those of whole blocks, stay below `context`.
    """
    spans, group = num_spans(window, block, context), heads // kv_heads
    # Tiles follow from the model alone: products of one shape, whoever is in the pass.
    most, stages = (16, 1) if itemsize == 4 else (128, 3) if head_dim <= 128 else (64, 2)
    tile_rows = min(block, max(1, most // group))
    pairs = padded(tile_rows * group)
    shapes = {
        "ROWS": rows, "HEADS": heads, "KV_HEADS": kv_heads, "HEAD_DIM": head_dim, "BD": padded(head_dim),
        "BLOCK": block, "WINDOW": window, "SPAN": span_of(window), "SPANS": spans,
    }  # fmt: skip
    split = work(
        (kv_heads, -(-rows // tile_rows), spans), num_warps=8 if pairs * padded(head_dim) > 64 * 128 else 4,
        num_stages=stages, SCALE=exponent_scale(scale), Q_STRIDE=q_stride, TABLE_STRIDE=table_stride, PAGE=page,
        TILE_ROWS=tile_rows, BM=pairs, **shapes,
    )  # fmt: skip
    return split, work((rows, heads), num_warps=2, DEPTH=min(spans, WINDOW_SPANS + 2), **shapes)


def block_conv_work(
    *, rows: int, width: int, taps: int, group: int, parts: int, x_stride: int, delta_stride: int, y_stride: int
) -> Work:
    """Work of `block_conv` for `rows` rows, x in `parts`; strides in elements."""
    return work(
        (rows, -(-width // CHANNELS)), TAPS=taps, WIDTH=width, GROUP=group, PARTS=parts, X_STRIDE=x_stride,
        DELTA_STRIDE=delta_stride, Y_STRIDE=y_stride, CHANNELS=CHANNELS,
    )  # fmt: skip
