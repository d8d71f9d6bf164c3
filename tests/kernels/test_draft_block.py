"""Attention and convolution of draft blocks: against float64, and bit for bit in any company, on any team."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem import kernels
from tests.kernels.blocks import Blocks
from tests.kernels.harness import (
    ROWS,
    THREADS,
    Argument,
    assert_accurate,
    assert_bits,
    assert_one_arithmetic,
    call,
    canvas,
    error,
    library,
    normal,
    poisoned,
    written,
)
from tests.kernels.paged import STORED, Paged, fill, ints

FEW = settings(max_examples=30, deadline=None)
WINDOW, SIZE = 100, 8


def attend(
    cache: Paged, q: np.ndarray, position: np.ndarray, lane: np.ndarray, prefix: np.ndarray,
    window: int = WINDOW, size: int = SIZE, path: Path | None = None, threads: int = 1,
) -> np.ndarray:  # fmt: skip
    """q [R, heads, D] -> [R, heads, D]"""
    count, heads, width = len(q), q.shape[1], q.shape[1] * cache.head_dim
    y = canvas(count, width + 2)
    call(
        path or library(), f"block_attention_{cache.dtype}", threads, count=count,
        q=poisoned(q.reshape(count, width), width + 3), q_stride=width + 3, position=position, lane=lane, prefix=prefix,
        y=y, y_stride=width + 2, heads=heads, block=size, window=window, scale=0.25, **cache.where(),
    )  # fmt: skip
    return written(y, count, width).reshape(q.shape)


def defined(
    cache: Paged, q: np.ndarray, position: np.ndarray, lane: np.ndarray, prefix: np.ndarray,
    dtype: torch.dtype, window: int = WINDOW, size: int = SIZE,
) -> np.ndarray:  # fmt: skip
    rows = map(torch.from_numpy, (position, lane, prefix, cache.table))
    return kernels.block_attention(
        torch.from_numpy(q).to(dtype), *cache.tensors(dtype), *rows, 0.25, size, window
    ).numpy()


@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("head_dim", (16, 20, 64, 80, 128, 256))
def test_attention_is_the_definition(head_dim: int, dtype: str) -> None:
    """Contexts from none to more than the window; what lies before it and behind the block is NaN."""
    for anchor in (0, 5, 56, 57, 100, 190):
        cache = Paged(2, head_dim, dtype)
        fill(cache, 0, range(max(0, anchor - WINDOW + 1), anchor + SIZE), seed=anchor)
        blocks, lane = Blocks.of([anchor], SIZE), np.zeros(SIZE, np.int32)
        where = blocks.position, lane, blocks.prefix
        q = normal(SIZE, 6, head_dim, seed=9)
        plain, exact = (defined(cache, q, *where, kind) for kind in (torch.float32, torch.float64))
        assert_accurate(attend(cache, q, *where, threads=2), exact, error(plain, exact))


def test_the_definition_in_numpy() -> None:
    """Every row sees its block whole and less than a window back, and nothing else."""
    cache, anchor, size, window = Paged(1, 16), 70, 4, 10
    fill(cache, 0, range(100))
    k = np.stack([cache.k[cache.table[0, t // 64], 0, :, t % 64] for t in range(100)]).astype(np.float64)
    v = np.stack([cache.v[cache.table[0, t // 64], 0, t % 64] for t in range(100)]).astype(np.float64)
    q, blocks = normal(size, 2, 16), Blocks.of([anchor], size)
    found = defined(
        cache, q, blocks.position, np.zeros(size, np.int32), blocks.prefix, torch.float64, window=window, size=size
    )
    for row, at in enumerate(blocks.position):
        seen = [t for t in range(100) if t < anchor + size and at - t < window]
        for head in range(2):
            weight = np.exp(k[seen] @ q[row, head].astype(np.float64) * 0.25)
            np.testing.assert_allclose(found[row, head], weight @ v[seen] / weight.sum(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("group", range(1, 9))
def test_attention_over_groups(group: int) -> None:
    cache, blocks = Paged(3, 48), Blocks.of([130], SIZE)
    fill(cache, 0, range(138))
    q, lane = normal(SIZE, 3 * group, 48), np.zeros(SIZE, np.int32)
    where = blocks.position, lane, blocks.prefix
    plain, exact = (defined(cache, q, *where, dtype) for dtype in (torch.float32, torch.float64))
    assert_accurate(attend(cache, q, *where), exact, error(plain, exact))


@pytest.mark.parametrize(("head_dim", "dtype"), ((64, "bf16"), (20, "fp32")))
def test_one_arithmetic_of_attention(head_dim: int, dtype: str) -> None:
    cache, rng = Paged(2, head_dim, dtype, lanes=3, blocks=4), np.random.default_rng(1)
    for lane in range(3):
        fill(cache, lane, range(200), seed=lane)
    prefix = rng.integers(0, 200 - SIZE, ROWS, dtype=np.int32)
    position = prefix + rng.integers(0, SIZE, ROWS, dtype=np.int32)
    lane, q = rng.integers(0, 3, ROWS, dtype=np.int32), normal(ROWS, 6, head_dim)

    def rows_of(ids: Sequence[int], path: Path, threads: int) -> np.ndarray:
        return attend(cache, q[ids], position[ids], lane[ids], prefix[ids], path=path, threads=threads)

    assert_one_arithmetic(rows_of)


def test_pages_may_lie_anywhere() -> None:
    q, blocks, lane, found = normal(2 * SIZE, 4, 48), Blocks.of([150, 60], SIZE), np.repeat(ints(0, 1), SIZE), []
    for seed in range(2):
        cache = Paged(2, 48, "bf16", lanes=2, seed=seed)
        for i in range(2):
            fill(cache, i, range(160), seed=i)
        found.append(attend(cache, q, blocks.position, lane, blocks.prefix))
    assert_bits(found[1], found[0])


def convolve(
    x: np.ndarray, delta: np.ndarray, weight: np.ndarray, blocks: Blocks, path: Path | None = None, threads: int = 1
) -> np.ndarray:
    """x [R, C], delta [R, taps, groups], weight [taps, C] -> [R, C]"""
    (count, channels), (taps, groups) = x.shape, delta.shape[1:]
    y = canvas(count, channels + 2)
    call(
        path or library(), "block_conv", threads, count=count, x=poisoned(x, channels + 3), x_stride=channels + 3,
        delta=poisoned(delta.reshape(count, taps * groups), taps * groups + 1), delta_stride=taps * groups + 1,
        weight=weight, position=blocks.position, prefix=blocks.prefix, y=y, y_stride=channels + 2, channels=channels,
        taps=taps, group=channels // groups,
    )  # fmt: skip
    return written(y, count, channels)


def convolved(x: np.ndarray, delta: np.ndarray, weight: np.ndarray, blocks: Blocks, dtype: torch.dtype) -> np.ndarray:
    given = [torch.from_numpy(a).to(dtype) for a in (x, delta.reshape(len(x), -1), weight.reshape(-1))]
    where = map(torch.from_numpy, (blocks.position, blocks.prefix))
    return kernels.block_conv(*given, *where, len(weight)).numpy()


@given(
    st.sampled_from((1, 3, 16, 20)), st.integers(1, 9), st.integers(1, 4), st.integers(1, 9),
    st.lists(st.integers(0, 50), min_size=1, max_size=3), st.sampled_from(THREADS),
)  # fmt: skip
@FEW
def test_convolution_is_the_sum_over_the_rows_before(
    group: int, groups: int, taps: int, size: int, anchors: list[int], threads: int
) -> None:
    blocks, channels = Blocks.of(anchors, size), group * groups
    count = len(blocks.position)
    x, delta, weight = normal(count, channels), normal(count, taps, groups, seed=1), normal(taps, channels, seed=2)
    exact = np.zeros((count, channels))
    for row in range(count):
        for tap in range(min(taps, row % size + 1)):
            exact[row] += (weight[tap].astype(float) + np.repeat(delta[row, tap].astype(float), group)) * x[row - tap]
    np.testing.assert_allclose(convolved(x, delta, weight, blocks, torch.float64), exact, rtol=0, atol=1e-12)
    plain = convolved(x, delta, weight, blocks, torch.float32)
    assert_accurate(convolve(x, delta, weight, blocks, threads=threads), exact, error(plain, exact))


@pytest.mark.parametrize(("group", "groups", "taps"), ((16, 5, 2), (5, 7, 3)))
def test_one_arithmetic_of_the_convolution(group: int, groups: int, taps: int) -> None:
    """Blocks in any company."""
    size, channels = 3, group * groups
    x, delta = normal(ROWS, size, channels), normal(ROWS, size, taps, groups, seed=1)
    weight = normal(taps, channels, seed=2)

    def blocks_of(ids: Sequence[int], path: Path, threads: int) -> np.ndarray:
        blocks = Blocks.of([7 * i for i in ids], size)
        found = convolve(
            x[ids].reshape(-1, channels), delta[ids].reshape(-1, taps, groups), weight, blocks, path, threads
        )
        return found.reshape(len(ids), -1)

    assert_one_arithmetic(blocks_of)


def test_no_rows_touch_nothing() -> None:
    none, cache = Blocks.of([], SIZE), Paged(1, 16)
    assert convolve(normal(0, 20), normal(0, 2, 5), normal(2, 20), none, threads=3).size == 0
    assert attend(cache, normal(0, 2, 16), none.position, none.position, none.prefix, threads=3).size == 0


def test_a_bad_row_stays_in_its_block_and_its_taps() -> None:
    blocks = Blocks.of([4, 9], 4)
    x, delta, weight = normal(8, 20), normal(8, 2, 4, seed=1), normal(2, 20, seed=2)
    clean = convolve(x, delta, weight, blocks)
    for row in (2, 3):
        bad = x.copy()
        bad[row, 7] = np.nan
        found = convolve(bad, delta, weight, blocks)
        wrong = {(row, 7), (row + 1, 7)} if row == 2 else {(row, 7)}
        assert set(zip(*np.nonzero(np.isnan(found)), strict=True)) == wrong
        assert_bits(found[~np.isnan(found)], clean[~np.isnan(found)])


def test_definitions_keep_the_rules_of_torch() -> None:
    blocks, cache = Blocks.of([3], 4), Paged(2, 16)
    fill(cache, 0, range(7))
    where = [torch.from_numpy(a) for a in (blocks.position, np.zeros(4, np.int32), blocks.prefix, cache.table)]
    attention: tuple[Argument | torch.Tensor, ...] = (
        torch.from_numpy(normal(4, 4, 16)), *cache.tensors(), *where, 0.25, 4, 5,
    )  # fmt: skip
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.tandem.block_attention.default, attention, test_utils=checks)
    x, delta, weight = (torch.from_numpy(a) for a in (normal(4, 12), normal(4, 6), normal(24)))
    torch.library.opcheck(
        torch.ops.tandem.block_conv.default, (x, delta, weight, where[0], where[2], 2), test_utils=checks
    )
