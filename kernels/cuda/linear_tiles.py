"""Tiles of the linear kernels: how much one program takes of a weight, by shape and row bucket.

Tiles move no bit of a result, only time; what is fast was measured on one H200 with `bench/gpu/tune_linear.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem.kernels.cuda.launch import Constant, Work, work
from tandem.kernels.cuda.parts import shortest_part

LINE = 128
"""Bytes that L2 fetches at once."""
MAX_FEW_ROWS = 32
MULTIPROCESSORS = 132
"""Of an H200."""
SHARED = 226 << 10
"""Bytes of shared memory for one program of a multiprocessor."""
MAX_STAGES = 12


@dataclass(frozen=True, slots=True)
class Matrix:
    """A linear: y width `n`, `k` inputs, bytes per weight, elements from row to row of x and y, parts of K."""

    n: int
    k: int
    gated: bool
    itemsize: int
    x_stride: int
    y_stride: int
    parts: int = 1

    @property
    def constants(self) -> dict[str, Constant]:
        """The kernels' constants that no tile decides."""
        return {
            "N": self.n,
            "K": self.k,
            "SPLIT": self.parts,
            "X_STRIDE": self.x_stride,
            "Y_STRIDE": self.y_stride,
            "GATED": self.gated,
        }


@dataclass(frozen=True, slots=True)
class FewTiles:
    """Tiles of `linear`: bm at least the row bucket, prefetch bytes of each weight row before the kernel's turn.

    `early` lets the next kernel's blocks start with this one's, else behind their start; `rest` are columns of a
    program behind its bn.
    """

    bm: int
    bn: int
    bk: int
    num_warps: int
    num_stages: int
    weight_left: bool
    prefetch: int
    early: bool = False
    rest: int = 0

    def work(self, matrix: Matrix) -> Work:
        """Work of `linear`: a program per bn + rest columns and part of K."""
        lines = min(self.prefetch, shortest_part(matrix.k, matrix.parts) * matrix.itemsize) // LINE
        return work(
            (-(-matrix.n // (self.bn + self.rest)), matrix.parts),
            num_warps=self.num_warps,
            num_stages=self.num_stages,
            BM=self.bm,
            BN=self.bn,
            REST=self.rest,
            BK=self.bk,
            WEIGHT_LEFT=self.weight_left,
            PREFETCH=LINE << lines.bit_length() - 1 if lines else 0,
            EARLY=self.early,
            **matrix.constants,
        )


@dataclass(frozen=True, slots=True)
class ChunkTiles:
    """Tiles of `linear_chunk`, and how many row tiles share a walk over the columns."""

    bm: int
    bn: int
    bk: int
    num_warps: int
    num_stages: int
    group: int

    def work(self, matrix: Matrix, rows: int) -> Work:
        """Work of `linear_chunk` over `rows` rows: a program per tile of y."""
        return work(
            (-(-rows // self.bm) * -(-matrix.n // self.bn),),
            num_warps=self.num_warps,
            num_stages=self.num_stages,
            BM=self.bm,
            BN=self.bn,
            BK=self.bk,
            GROUP=self.group,
            **matrix.constants,
        )


def even_columns(columns: int) -> tuple[int, int]:
    """Two powers of two, the second 0 or smaller: columns of a program that give all multiprocessors as many.

    A program of a large matrix fills a multiprocessor, and what one of them does more than the others all wait for.
    """
    each = -(-columns // MULTIPROCESSORS // 8) * 8
    while True:
        first = 1 << each.bit_length() - 1
        rest = each - first
        if rest & (rest - 1) == 0:
            return first, rest
        each += 8


def few_tiles(matrix: Matrix, rows: int) -> FewTiles:
    """Tiles of `linear` for a bucket of `rows` rows, at most MAX_FEW_ROWS.

    Those of a large matrix take so much shared memory that a multiprocessor holds one program: blocks that start
    early, where the kernel before makes room, are spread over all of them.
    """
    bm = 32 if rows > 16 else 16
    if matrix.itemsize == 4:
        return FewTiles(bm, 16, 64, num_warps=4, num_stages=3, weight_left=False, prefetch=512)
    if matrix.n * matrix.k < 1 << 21:
        return _small_few_tiles(matrix, bm)
    if matrix.n >= 1 << 15:  # a head
        if matrix.k < 1 << 11:
            return FewTiles(bm, 64, 64, num_warps=4, num_stages=8, weight_left=True, prefetch=256)
        return FewTiles(bm, 64, 128, num_warps=4, num_stages=3, weight_left=True, prefetch=256, early=True)
    if matrix.n < 1 << 12:  # fewer columns a program, or most multiprocessors have none
        return FewTiles(bm, 16, 128, num_warps=4, num_stages=6, weight_left=False, prefetch=1024)
    bn, rest = (32, 0) if matrix.gated and bm == 16 else even_columns(matrix.n * matrix.parts)
    lines = (bn + rest) * (1 + matrix.gated)
    left = lines >= 64 and not rest and not matrix.gated
    bk = 64 if left else 256 if lines <= 160 else 128
    # What no warp group multiplies keeps one stage less in shared memory.
    stages = min(SHARED // ((lines + bm) * bk * matrix.itemsize) + (not left), MAX_STAGES)
    return FewTiles(bm, bn, bk, 4, stages, left, prefetch=512, early=True, rest=rest)


def _small_few_tiles(matrix: Matrix, bm: int) -> FewTiles:
    """For matrices of a few megabytes: what counts is how soon the last program is done."""
    if matrix.gated or matrix.k > 1024:
        stages = 6 if matrix.gated else 9
        return FewTiles(bm, 16, 128, num_warps=2, num_stages=stages, weight_left=False, prefetch=4096)
    return FewTiles(bm, 16, 64, num_warps=2, num_stages=9, weight_left=True, prefetch=4096)


def chunk_tiles(matrix: Matrix, rows: int) -> ChunkTiles:
    """Tiles of `linear_chunk` for a prefill chunk of `rows` rows."""
    if matrix.itemsize == 4:
        return ChunkTiles(32, 32 if matrix.gated else 64, 32, num_warps=8, num_stages=2, group=16)
    if matrix.n < 4096 or rows < 512:
        return ChunkTiles(64, 64, 64, num_warps=4, num_stages=4, group=4)
    if matrix.gated or matrix.parts > 1 or matrix.k > 1 << 14:  # two sums in registers, or many stages
        return ChunkTiles(128, 128, 64, num_warps=8, num_stages=4, group=4)
    return ChunkTiles(128, 256, 64, num_warps=8, num_stages=4, group=4)
