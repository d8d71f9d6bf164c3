"""Attention over the paged cache against float64, and bit for bit across everything that may vary."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.kernels.harness import (
    ROWS,
    assert_accurate,
    assert_bits,
    assert_one_arithmetic,
    error,
    normal,
)
from tests.kernels.paged import ANCESTORS, BEYOND, PAGE, STORED, Paged, fill, ints

CONTEXTS = (1, 63, 64, 65, 127, 130, 300)
HEAD_DIMS = (16, 20, 48, 64, 80, 128, 256)


def check(cache: Paged, heads: int, position: Sequence[int], lane: int = 0, scale: float | None = None) -> None:
    """Eight queries per position; the rows of one position have errors of one size."""
    scale = cache.head_dim**-0.5 if scale is None else scale
    q, lanes = normal(8, heads, cache.head_dim, seed=9), np.full(8, lane, np.int32)
    for at in position:
        where = np.full(8, at, np.int32)
        plain, exact = (cache.reference(q, where, lanes, dtype, scale) for dtype in (torch.float32, torch.float64))
        assert_accurate(cache.attend(q, where, lanes, scale=scale), exact, error(plain, exact))


@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_accuracy_over_contexts(head_dim: int, dtype: str) -> None:
    """Each context in a lane of its own; all behind a row's position is NaN, in its last page too."""
    cache = Paged(2, head_dim, dtype, lanes=len(CONTEXTS))
    for lane, context in enumerate(CONTEXTS):
        fill(cache, lane, range(context), seed=lane)
        check(cache, 6, [context - 1], lane)


@pytest.mark.parametrize("group", range(1, 9))
@pytest.mark.parametrize("kv_heads", (1, 3))
def test_accuracy_over_groups(kv_heads: int, group: int) -> None:
    cache = Paged(kv_heads, 48)
    fill(cache, 0, range(130))
    check(cache, kv_heads * group, (129, 64))


@pytest.mark.parametrize("scale", (1e-3, 3.0, 40.0))
def test_accuracy_of_flat_and_peaked_scores(scale: float) -> None:
    cache = Paged(2, 64)
    fill(cache, 0, range(200))
    check(cache, 4, (199, 150, 63, 7), scale=scale)


@pytest.mark.parametrize("peak", (0, 63, 64, 100, 199))
@pytest.mark.parametrize("height", (1e4, -1e4))
def test_a_score_far_from_all_others(peak: int, height: float) -> None:
    cache, v = Paged(1, 16), normal(200, 1, 16)
    k = np.zeros((200, 1, 16), np.float32)
    k[peak, 0, 0] = height
    cache.write(k, v, np.zeros(200, np.int32), np.arange(200, dtype=np.int32))
    q = np.zeros((1, 1, 16), np.float32)
    q[0, 0, 0] = 1
    found = cache.attend(q, ints(199), ints(0), scale=1.0)[0, 0]
    wanted = v[peak, 0] if height > 0 else np.delete(v, peak, axis=0).astype(np.float64).mean((0, 1))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-7)


def test_one_position_gives_back_its_value() -> None:
    cache = Paged(2, 20)
    fill(cache, 0, [0])
    found = cache.attend(normal(1, 4, 20), ints(0), ints(0))
    value = cache.v[cache.table[0, 0], :, 0, :20]
    assert_bits(found[0], np.repeat(value, 2, axis=0))


@pytest.mark.parametrize("tree", (False, True))
@pytest.mark.parametrize(("head_dim", "dtype"), ((64, "bf16"), (64, "fp32"), (20, "bf16"), (80, "fp32")))
def test_one_arithmetic(head_dim: int, dtype: str, tree: bool) -> None:
    lanes = 3
    cache = Paged(2, head_dim, dtype, lanes=lanes, blocks=4)
    for lane in range(lanes):
        fill(cache, lane, range(200), seed=lane)
    q, rng = normal(ROWS, 6, head_dim), np.random.default_rng(1)
    position = rng.integers(0, 200, ROWS, dtype=np.int32)
    lane = rng.integers(0, lanes, ROWS, dtype=np.int32)
    prefix = np.maximum(position - rng.integers(0, ANCESTORS, ROWS, dtype=np.int32), 0)
    ancestor = prefix[:, None] + np.arange(ANCESTORS, dtype=np.int32)

    def rows_of(ids: Sequence[int], path: Path, threads: int) -> np.ndarray:
        paths = (prefix[ids], ancestor[ids]) if tree else (None, None)
        return cache.attend(q[ids], position[ids], lane[ids], *paths, path, threads)

    assert_one_arithmetic(rows_of)


@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_chain_and_tree_kernels_agree(head_dim: int, dtype: str) -> None:
    """A chain told as a tree, and as a tree whose every position is prefix."""
    cache = Paged(2, head_dim, dtype)
    fill(cache, 0, range(200))
    position = ints(0, 1, 31, 62, 63, 64, 65, 94, 127, 128, 130, 199)
    count = len(position)
    q, lane = normal(count, 6, head_dim), np.zeros(count, np.int32)
    chain = cache.attend(q, position, lane)
    everywhere = np.full((count, ANCESTORS), BEYOND, np.int32)
    assert_bits(cache.attend(q, position, lane, position + 1, everywhere), chain, "all prefix")
    for back in (0, 1, 5, 31):
        prefix = np.maximum(position - back, 0)
        ancestor = prefix[:, None] + np.arange(ANCESTORS, dtype=np.int32)
        ancestor[ancestor > position[:, None]] = BEYOND
        assert_bits(cache.attend(q, position, lane, prefix, ancestor), chain, f"{back} ancestors")


def test_a_row_does_not_see_what_lies_behind_it() -> None:
    short, full = Paged(2, 48), Paged(2, 48)
    fill(short, 0, range(70))
    fill(full, 0, range(5 * PAGE))
    q = normal(3, 4, 48)
    position = ints(69, 40, 63)
    assert_bits(short.attend(q, position, np.zeros(3, np.int32)), full.attend(q, position, np.zeros(3, np.int32)))


def test_pages_may_lie_anywhere() -> None:
    q, position, lane = normal(2, 4, 48), ints(299, 130), ints(0, 1)
    found = []
    for seed in range(3):
        cache = Paged(2, 48, "bf16", lanes=2, seed=seed)
        for i in range(2):
            fill(cache, i, range(300), seed=i)
        found.append(cache.attend(q, position, lane))
    assert_bits(found[1], found[0])
    assert_bits(found[2], found[0])
