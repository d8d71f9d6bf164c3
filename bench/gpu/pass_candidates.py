"""Tiles and parts of K worth a try for a linear among its neighbours in a pass. Knows nothing of time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from tandem.kernels.cuda.attention import Tiles
from tandem.kernels.cuda.linear_tiles import FewTiles, Matrix

SMALL = (
    *((8, bk, warps, 9, False) for bk in (128, 256) for warps in (2, 4)),
    *((16, bk, warps, 9, left) for bk in (64, 128, 256) for warps in (2, 4) for left in (False, True)),
    *((32, bk, 4, 9, left) for bk in (64, 128, 256) for left in (False, True)),
    *((64, bk, 4, 9, True) for bk in (64, 128)),
)
EVEN_INPUTS = (64, 128, 256)
PREFETCHES = (0, 256, 512, 1024, 2048, 4096)
MULTIPROCESSORS = 132
SHARED, RESERVED = 227 << 10, 1 << 10
Key = tuple[int, int, bool]
"""A matrix: width, inputs, whether gated."""
Option = tuple[FewTiles, int]
"""Tiles, and the parts of K."""
Chosen = dict[Key, Option]
Attention = tuple[Tiles, tuple[int, int, int] | None]
"""Tiles of the split, and warps, depth and columns of what folds its groups; None leaves those as they are."""


def options(matrix: Matrix, rows: int) -> list[Option]:
    """Tiles worth a try whose stages fit a block's shared memory."""
    bm = 32 if rows > 16 else 16
    if matrix.n * matrix.k < 1 << 21:
        return [(tiles, 1) for tiles in small_candidates(matrix, bm)]
    found: dict[Option, None] = {}
    for count, places in product((1, 2, 4) if matrix.parts > 1 else (1,), (1, 2, 3, 4)):
        columns = -(-matrix.n * count // (MULTIPROCESSORS * places) // 8) * 8
        bn = 1 << columns.bit_length() - 1
        cuts = [(bn, columns - bn), (16, 0), (32, 0), (64, 0)] if bn <= 128 else [(32, 0), (64, 0), (128, 0)]
        for (bn, rest), bk in product(cuts, EVEN_INPUTS):
            if rest & (rest - 1) == 0:
                found |= {(tiles, count): None for tiles in stages(matrix, bm, bn, rest, bk, places)}
    return list(found)


def stages(matrix: Matrix, bm: int, bn: int, rest: int, bk: int, places: int) -> Iterator[FewTiles]:
    """As many as fit `places` times into a multiprocessor; weights left where whole warp groups may multiply."""
    stage = ((bn + rest) * (1 + matrix.gated) + bm) * bk * matrix.itemsize
    left = bn >= 64 and not rest
    most = min((SHARED // places - RESERVED) // stage, 12)
    if most >= 2 and stage >= 8 << 10:
        # What no warp group multiplies keeps one stage less in shared memory.
        for warps in (4, 8) if bn >= 128 else (4,):
            yield FewTiles(bm, bn, bk, warps, most if left else most + 1, left, 512, True, rest)


def small_candidates(matrix: Matrix, bm: int) -> Iterator[FewTiles]:
    for bn, bk, warps, most, left in SMALL:
        stage = (bn * (1 + matrix.gated) + bm) * bk * matrix.itemsize
        count = min(-(-matrix.k // bk) + 1, most, SHARED // stage)
        if count > 1:
            ahead = min(matrix.k * matrix.itemsize, 4096)
            yield from (FewTiles(bm, bn, bk, warps, count, left, ahead, early) for early in (False, True))


def neighbours(option: Option) -> list[Option]:
    """The same tiles that ask for other amounts ahead and let the next kernel start early or not."""
    tiles, count = option
    return [(replace(tiles, prefetch=p, early=early), count) for p in PREFETCHES for early in (False, True)]


def shown(tiles: FewTiles) -> str:
    left, early = "left" if tiles.weight_left else "right", " early" if tiles.early else ""
    shape = f"{tiles.bm}x{tiles.bn}+{tiles.rest}x{tiles.bk} w{tiles.num_warps} s{tiles.num_stages}"
    return f"{shape} {left} p{tiles.prefetch}{early}"


def told(option: Option) -> str:
    return shown(option[0]) + (f" in {option[1]} parts" if option[1] > 1 else "")


def split_options(rows: int) -> list[Attention]:
    """Tiles of attention's split over `rows` rows worth a try."""
    bms = (16,) if rows < 4 else (32, 64, 128)
    return [(Tiles(bm, warps, stages), None) for bm in bms for warps in (4, 8) for stages in (1, 2, 3)]


def fold_options(chosen: Attention, head_dim: int, tree: bool) -> list[Attention]:
    """The same split with other ways to fold its groups."""
    columns = (64, 128, head_dim) if tree and head_dim % 128 == 0 else (head_dim,)
    return [(chosen[0], fold) for fold in product((2, 4, 8), (2, 4, 8, 16), columns)]
