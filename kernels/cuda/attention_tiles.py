"""What the attention kernels share: rows of q and of pages, the tiles of a pass, and one group of one tile.

Letters as in `tandem.kernels.cuda.attention`.
"""

# ruff: noqa: E741 - m, l and acc are what every paper on online softmax calls them.
from __future__ import annotations

import triton
import triton.language as tl

from tandem.kernels.cuda.groups import TILE, first_position
from tandem.kernels.cuda.order import prefetch_lines
from tandem.kernels.cuda.softmax import begun, empty, ended, fold, take_tile


@triton.jit
def load_rows(base, offset, inside, D: tl.constexpr, BD: tl.constexpr):
    """[rows, BD] of rows at base + offset [rows]; zeros where not `inside` [rows] (None: all are) and from D on."""
    d = tl.arange(0, BD)
    at = base + offset[:, None] + d[None, :]
    if D < BD:
        there = tl.broadcast_to((d < D)[None, :], at.shape)
        if inside is not None:
            there = there & inside[:, None]
        rows = tl.load(at, mask=there, other=0.0)
    elif inside is not None:
        rows = tl.load(at, mask=inside[:, None], other=0.0)
    else:
        rows = tl.load(at)
    return rows


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def _added(a, b):
    return a + b


@triton.jit
def tile_starts(lane, rows, G: tl.constexpr, BM: tl.constexpr, BR: tl.constexpr):
    """Where tiles begin: the pairs of each run of one lane, cut every BM.

    By row of the pass, [BR]: the first row of its run, the tile that starts in it (-1 for none; at most one as
    BM >= G) and that tile's first pair, counted in the run.
    """
    i = tl.arange(0, BR)
    inside = i < rows
    own = tl.load(lane + i, mask=inside, other=-1)
    before = tl.load(lane + i - 1, mask=inside & (i > 0), other=-1)
    run = tl.associative_scan(tl.where(own != before, i, 0), 0, _larger)
    first_pair = ((i - run) * G + BM - 1) // BM * BM
    starts = inside & (first_pair < (i - run + 1) * G)
    tile = tl.where(starts, tl.associative_scan(starts.to(tl.int32), 0, _added) - 1, -1)
    return run, tile, first_pair


@triton.jit
def num_tiles(one_lane, lane, rows, G: tl.constexpr, BM: tl.constexpr, BR: tl.constexpr):
    """Tiles of the pass; `one_lane` says that all rows are one run, which needs no search."""
    tiles = (rows * G + BM - 1) // BM
    if not one_lane:
        _run, tile, _first_pair = tile_starts(lane, rows, G, BM, BR)
        tiles = tl.max(tile, 0) + 1
    return tiles


@triton.jit
def tile_of(t, one_lane, lane, rows, G: tl.constexpr, BM: tl.constexpr, BR: tl.constexpr):
    """Of tile t: the first row and the number of rows of its run, and its first pair, counted in the run."""
    first_row, run_rows, first = t * 0, rows, t * BM
    if not one_lane:
        run, tile, first_pair = tile_starts(lane, rows, G, BM, BR)
        here, i = tile == t, tl.arange(0, BR)
        first_row = tl.sum(tl.where(here, run, 0), 0)
        run_rows = tl.sum(((i < rows) & (run == first_row)).to(tl.int32), 0)
        first = tl.sum(tl.where(here, first_pair, 0), 0)
    return first_row, run_rows, first


@triton.jit
def part_at(row, kv_head, group, ROWS: tl.constexpr, G: tl.constexpr, NUM_GROUPS: tl.constexpr):
    """Where a row's partial results of a group begin: those of one kv head and group stand together, pair by pair."""
    return ((kv_head * NUM_GROUPS + group) * ROWS + row) * G


