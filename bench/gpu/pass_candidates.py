"""Tiles and parts of K worth a try for a linear among its neighbours in a pass. Knows nothing of time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tandem.kernels.cuda.linear_tiles import FewTiles, Matrix

SMALL = (
    *((8, bk, warps, 9, False) for bk in (128, 256) for warps in (2, 4)),
    *((16, bk, warps, 9, left) for bk in (64, 128, 256) for warps in (2, 4) for left in (False, True)),
    *((32, bk, 4, 9, left) for bk in (64, 128, 256) for left in (False, True)),
    *((64, bk, 4, 9, True) for bk in (64, 128)),
)
LARGE = ((64, 64), (64, 128), (32, 256), (128, 128))
"""Columns and inputs for large matrices, beside columns that give each multiprocessor as many as the next."""
EVEN_INPUTS = (32, 64, 128, 256)
PREFETCHES = (0, 256, 512, 1024, 2048, 4096)
MULTIPROCESSORS = 132
SHARED = 226 << 10
Key = tuple[int, int, bool]
"""A matrix: width, inputs, whether gated."""
Option = tuple[FewTiles, int]
"""Tiles, and the parts of K."""
Chosen = dict[Key, Option]


def options(matrix: Matrix, rows: int) -> list[Option]:
    """Tiles worth a try whose stages fit a block's shared memory."""
    bm = 32 if rows > 16 else 16
    if matrix.n * matrix.k < 1 << 21:
        return [(tiles, 1) for tiles in small_candidates(matrix, bm)]
    found = [(tiles, matrix.parts) for bn, bk in LARGE for tiles in stages(matrix, bm, bn, 0, bk)]
    for count in (1, 2, 4) if matrix.parts > 1 else (1,):
        columns = -(-matrix.n * count // MULTIPROCESSORS // 8) * 8
        bn = 1 << columns.bit_length() - 1
        rest = columns - bn
        if rest & (rest - 1) == 0:
            found += [(tiles, count) for bk in EVEN_INPUTS for tiles in stages(matrix, bm, bn, rest, bk)]
    return found


def stages(matrix: Matrix, bm: int, bn: int, rest: int, bk: int) -> Iterator[FewTiles]:
    """As many as fit, with few and many warps, weights left where whole warp groups may multiply."""
    stage = ((bn + rest) * (1 + matrix.gated) + bm) * bk * matrix.itemsize
    left = bn >= 64 and not rest
    most = min(SHARED // stage, 20)
    if most >= 3 and stage >= 8 << 10:
        for warps in (4, 8):
            # What no warp group multiplies keeps one stage less in shared memory.
            yield FewTiles(bm, bn, bk, warps, most if left else most + 1, left, 1024, True, rest)


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
