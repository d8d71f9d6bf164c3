"""Rotary: halves turned by the angle of the row's own position, the rest passed through."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from tandem import kernels
from tests.kernels.harness import (
    LEVELS,
    ROWS,
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
from tests.kernels.paged import Paged

CONTEXT = 300


def tables(half: int) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin [CONTEXT, half] in fp32."""
    angle = np.arange(CONTEXT)[:, None] * 10000.0 ** (-np.arange(half) / half)
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def rotate(x: np.ndarray, position: np.ndarray, half: int, path: Path | None = None, threads: int = 1) -> np.ndarray:
    """x [R, heads, D]"""
    count, heads, head_dim = x.shape
    width, (cos, sin) = heads * head_dim, tables(half)
    y = canvas(count, width + 2)
    call(
        path or library(), "rotary", threads, count=count, x=poisoned(x.reshape(count, width), width + 5),
        x_stride=width + 5, cos=cos, sin=sin, position=position, y=y, y_stride=width + 2, heads=heads,
        head_dim=head_dim, half=half,
    )  # fmt: skip
    return written(y, count, width).reshape(x.shape)


def positions(count: int) -> np.ndarray:
    return np.random.default_rng(5).integers(0, CONTEXT, count, dtype=np.int32)


@pytest.mark.parametrize("head_dim", (2, 16, 20, 48, 64, 80, 128, 256))
@pytest.mark.parametrize("turned", ("all", "half", "two"))
def test_accuracy(head_dim: int, turned: str) -> None:
    half = {"all": head_dim // 2, "half": max(1, head_dim // 4), "two": 1}[turned]
    x, position = normal(11, 3, head_dim), positions(11)
    position[:2] = 0, CONTEXT - 1
    cos, sin = (torch.from_numpy(t) for t in tables(half))
    where = torch.from_numpy(position)
    plain = kernels.rotary(torch.from_numpy(x), cos, sin, where).numpy()
    exact = kernels.rotary(torch.from_numpy(x).double(), cos, sin, where).numpy()
    found = rotate(x, position, half)
    assert_accurate(found, exact, error(plain, exact))
    assert_bits(found[..., 2 * half :], x[..., 2 * half :], "dimensions that pass through")


def test_position_zero_turns_nothing() -> None:
    x = normal(3, 2, 64)
    np.testing.assert_array_equal(rotate(x, np.zeros(3, np.int32), 32), x)


@pytest.mark.parametrize(("head_dim", "half"), ((64, 32), (20, 10), (80, 20)))
def test_one_arithmetic(head_dim: int, half: int) -> None:
    x, position = normal(ROWS, 3, head_dim), positions(ROWS)

    def rows_of(ids: Sequence[int], path: Path, threads: int) -> np.ndarray:
        return rotate(x[ids], position[ids], half, path, threads)

    assert_one_arithmetic(rows_of)


@pytest.mark.parametrize("half", (3, 10, 16, 32))
def test_output_may_lie_where_the_input_lay(half: int) -> None:
    x, position = normal(7, 3, 64), positions(7)
    in_place, (cos, sin) = x.copy(), tables(half)
    call(
        library(), "rotary", 2, count=7, x=in_place, x_stride=192, cos=cos, sin=sin, position=position, y=in_place,
        y_stride=192, heads=3, head_dim=64, half=half,
    )  # fmt: skip
    assert_bits(in_place, rotate(x, position, half))


@pytest.mark.parametrize("dtype", ("fp32", "bf16"))
@pytest.mark.parametrize(("head_dim", "half"), ((64, 32), (64, 8), (20, 3), (256, 32)))
@pytest.mark.parametrize("level", LEVELS)
def test_turned_on_the_way_to_the_cache(level: str, head_dim: int, half: int, dtype: str) -> None:
    """All of a head or its first dimensions: the bits of two rotations and a write."""
    q, k, v = normal(7, 6, head_dim), normal(7, 2, head_dim, seed=1), normal(7, 2, head_dim, seed=2)
    position, lane, slot = positions(7), np.zeros(7, np.int32), np.arange(60, 67, dtype=np.int32)
    at_once, apart = (Paged(2, head_dim, dtype, blocks=2) for _ in range(2))
    found = at_once.turn_and_write(q, k, v, lane, slot, position, *tables(half), library(level), 3)
    assert_bits(found, rotate(q, position, half))
    apart.write(rotate(k, position, half), v, lane, slot)
    assert_bits(at_once.memory, apart.memory)