@triton.jit
def ask_tile(k_cache, v_cache, table, kv_head, first, D: tl.constexpr, BD: tl.constexpr, PAGE: tl.constexpr):
    """Asks keys and values of the tile that begins at position `first` into L2."""
    STEP: tl.constexpr = 1024 // k_cache.dtype.element_ty.primitive_bitwidth
    line = tl.arange(0, TILE * BD // STEP) * STEP
    at = kv_head * TILE * D + tl.where(line < TILE * D, line, 0)
    page = tl.load(table + first // TILE).to(tl.int64) * PAGE
    prefetch_lines(k_cache + page + at, 1, STEP)
    prefetch_lines(v_cache + page + at, 1, STEP)


@triton.jit
def ask_ahead(
    k_cache, v_cache, table, kv_head, group, seen, D: tl.constexpr, BD: tl.constexpr, PAGE: tl.constexpr
):  # fmt: skip
    """Asks the first two tiles of a group into L2, as far as they begin below position `seen`."""
    for ahead in tl.static_range(2):
        first = first_position(group) + ahead * TILE
        if first < tl.minimum(seen, first_position(group + 1)):
            ask_tile(k_cache, v_cache, table, kv_head, first, D, BD, PAGE)


@triton.jit
def split_tile(
    q, k_cache, v_cache, position, table, m, l, acc, kv_head, group, run, run_rows, first_pair, seen,
    TREE: tl.constexpr, ROWS: tl.constexpr, HEADS: tl.constexpr, G: tl.constexpr, D: tl.constexpr, BD: tl.constexpr,
    SCALE: tl.constexpr, NUM_GROUPS: tl.constexpr, Q_STRIDE: tl.constexpr, PAGE: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """One group for the pairs from `first_pair` on of the rows run..run+run_rows-1; nothing where it holds no key.

    `seen` positions are seen by all of the run, in a tree or of one row; else each row sees those up to its own.
    """
    pair = first_pair + tl.arange(0, BM)
    row, head, inside = run + pair // G, kv_head * G + pair % G, pair < run_rows * G
    first = first_position(group)
    behind = first_position(group + 1)
    # Positions below `whole`, the end of a tile, are seen by every row: nothing is masked there.
    if TREE or ROWS == 1:
        end = tl.minimum(seen, behind)
        whole = end if TREE else first
    else:
        own = tl.load(position + row, mask=inside, other=-1)
        end = tl.minimum(tl.max(own, 0) + 1, behind)
        least = tl.min(tl.where(inside, own, behind), 0) + 1
        whole = tl.maximum(first, tl.minimum(least // TILE * TILE, end // TILE * TILE))
    if first < end:
        next_page = tl.load(table + first // TILE)
        rows = load_rows(q, row * Q_STRIDE + head * D, inside, D, BD)
        part_m, part_l, part_acc = empty(BM, BD)
        part_m, sums, part_acc = begun(part_m, part_l, part_acc)
        place = tl.arange(0, TILE)
        # One tile ahead: a page's number is not waited for, and takes no stage of the pipeline of loads.
        if TREE or ROWS > 1:
            for start in range(first, whole, TILE):
                page = next_page.to(tl.int64) * PAGE + kv_head * TILE * D
                next_page = tl.load(table + start // TILE + 1, mask=end - start > TILE, other=0)
                k = load_rows(k_cache + page, place * D, None, D, BD)
                v = load_rows(v_cache + page, place * D, None, D, BD)
                part_m, sums, part_acc = take_tile(rows, k, v, None, part_m, sums, part_acc, SCALE)
        if not TREE:
            for start in range(whole, end, TILE):
                page = next_page.to(tl.int64) * PAGE + kv_head * TILE * D
                next_page = tl.load(table + start // TILE + 1, mask=end - start > TILE, other=0)
                written = start + place < end
                k = load_rows(k_cache + page, place * D, written, D, BD)
                v = load_rows(v_cache + page, place * D, written, D, BD)
                if ROWS == 1:
                    visible = tl.broadcast_to(written[None, :], (BM, TILE))
                else:
                    visible = (start + place)[None, :] <= own[:, None]
                part_m, sums, part_acc = take_tile(rows, k, v, visible, part_m, sums, part_acc, SCALE)
        part_m, part_l, part_acc = ended(part_m, sums, part_acc)
        at, d = part_at(run, kv_head, group, ROWS, G, NUM_GROUPS) + pair, tl.arange(0, BD)
        tl.store(m + at, part_m, mask=inside)
        tl.store(l + at, part_l, mask=inside)
        tl.store(acc + at[:, None] * D + d[None, :], part_acc, mask=inside[:, None] & (d < D)[None, :])


@triton.jit
def repeated(x, ROWS: tl.constexpr):
    """x's rows again and again until there are ROWS, a multiple."""
    if len(x.shape) == 1:
        more = tl.reshape(tl.broadcast_to(x[None, :], (ROWS // x.shape[0], x.shape[0])), (ROWS,))
    else:
        more = tl.broadcast_to(x[None, :, :], (ROWS // x.shape[0], x.shape[0], x.shape[1]))
        more = tl.reshape(more, (ROWS, x.shape[1]))
    return more


@triton.jit
def load_part(m, l, acc, at, inside, D: tl.constexpr, BD: tl.constexpr):
    """The partial results at `at` [BM], empty where not `inside`."""
    part_m = tl.load(m + at, mask=inside, other=float("-inf"))
    part_l = tl.load(l + at, mask=inside, other=0.0)
    return part_m, part_l, load_rows(acc, at * D, inside, D, BD)


@triton.jit
def load_groups(
    m, l, acc, at, pair, pairs, first, behind,
    STEP: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """DEPTH partial results from group `first` on of those of `pair` [BG] below `pairs`, empty from `behind` on.

    Group 0 stands at `at`, the next STEP on. All loads are under way at once: only a fold waits for the one before.
    """
    parts = ()
    for i in tl.static_range(DEPTH):
        there = pair < tl.where(behind > first + i, pairs, 0)
        part = load_part(m, l, acc, at + (first + i) * STEP + pair, there, D, BD)
        parts = parts + (part,)  # noqa: RUF005 - Triton knows no star
    return parts


@triton.jit
def fold_parts(parts, all_m, all_l, all_acc, DEPTH: tl.constexpr):
    """What `load_groups` gave, folded behind the groups so far."""
    for i in tl.static_range(DEPTH):
        part_m, part_l, part_acc = parts[i]
        all_m, all_l, all_acc = fold(all_m, all_l, all_acc, part_m, part_l, part_acc)
    return all_m, all_l, all_acc


@triton.jit
def fold_groups(
    all_m, all_l, all_acc, m, l, acc, at, pair, pairs, begin, behind,
    STEP: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Groups begin..behind-1 in order, folded behind the groups so far; arguments as of `load_groups`."""
    for first in range(begin, behind, DEPTH):
        parts = load_groups(m, l, acc, at, pair, pairs, first, behind, STEP, D, BD, DEPTH)
        all_m, all_l, all_acc = fold_parts(parts, all_m, all_l, all_acc, DEPTH)
    return all_m, all_l, all_acc


@triton.jit
def merge_groups(
    m, l, acc, y, at, place, behind, STEP: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, DEPTH: tl.constexpr
):  # fmt: skip
    """One pair's groups 0..behind-1 in order, as in `fold_groups`: what attention gives, to y at `place`."""
    pair, d = tl.arange(0, 1), tl.arange(0, BD)
    all_m, all_l, all_acc = empty(1, BD)
    all_m, all_l, all_acc = fold_groups(
        all_m, all_l, all_acc, m, l, acc, at, pair, 1, 0, behind, STEP, D, BD, DEPTH
    )  # fmt: skip
    result = (all_acc / all_l[:, None]).to(y.dtype.element_ty)
    out = y + (place + pair)[:, None] * D + d[None, :]
    tl.store(out, result, mask=tl.broadcast_to((d < D)[None, :], (1, BD)))


@triton.jit
def path_places(table, paths, kv_head, first, end, committed, D: tl.constexpr, PAGE: tl.constexpr):
    """Of positions first..first+TILE-1: where their keys stand in the cache, and which are below `end`.

    Those from `committed` on lie in the slots that `paths` names.
    """
    seen = first + tl.arange(0, TILE)
    shown = seen < end
    slot = tl.where(seen < committed, seen, tl.load(paths + seen, mask=shown & (seen >= committed), other=0))
    page = tl.load(table + slot // TILE, mask=shown, other=0).to(tl.int64) * PAGE
    return page + (kv_head * TILE + slot % TILE) * D, shown


@triton.jit
def take_places(
    q, k_cache, v_cache, places, shown, m, sums, acc, D: tl.constexpr, BD: tl.constexpr, SCALE: tl.constexpr
):  # fmt: skip
    """Takes what `path_places` gave into (m, sums, acc) of the pairs of one row."""
    k, v = load_rows(k_cache, places, shown, D, BD), load_rows(v_cache, places, shown, D, BD)
    visible = tl.broadcast_to(shown[None, :], (q.shape[0], TILE))
    return take_tile(q, k, v, visible, m, sums, acc, SCALE)


@triton.jit
def take_path(
    q, k_cache, v_cache, table, paths, kv_head, start, end, committed, m, sums, acc,
    D: tl.constexpr, BD: tl.constexpr, SCALE: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """Takes the positions start..end-1, all of one group; arguments as of `path_places` and `take_places`."""
    for first in range(start, end, TILE):
        places, shown = path_places(table, paths, kv_head, first, end, committed, D, PAGE)
        m, sums, acc = take_places(q, k_cache, v_cache, places, shown, m, sums, acc, D, BD, SCALE)
    return m, sums, acc
