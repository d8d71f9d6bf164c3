"""Glue between reductions: add, mul and SwiGLU."""

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

WIDTHS = (1, 2, 15, 16, 17, 31, 32, 33, 97, 129, 1536, 1537)


def binary(kernel: str, x: np.ndarray, z: np.ndarray, path: Path | None = None, threads: int = 1) -> np.ndarray:
    count, width = x.shape
    y = canvas(count, width + 4)
    call(
        path or library(), kernel, threads, count=count, x=poisoned(x, width + 1), x_stride=width + 1,
        z=poisoned(z, width + 6), z_stride=width + 6, y=y, y_stride=width + 4, width=width,
    )  # fmt: skip
    return written(y, count, width)


def swiglu(gate_up: np.ndarray, path: Path | None = None, threads: int = 1) -> np.ndarray:
    count, width = len(gate_up), gate_up.shape[1] // 2
    y = canvas(count, width + 4)
    call(
        path or library(), "swiglu", threads, count=count, x=poisoned(gate_up, 2 * width + 3),
        x_stride=2 * width + 3, y=y, y_stride=width + 4, width=width,
    )  # fmt: skip
    return written(y, count, width)


@pytest.mark.parametrize("width", WIDTHS)
def test_add_and_mul_round_once(width: int) -> None:
    x, z = normal(5, width), normal(5, width, seed=1)
    assert_bits(binary("add", x, z), x + z)
    assert_bits(binary("mul", x, z), x * z)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scale", (0.01, 1.0, 30.0))
def test_swiglu_accuracy(width: int, scale: float) -> None:
    gate_up = normal(7, 2 * width) * np.float32(scale)
    plain = kernels.swiglu(torch.from_numpy(gate_up)).numpy()
    exact = kernels.swiglu(torch.from_numpy(gate_up).double()).numpy()
    assert_accurate(swiglu(gate_up), exact, error(plain, exact))


def test_nan_is_not_hidden() -> None:
    gate_up = np.array([[1, np.nan, 2, 1, 1, np.nan]], np.float32)
    assert np.isnan(swiglu(gate_up)[0]).tolist() == [False, True, True]


@pytest.mark.parametrize("width", (33, 1536))
@pytest.mark.parametrize("kernel", ("add", "mul", "swiglu"))
def test_one_arithmetic(kernel: str, width: int) -> None:
    x = normal(ROWS, 2 * width) * np.float32(4)

    def rows_of(ids: Sequence[int], path: Path, threads: int) -> np.ndarray:
        if kernel == "swiglu":
            return swiglu(x[ids], path, threads)
        return binary(kernel, x[ids, :width], x[ids, width:], path, threads)

    assert_one_arithmetic(rows_of)
