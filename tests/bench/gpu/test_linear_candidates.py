"""What the tuner of the linears tries: each once, all of it able to run, nothing for buckets that it is not for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.gpu.linear_candidates import SHAPES, Variant, candidates, matrix_of, prefetch_candidates
from tandem.kernels.cuda.linear_tiles import ChunkTiles, FewTiles


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", [1, 16, 32, 64, 2048])
def test_candidates_hold_the_bucket_and_differ(shape: str, rows: int) -> None:
    matrix = matrix_of(shape)
    found = candidates(matrix, rows)
    assert len(found) == len(set(found)) >= 3
    for tiles in found:
        assert isinstance(tiles, FewTiles if rows <= 32 else ChunkTiles)
        assert tiles.bm >= rows or isinstance(tiles, ChunkTiles)
        columns = -(-matrix.n // tiles.bn)
        parts = matrix.parts if rows <= 32 else 1
        assert Variant(matrix, tiles).work(rows).grid == (columns * -(-rows // tiles.bm), parts, 1)


def test_only_the_prefetch_varies_in_the_second_round() -> None:
    tiles = next(tiles for tiles in candidates(matrix_of("o"), 16) if isinstance(tiles, FewTiles))
    others = prefetch_candidates(tiles)
    assert len(set(others)) > 3
    assert all(isinstance(other, FewTiles) and replace(other, prefetch=tiles.prefetch) == tiles for other in others)
    assert not prefetch_candidates(candidates(matrix_of("o"), 64)[0])
