"""The linear kernel against float64, over poisoned surroundings, and bit for bit across everything that may vary."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from tandem import kernels
from tandem.compile.quantise import PANEL, pack
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
    rounded,
    written,
)

DTYPES = {torch.float32: "linear_fp32", torch.bfloat16: "linear_bf16"}


def packed(weight: torch.Tensor) -> np.ndarray:
    """Panels whose unused outputs are NaN: nothing of them may be seen."""
    n, dtype = weight.shape[0], weight.dtype
    padded = torch.full((-(-n // PANEL) * PANEL, weight.shape[1]), torch.nan, dtype=dtype)
    padded[:n] = weight
    return pack(padded, dtype)


class Layer:
    def __init__(self, n: int, k: int, dtype: torch.dtype = torch.float32, bias: bool = False) -> None:
        self.weight = rounded(normal(n, k, seed=1), dtype)
        self.bias = normal(n, seed=2) if bias else None
        self.kernel, self.panels = DTYPES[dtype], packed(self.weight)

    def __call__(self, x: np.ndarray, path: Path | None = None, threads: int = 1) -> np.ndarray:
        (count, k), n = x.shape, self.weight.shape[0]
        x, y = poisoned(x, k + 5), canvas(count, n + 7)
        call(
            path or library(), self.kernel, threads, count=count, x=x, x_stride=k + 5, weight=self.panels,
            bias=self.bias, y=y, y_stride=n + 7, n=n, k=k,
        )  # fmt: skip
        return written(y, count, n)

    def check(self, x: np.ndarray, counts: Sequence[int]) -> None:
        """Plain fp32 takes all rows at once: one row alone would take another, more precise road through PyTorch."""
        bias = None if self.bias is None else torch.from_numpy(self.bias)
        plain = kernels.linear(torch.from_numpy(x), self.weight, bias)
        exact = kernels.linear(torch.from_numpy(x).double(), self.weight.double(), bias).numpy()
        for count in counts:
            assert_accurate(self(x[:count]), exact[:count], error(plain, exact))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", (1, 2, 15, 17, 31, 63, 65, 127, 128, 129, 257, 576, 1537))
def test_accuracy_over_widths(k: int, dtype: torch.dtype) -> None:
    for n in (1, 31, 32, 33, 97):
        Layer(n, k, dtype, bias=n % 2 == 0).check(normal(7, k), (1, 7))


@pytest.mark.parametrize("dtype", DTYPES)
def test_accuracy_over_row_counts(dtype: torch.dtype) -> None:
    layer = Layer(161, 67, dtype, bias=True)
    layer.check(normal(ROWS, 67), (*range(1, 34), 63, 64, 65, 127, 128))


def test_no_rows_write_nothing() -> None:
    assert Layer(33, 5)(normal(0, 5)).size == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "k"), ((289, 150), (40, 1537), (1, 128)))
def test_one_arithmetic(n: int, k: int, dtype: torch.dtype) -> None:
    layer, x = Layer(n, k, dtype, bias=True), normal(ROWS, k)

    def rows_of(ids: Sequence[int], path: Path, threads: int) -> np.ndarray:
        return layer(x[ids], path, threads)

    assert_one_arithmetic(rows_of)


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_output_does_not_depend_on_the_outputs_beside_it(dtype: torch.dtype) -> None:
    whole, x = Layer(289, 131, dtype), normal(5, 131)
    for begin, n in ((0, 1), (17, 40), (96, 128), (288, 1)):
        part = Layer(n, 131, dtype)
        part.weight = whole.weight[begin : begin + n]
        part.panels = packed(part.weight)
        for count in (1, 2, 5):
            assert_bits(part(x[:count]), whole(x[:count])[:, begin : begin + n], (begin, n, count))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_nan_row_stays_alone(dtype: torch.dtype) -> None:
    layer, x = Layer(70, 130, dtype), normal(32, 130)
    clean = layer(x)
    x[11] = np.nan
    dirty = layer(x)
    assert np.isnan(dirty[11]).all()
    keep = np.arange(32) != 11
    assert_bits(dirty[keep], clean[keep])
