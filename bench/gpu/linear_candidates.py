"""Shapes that the linears are tuned at, the tiles worth a try for each, and how one is compiled.

Knows nothing of time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tandem.kernels.cuda import linear as kernels
from tandem.kernels.cuda.launch import Work
from tandem.kernels.cuda.linear_tiles import MAX_FEW_ROWS, ChunkTiles, FewTiles, Matrix
from tandem.kernels.cuda.parts import splits

SHARED = 227 << 10
"""Bytes of shared memory of a multiprocessor; each program in it takes RESERVED beside its own."""
RESERVED = 1 << 10
MAX_STAGES = 8
# y width, K, gated
SHAPES = {
    "qkv": (8192, 5120, False),
    "o": (5120, 6144, False),
    "gate_up": (17408, 5120, True),
    "down": (5120, 17408, False),
    "head": (248320, 5120, False),
    "s.qkv": (960, 576, False),
    "s.o": (576, 576, False),
    "s.gate_up": (1536, 576, True),
    "s.down": (576, 1536, False),
    "s.head": (49152, 576, False),
}
LARGE = ((16, 64), (16, 256), (32, 128), (32, 256), (64, 64), (64, 128), (64, 256), (128, 64), (128, 128))
SMALL = ((8, 256), (8, 512), (16, 128), (16, 256), (16, 512), (16, 1024), (32, 128), (32, 256), (64, 64), (64, 128))
# bm, bn, bk, warps, stages
CHUNK = (
    (64, 64, 64, 4, 4),
    (64, 64, 128, 4, 4),
    (64, 128, 64, 4, 4),
    (64, 128, 128, 4, 3),
    (128, 64, 64, 4, 5),
    (128, 64, 64, 8, 5),
    (128, 128, 64, 4, 4),
    (128, 128, 64, 8, 3),
    (128, 128, 64, 8, 4),
    (128, 128, 128, 8, 3),
    (128, 256, 64, 8, 3),
    (128, 256, 64, 8, 4),
    (256, 64, 64, 8, 4),
    (256, 128, 64, 8, 3),
    (256, 128, 64, 8, 4),
)
Tiles = FewTiles | ChunkTiles


@dataclass(frozen=True, slots=True)
class Variant:
    """Tiles for a matrix."""

    matrix: Matrix
    tiles: Tiles

    def work(self, rows: int) -> Work:
        if isinstance(self.tiles, FewTiles):
            return self.tiles.work(replace(self.matrix, y_stride=self.matrix.n * self.matrix.parts))
        return self.tiles.work(self.matrix, rows)

    def compile(self) -> Any:
        """Triton's compiled kernel: bf16 or fp32 in, fp32 out, no bias, with programmatic dependence."""
        kernel = kernels.linear if isinstance(self.tiles, FewTiles) else kernels.linear_chunk
        work = self.work(rows=1)
        names = kernel.function.arg_names
        element = "*bf16" if self.matrix.itemsize == 2 else "*fp32"
        types = {"x": element, "weight": element, "count": "*i32", "y": "*fp32"}
        source = ASTSource(
            kernel.function,
            {name: types.get(name, "constexpr") for name in names},
            {**dict(work.constants), "bias": None, "PDL": True},
            {(names.index(name),): [["tt.divisibility", 16]] for name in types},
        )
        options = {"num_warps": work.num_warps, "num_stages": work.num_stages, "enable_fp_fusion": False}
        return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={**options, "launch_pdl": True})


def compile_to_cache(variant: Variant) -> str:
    """Fills Triton's cache on disk; what went wrong, or nothing."""
    try:
        variant.compile()
    except Exception as error:
        return f"{variant}: {str(error).strip()[-200:]}"
    return ""


def matrix_of(shape: str, itemsize: int = 2) -> Matrix:
    """A matrix of SHAPES, or one such as `25600x1232`: what `o` would be with K split in five."""
    if shape in SHAPES:
        n, k, gated = SHAPES[shape]
    else:
        (n, k), gated = map(int, shape.split("x")), False
    return Matrix(n, k, gated, itemsize, k, n, 1 if gated else splits(n, k))


def few_candidates(matrix: Matrix, rows: int) -> Iterator[FewTiles]:
    """Tiles that fill a multiprocessor's shared memory with one to four programs."""
    large = matrix.n * matrix.k > 1 << 22
    bm = 32 if rows > 16 else 16
    prefetch = 1024 if large else 512
    for (bn, bk), per_core in product(LARGE if large else SMALL, (1, 2, 3, 4) if large else (2, 4)):
        stage = (bn * (1 + matrix.gated) + bm) * bk * matrix.itemsize
        fitting = (SHARED // per_core - RESERVED) // stage
        stages = min(fitting, MAX_STAGES, max(2, -(-matrix.k // bk)))
        if stages >= 2 and bn >= 64:
            yield FewTiles(bm, bn, bk, 8 if bn == 128 else 4, stages, True, prefetch)
        elif stages >= 2:
            # What no warp group multiplies (below 64 columns) keeps one stage less in shared memory.
            yield FewTiles(bm, bn, bk, 4, stages + 1, bn >= 16, prefetch)
            yield FewTiles(bm, bn, bk, 4 if bn >= 16 else 2, stages + 1, False, prefetch)


def prefetch_candidates(tiles: Tiles) -> list[Tiles]:
    """The tiles with other amounts asked for ahead; none for chunks."""
    if isinstance(tiles, ChunkTiles):
        return []
    return [replace(tiles, prefetch=prefetch) for prefetch in (0, 256, 512, 1024, 2048, 4096)]


def chunk_candidates(matrix: Matrix, rows: int) -> Iterator[ChunkTiles]:
    """Tiles whose sums fit the registers, in two orders of walking over y."""
    for (bm, bn, bk, warps, stages), group in product(CHUNK, (4, 16)):
        shared = (bm + bn * (1 + matrix.gated)) * bk * matrix.itemsize * stages
        sums = bm * bn * (1 + (matrix.gated or matrix.parts > 1)) // (32 * warps)
        one_order = group == 4 and rows <= 4 * bm
        if shared <= SHARED - RESERVED and sums <= 128 and bm <= max(64, rows) and not one_order:
            yield ChunkTiles(bm, bn, bk, warps, stages, group)


def candidates(matrix: Matrix, rows: int) -> list[Tiles]:
    """What is worth a try for a bucket of `rows` rows, each once."""
    few = rows <= MAX_FEW_ROWS
    return list(dict.fromkeys(few_candidates(matrix, rows) if few else chunk_candidates(matrix, rows)))
