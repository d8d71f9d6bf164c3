"""The linear kernels in every format: fp32 and bf16 against float64, all of them bit for bit across what may vary."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from tandem import kernels
from tandem.compile.profile import Format
from tests.kernels.harness import (
    LEVELS,
    ROWS,
    assert_accurate,
    assert_bits,
    assert_one_arithmetic,
    error,
    library,
    normal,
)
from tests.kernels.layer import FORMS, LOW_BIT, Layer

FLOAT: tuple[Format, ...] = ("fp32", "bf16")


def check(layer: Layer, x: np.ndarray, counts: Sequence[int]) -> None:
    """Plain fp32 takes all rows at once: one row alone would take another, more precise road through PyTorch."""
    bias = None if layer.bias is None else torch.from_numpy(layer.bias)
    weight = layer.weight.bfloat16() if layer.form == "bf16" else layer.weight
    plain = kernels.linear(torch.from_numpy(x), weight, bias)
    exact = kernels.linear(torch.from_numpy(x).double(), weight, bias).numpy()
    for count in counts:
        assert_accurate(layer(x[:count]), exact[:count], error(plain, exact))


@pytest.mark.parametrize("form", FLOAT)
@pytest.mark.parametrize("k", (1, 2, 15, 17, 31, 63, 65, 127, 128, 129, 257, 576, 1537))
def test_accuracy_over_widths(k: int, form: Format) -> None:
    for n in (1, 31, 32, 33, 97):
        check(Layer(n, k, form, bias=n % 2 == 0), normal(7, k), (1, 7))


@pytest.mark.parametrize("form", FLOAT)
def test_accuracy_over_row_counts(form: Format) -> None:
    layer = Layer(161, 67, form, bias=True)
    check(layer, normal(ROWS, 67), (*range(1, 34), 63, 64, 65, 127, 128))


@pytest.mark.parametrize("form", FORMS)
def test_no_rows_write_nothing(form: Format) -> None:
    assert Layer(33, 5, form)(normal(0, 5)).size == 0


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("n", "k"), ((289, 150), (40, 1537), (1, 128)))
def test_one_arithmetic(n: int, k: int, form: Format) -> None:
    layer, x = Layer(n, k, form, bias=True), normal(ROWS, k)

    def rows_of(ids: Sequence[int], path: Path, threads: int) -> np.ndarray:
        return layer(x[ids], path, threads)

    assert_one_arithmetic(rows_of)


@pytest.mark.parametrize("form", FORMS)
def test_an_output_does_not_depend_on_the_outputs_beside_it(form: Format) -> None:
    whole, x = Layer(289, 131, form), normal(5, 131)
    for begin, n in ((0, 1), (17, 40), (96, 128), (288, 1)):
        part = Layer(n, 131, form)
        part.hold(torch.from_numpy(normal(289, 131, seed=1)[begin : begin + n]))
        for count in (1, 2, 5):
            assert_bits(part(x[:count]), whole(x[:count])[:, begin : begin + n], (begin, n, count))


@pytest.mark.parametrize("poison", (np.nan, np.inf, -np.inf))
@pytest.mark.parametrize("form", FORMS)
def test_what_is_not_finite_stays_in_its_row_and_shows(form: Format, poison: float) -> None:
    """One such input is enough, wherever it stands."""
    layer, x = Layer(70, 130, form), normal(32, 130)
    clean = layer(x)
    for row, column in ((11, 0), (17, 31), (30, 129)):
        x[row, column] = poison
    bad = np.isin(np.arange(32), (11, 17, 30))
    for level in LEVELS:
        dirty = layer(x, library(level), 2)
        assert not np.isfinite(dirty[bad]).any()
        assert_bits(dirty[~bad], clean[~bad])
        alone = layer(x[11:12], library(level))
        assert not np.isfinite(alone).any()


@pytest.mark.parametrize("form", FORMS)
def test_zero_rows_give_the_bias(form: Format) -> None:
    layer, x = Layer(70, 130, form, bias=True), normal(8, 130)
    beside = layer(x)
    x[2:5] = 0
    assert layer.bias is not None
    found = layer(x)
    assert_bits(found[2:5], np.tile(layer.bias, (3, 1)))
    assert_bits(found[[0, 1, 5, 6, 7]], beside[[0, 1, 5, 6, 7]])


@pytest.mark.parametrize("form", LOW_BIT)
def test_rows_too_small_to_divide_by_come_to_nothing(form: Format) -> None:
    """127 over such a peak leaves fp32."""
    layer, x = Layer(40, 64, form), np.zeros((3, 64), np.float32)
    x[0, 5], x[1, 40], x[2, ::7] = 1e-45, -1e-38, 2e-37
    found = layer(x)
    assert (np.abs(found) < 1e-34).all()
    for level in LEVELS[1:]:
        assert_bits(layer(x, library(level)), found, level)
