"""Tiles of the linear kernels: how much one program takes of a weight, by shape and row bucket.

Tiles move no bit of a result, only time; what is fast was measured on one H200 with `bench/gpu/tune_linear.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

LINE = 128
"""Bytes that L2 fetches at once."""
MAX_FEW_ROWS = 32


@dataclass(frozen=True, slots=True)
class FewTiles:
    """Tiles of `linear`: bm at least the row bucket, prefetch bytes of each weight row before the kernel's turn."""

    bm: int
    bn: int
    bk: int
    num_warps: int
    num_stages: int
    weight_left: bool
    prefetch: int


@dataclass(frozen=True, slots=True)
class ChunkTiles:
    """Tiles of `linear_chunk`, and how many row tiles share a walk over the columns."""

    bm: int
    bn: int
    bk: int
    num_warps: int
    num_stages: int
    group: int


def is_few(rows: int) -> bool:
    """Whether `linear` takes a bucket of `rows` rows, or `linear_chunk`."""
    return rows <= MAX_FEW_ROWS


def few_tiles(n: int, k: int, rows: int, gated: bool, itemsize: int) -> FewTiles:
    """Tiles for a weight of y width `n` and `k` inputs, for at most `rows` rows."""
    bm = 32 if rows > 16 else 16
    if itemsize == 4:
        return FewTiles(bm, 16, 64, num_warps=4, num_stages=3, weight_left=False, prefetch=512)
    if n * k < 1 << 21:
        return FewTiles(bm, 16, 256, num_warps=4, num_stages=3, weight_left=False, prefetch=1024)
    if gated:
        return FewTiles(bm, 64, 64, num_warps=4, num_stages=4, weight_left=True, prefetch=512)
    return FewTiles(bm, 64, 128, num_warps=4, num_stages=5, weight_left=True, prefetch=1024)


def chunk_tiles(n: int, rows: int, gated: bool, itemsize: int) -> ChunkTiles:
    """Tiles for a weight of y width `n`, for a prefill chunk of `rows` rows."""
    if itemsize == 4:
        return ChunkTiles(32, 32 if gated else 64, 32, num_warps=8, num_stages=2, group=16)
    if n < 4096 or rows < 512:
        return ChunkTiles(64, 64, 64, num_warps=4, num_stages=4, group=16)
    return ChunkTiles(128, 128 if gated else 256, 64, num_warps=8, num_stages=4 if gated else 3, group=16)
