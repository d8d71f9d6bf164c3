"""What a product takes along, residual add, norm and gate, against the same steps launched one by one, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tandem.compile.profile import Format
from tests.kernels.harness import LEVELS, ROWS, assert_bits, assert_one_arithmetic, call, library, normal
from tests.kernels.layer import EPS, FORMS, Layer

COUNTS = (*range(1, 34), 48, 63, 64, 65, 100)


def normed(x: np.ndarray, weight: np.ndarray, path: Path) -> np.ndarray:
    (count, width), y = x.shape, np.empty_like(x)
    call(
        path, "rms_norm", count=count, x=x, x_stride=width, weight=weight, y=y, y_stride=width, groups=1, width=width,
        eps=EPS,
    )  # fmt: skip
    return y


def add_normed(x: np.ndarray, delta: np.ndarray, weight: np.ndarray, path: Path) -> tuple[np.ndarray, np.ndarray]:
    (count, width), total, y = x.shape, np.empty_like(x), np.empty_like(x)
    call(
        path, "add_rms_norm", count=count, x=x, x_stride=width, delta=delta, delta_stride=width, weight=weight,
        sum=total, sum_stride=width, y=y, y_stride=width, width=width, eps=EPS,
    )  # fmt: skip
    return total, y


def swiglu(x: np.ndarray, path: Path) -> np.ndarray:
    count, width = len(x), x.shape[1] // 2
    y = np.empty((count, width), np.float32)
    call(path, "swiglu", count=count, x=x, x_stride=2 * width, y=y, y_stride=width, width=width)
    return y


def one_by_one(
    layer: Layer, x: np.ndarray, path: Path, *, norm: np.ndarray | None, delta: np.ndarray | None, gated: bool
) -> np.ndarray:
    x, total, weight = np.ascontiguousarray(x), None, norm
    if delta is not None:
        # A norm of ones stands where the product takes the sum as it is.
        total, y = add_normed(
            x, np.ascontiguousarray(delta), np.ones(x.shape[1], np.float32) if weight is None else weight, path
        )
        x = total if weight is None else y
    elif weight is not None:
        x = normed(x, weight, path)
    y = layer(x, path)
    y = swiglu(y, path) if gated else y
    return y if total is None else np.concatenate((total, y), axis=1)


@pytest.mark.parametrize("gated", (False, True))
@pytest.mark.parametrize("front", ("", "norm", "delta", "delta norm"))
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("k", (33, 64, 250))
def test_fused_is_one_by_one(k: int, form: Format, front: str, gated: bool) -> None:
    layer, x = Layer(320, k, form, bias=not gated), normal(ROWS, k) * np.float32(3)
    norm = normal(k, seed=3) if "norm" in front else None
    delta = normal(ROWS, k, seed=4) if "delta" in front else None
    wanted = one_by_one(layer, x, library(), norm=norm, delta=delta, gated=gated)
    for count in COUNTS:
        part = None if delta is None else delta[:count]
        found = layer(x[:count], None, 1 + count % 3, norm=norm, delta=part, gated=gated)
        assert_bits(found, wanted[:count], count)


@pytest.mark.parametrize("n", (64, 128, 192, 448))
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("level", LEVELS)
def test_gates_find_their_partners(level: str, form: Format, n: int) -> None:
    """Odd and even numbers of pairs, on every instruction set and more threads than pairs."""
    layer, x, norm, delta = Layer(n, 70, form), normal(13, 70), normal(70, seed=3), normal(13, 70, seed=4)
    wanted = one_by_one(layer, x, library(), norm=norm, delta=delta, gated=True)
    for count in (1, 2, 3, 5, 8, 13):
        for threads in (1, 2, 5):
            found = layer(x[:count], library(level), threads, norm=norm, delta=delta[:count], gated=True)
            assert_bits(found, wanted[:count], (count, threads))


@pytest.mark.parametrize("form", FORMS)
def test_one_arithmetic(form: Format) -> None:
    layer, norm = Layer(256, 150, form), normal(150, seed=3)
    x, delta = normal(ROWS, 150), normal(ROWS, 150, seed=4)

    def rows_of(ids: Sequence[int], path: Path, threads: int) -> np.ndarray:
        return layer(x[ids], path, threads, norm=norm, delta=delta[ids], gated=True)

    assert_one_arithmetic(rows_of)


@pytest.mark.parametrize("form", FORMS)
def test_a_bad_row_stays_alone_behind_a_norm(form: Format) -> None:
    layer, norm = Layer(128, 70, form), normal(70, seed=3)
    x, delta = normal(9, 70), normal(9, 70, seed=4)
    clean = layer(x, norm=norm, delta=delta, gated=True)
    x[2, 5], delta[6, 69] = np.nan, np.inf
    dirty, bad = layer(x, norm=norm, delta=delta, gated=True), np.isin(np.arange(9), (2, 6))
    assert not np.isfinite(dirty[bad, 70:]).any()
    assert_bits(dirty[~bad], clean[~bad])


def test_no_rows_write_nothing() -> None:
    empty = np.zeros((0, 70), np.float32)
    assert Layer(128, 70, "int4")(empty, None, 3, norm=normal(70), delta=empty, gated=True).size == 0
