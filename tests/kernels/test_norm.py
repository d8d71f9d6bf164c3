"""RMS norm, alone and after the residual add."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from tandem import kernels
from tests.kernels.harness import (
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

EPS = 1e-5
WIDTHS = (1, 2, 15, 16, 17, 31, 33, 64, 127, 129, 576, 1537)


def norm(
    x: np.ndarray, weight: np.ndarray, groups: int = 1, path: Path | None = None, threads: int = 1, eps: float = EPS
) -> np.ndarray:
    """x [R, groups * width]"""
    count, width = x.shape
    x, y = poisoned(x, width + 3), canvas(count, width + 9)
    call(
        path or library(), "rms_norm", threads, count=count, x=x, x_stride=width + 3, weight=weight, y=y,
        y_stride=width + 9, groups=groups, width=width // groups, eps=eps,
    )  # fmt: skip
    return written(y, count, width)


def add_norm(
    x: np.ndarray, delta: np.ndarray, weight: np.ndarray, path: Path | None = None, threads: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    count, width = x.shape
    total, y = canvas(count, width + 1), canvas(count, width + 9)
    call(
        path or library(), "add_rms_norm", threads, count=count, x=poisoned(x, width + 3), x_stride=width + 3,
        delta=poisoned(delta, width + 17), delta_stride=width + 17, weight=weight, sum=total, sum_stride=width + 1,
        y=y, y_stride=width + 9, width=width, eps=EPS,
    )  # fmt: skip
    return written(total, count, width), written(y, count, width)


def reference(x: np.ndarray, weight: np.ndarray, groups: int, dtype: torch.dtype) -> np.ndarray:
    grouped = torch.from_numpy(x).to(dtype).view(len(x), groups, -1)
    return kernels.rms_norm(grouped, torch.from_numpy(weight).to(dtype), EPS).view(len(x), -1).numpy()


def check(x: np.ndarray, weight: np.ndarray, groups: int) -> None:
    plain, exact = (reference(x, weight, groups, dtype) for dtype in (torch.float32, torch.float64))
    assert_accurate(norm(x, weight, groups), exact, error(plain, exact))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scale", (1e-4, 1.0, 1e6))
def test_accuracy(width: int, scale: float) -> None:
    check(normal(9, width) * np.float32(scale), normal(width, seed=1), 1)


@pytest.mark.parametrize(("groups", "width"), ((2, 16), (3, 20), (8, 64), (5, 48), (7, 1), (1, 128)))
def test_head_norms(groups: int, width: int) -> None:
    check(normal(5, groups * width), normal(width, seed=1), groups)


def test_zeros_stay_zeros_and_eps_counts() -> None:
    weight = np.ones(20, np.float32)
    assert_bits(norm(np.zeros((2, 20), np.float32), weight), np.zeros((2, 20), np.float32))
    # mean of squares 9, eps 7: 3 / sqrt(16)
    np.testing.assert_array_equal(norm(np.full((1, 20), 3, np.float32), weight, eps=7.0), 0.75)


@pytest.mark.parametrize("width", WIDTHS)
def test_add_then_norm_is_the_sum_rounded_once_and_its_norm(width: int) -> None:
    x, delta, weight = normal(9, width), normal(9, width, seed=1), normal(width, seed=2)
    total, y = add_norm(x, delta, weight)
    assert_bits(total, x + delta)
    assert_bits(y, norm(total, weight))


@pytest.mark.parametrize(("groups", "width"), ((1, 576), (6, 33)))
def test_one_arithmetic(groups: int, width: int) -> None:
    x, weight = normal(ROWS, groups * width), normal(width, seed=1)

    def rows_of(ids: Sequence[int], path: Path, threads: int) -> np.ndarray:
        return norm(x[ids], weight, groups, path, threads)

    assert_one_arithmetic(rows_of)


def test_one_arithmetic_of_the_fused_norm() -> None:
    x, delta, weight = normal(ROWS, 579), normal(ROWS, 579, seed=1), normal(579, seed=2)

    def rows_of(ids: Sequence[int], path: Path, threads: int) -> np.ndarray:
        return np.concatenate(add_norm(x[ids], delta[ids], weight, path, threads), axis=1)

    assert_one_arithmetic(rows_of)


def test_sum_may_lie_where_x_lay() -> None:
    x, delta, weight = normal(5, 50), normal(5, 50, seed=1), normal(50, seed=2)
    total, y = add_norm(x, delta, weight)
    in_place, normed = x.copy(), np.empty_like(x)
    call(
        library(), "add_rms_norm", 2, count=5, x=in_place, x_stride=50, delta=delta, delta_stride=50, weight=weight,
        sum=in_place, sum_stride=50, y=normed, y_stride=50, width=50, eps=EPS,
    )  # fmt: skip
    assert_bits(in_place, total)
    assert_bits(normed, y)
