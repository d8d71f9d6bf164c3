"""Products of every format against their model in numpy, bit for bit, where sizes and numbers are awkward."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.compile.profile import Format
from tests.kernels.harness import LEVELS, assert_bits, error, library, normal
from tests.kernels.layer import FORMS, LOW_BIT, Layer
from tests.kernels.products import (
    GROUP,
    PANEL,
    PRODUCTS,
    fma,
    int4_views,
    int4_weights,
    int8_views,
    int8_weights,
    rounded_rows,
)


def model(layer: Layer, x: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # unused outputs are NaN
        found = PRODUCTS[layer.form](x, layer.panels)[:, : len(layer.weight)]
    return found if layer.bias is None else found + layer.bias


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("k", (1, 2, 4, 15, 31, 32, 33, 63, 65, 96, 127, 128, 129, 257, 576))
def test_the_kernel_is_its_model_over_widths(k: int, form: Format) -> None:
    for n in (1, 31, 32, 33, 129):
        layer, x = Layer(n, k, form, bias=n % 2 == 0), normal(7, k)
        for count in (1, 7):
            assert_bits(layer(x[:count]), model(layer, x[:count]), (n, count))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("level", LEVELS)
def test_the_kernel_is_its_model_over_row_counts(level: str, form: Format) -> None:
    layer, x = Layer(161, 70, form, bias=True), normal(64, 70) * np.float32(37)
    wanted = model(layer, x)
    for count in (*range(1, 20), 31, 32, 33, 64):
        assert_bits(layer(x[:count], library(level), 1 + count % 3), wanted[:count], count)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_the_kernel_is_its_model_whatever_the_numbers(data: st.DataObject) -> None:
    form, level = data.draw(st.sampled_from(FORMS)), data.draw(st.sampled_from(LEVELS))
    n, k, count = data.draw(st.integers(1, 70)), data.draw(st.integers(1, 100)), data.draw(st.integers(1, 14))
    layer, rng = Layer(n, k, form), np.random.default_rng(data.draw(st.integers(0, 2**32)))
    layer.hold(torch.from_numpy(wild(rng, n, k, 3)))
    x = wild(rng, count, k, 8)
    assert_bits(layer(x, library(level)), model(layer, x))


@pytest.mark.parametrize("form", ("fp32", "bf16"))
@pytest.mark.parametrize("level", LEVELS)
def test_numbers_below_the_normal_ones_count_as_zero(level: str, form: Format) -> None:
    """Inputs and weights around 2^-126, and products and sums that fall there."""
    rng, layer = np.random.default_rng(0), Layer(64, 50, form)
    for size in (-63, -126):
        layer.hold(torch.from_numpy(wild(rng, 64, 50, 0.6) * np.float32(2.0**-63)))
        x = wild(rng, 24, 50, 0.6) * np.float32(2.0) ** np.float32(size)
        assert_bits(layer(x, library(level)), model(layer, x), size)
    layer.hold(torch.from_numpy(wild(rng, 64, 50, 0.6) * np.float32(2.0**-126)))
    x = wild(rng, 24, 50, 0.6)
    assert_bits(layer(x, library(level)), model(layer, x))


def wild(rng: np.random.Generator, rows: int, columns: int, decades: float) -> np.ndarray:
    """Numbers of very different sizes, a third of them zero."""
    size = 10 ** rng.uniform(-decades, decades, (rows, columns))
    return (rng.choice([-1, 0, 1], (rows, columns)) * size).astype(np.float32)


@pytest.mark.parametrize("form", LOW_BIT)
@pytest.mark.parametrize("k", (31, 64, 576))
def test_float64_is_as_far_as_rounding_the_rows_allows(k: int, form: Format) -> None:
    """Half a step of a row's bytes per input, times the weights' sizes; and on the average far less."""
    layer, x = Layer(97, k, form), normal(13, k)
    exact = x.astype(np.float64) @ layer.weight.double().numpy().T
    spans, scale = rounded_rows(x, k if form == "int8" else GROUP)
    step = np.repeat(scale, spans.shape[2], axis=1)[:, :k]
    bound = step / 2 @ np.abs(layer.weight.numpy()).T
    found = layer(x)
    assert (np.abs(found - exact) <= bound * 1.001 + 1e-4).all()
    assert error(found, exact).rms < 0.02 * float(np.sqrt((exact**2).mean()))


def largest(n: int, k: int, form: Format, sign: int = 1) -> Layer:
    """Every weight byte as large as it can be."""
    layer = Layer(n, 32, form)
    layer.hold(torch.ones(n, k) * sign)
    if form == "int8":
        int8_views(layer.panels)[1][:] = 1
    else:
        pairs, reals = int4_views(layer.panels)
        pairs[:], reals[:, :, 0], reals[:, :, 1] = 255, 1, -8 * sign
    return layer


@pytest.mark.parametrize("sign", (1, -1))
@pytest.mark.parametrize("k", (32, 576, 14_336, 65_536))
@pytest.mark.parametrize("level", LEVELS)
def test_sums_are_exact_at_their_largest(level: str, k: int, sign: int) -> None:
    """255 * 127 * 65536 is just below 2^31: products of raised weights still fit."""
    layer, x = largest(33, k, "int8", sign), np.full((3, k), 5, np.float32)
    x[1] *= -1
    x[2, 1::2] *= -1
    assert (int8_weights(layer.panels)[0][:33] == 127 * sign).all()
    found, scale = layer(x, library(level)), np.float32(5) / np.float32(127)
    wanted = np.float32(127 * 127 * k * sign) * scale
    assert_bits(found, np.repeat(np.array([[wanted], [-wanted], [0]], np.float32), 33, axis=1))


@pytest.mark.parametrize("nibble", (0, 15))
@pytest.mark.parametrize("level", LEVELS)
def test_int4_sums_are_exact_at_their_largest(level: str, nibble: int) -> None:
    layer, x = largest(33, 14_336, "int4"), np.full((3, 14_336), 5, np.float32)
    int4_views(layer.panels)[0][:] = nibble * 17
    x[1] *= -1
    assert_bits(layer(x, library(level)), model(layer, x))
    x[2, 1::2] *= -1
    assert (layer(x, library(level))[2] == 0).all()


def diagonal(values: np.ndarray) -> Layer:
    """An int8 layer [len(values), 256] of scale 1: output n is `values[n]` times input n."""
    layer = Layer(len(values), 256, "int8")
    raised, scales = int8_views(layer.panels)
    raised[:], scales[:] = 128, 1
    for n, value in enumerate(values):
        raised[n // PANEL, n // 4, n % PANEL, n % 4] += value
    return layer


@pytest.mark.parametrize("level", LEVELS)
def test_every_pair_of_bytes_is_multiplied_exactly(level: str) -> None:
    grid = np.arange(-127, 128)
    x = np.full((255, 256), 127, np.float32)  # the last input keeps every row's scale at 1
    x[:, :255] = grid[:, None]
    np.testing.assert_array_equal(diagonal(grid)(x, library(level)), np.outer(grid, grid))


@pytest.mark.parametrize("level", LEVELS)
def test_rows_round_half_to_even(level: str) -> None:
    """254 makes a step of two."""
    x = np.full((1, 256), 254, np.float32)
    x[0, :255] = np.arange(-127, 128)
    found = diagonal(np.ones(255, np.int64))(x, library(level))
    assert found[0].tolist() == [2.0 * round(v / 2) for v in range(-127, 128)]


@pytest.mark.parametrize("level", LEVELS)
def test_every_fp16_scale_and_minimum_is_widened_exactly(level: str) -> None:
    """Nibble one times scale, and minimum, alone by turns; activations are one byte of 127."""
    finite = np.arange(2**16, dtype=np.uint16)
    finite = finite[finite & 0x7C00 != 0x7C00].view(np.float16)
    layer, x = Layer(len(finite), 32, "int4"), np.zeros((1, 32), np.float32)
    x[0, 0] = 127
    pairs, reals = int4_views(layer.panels)
    pairs[:] = 1
    for which in (0, 1):
        reals[:] = 0
        reals[: len(finite) // 32, 0, which] = finite.reshape(-1, 32)
        np.testing.assert_array_equal(layer(x, library(level))[0], finite.astype(np.float32) * 127)


def test_the_models_fma_rounds_once() -> None:
    """Beside sums of which float64 and then fp32 would each take half: 1 + 2^-24 and a little more or less."""
    for little in (2.0**-60, -(2.0**-60)):
        found = fma(np.float32([little]), np.float32([1]), np.float32([1]))
        assert found.tolist() == [1.0]
    tie = np.float32(1 + 2**-12)
    # (1 + 2^-12)^2 = 1 + 2^-11 + 2^-24, the middle of two fp32 numbers: c decides.
    for c, wanted in ((0.0, 1 + 2**-11), (1e-30, 1 + 2**-11 + 2**-23), (-1e-30, 1 + 2**-11)):
        assert fma(np.float32([tie]), np.float32([tie]), np.float32([c])).tolist() == [wanted]


def test_views_of_int4_weights_follow_the_written_layout() -> None:
    """Byte [i][n][b] of a group: input 4 i + b below, input 16 + 4 i + b above."""
    stored = np.zeros((1, 640), np.uint8)
    stored[0, (2 * 32 + 5) * 4 + 3] = 0x9C
    stored.view(np.float16)[0, 256 + 5], stored.view(np.float16)[0, 288 + 5] = 0.5, -1
    nibbles, scale, minimum = int4_weights(stored)
    assert (nibbles[5, 0, 11], nibbles[5, 0, 27], nibbles.sum()) == (12, 9, 21)
    assert (scale[5, 0], minimum[5, 0], scale.sum(), minimum.sum()) == (0.5, -1, 0.5, -1)
