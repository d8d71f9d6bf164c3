"""The sixteen lanes seen through kernels: the exponential, widening and rounding, the same on every instruction set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.kernels.harness import LEVELS, assert_bits, call, library
from tests.kernels.paged import PAGE, Paged

FINITE_BF16 = (np.arange(2**16) & 0x7F80) != 0x7F80
PATTERNS = np.arange(2**16, dtype=np.uint16)


def silu(gate: np.ndarray, path: Path | None = None) -> np.ndarray:
    """silu of a vector through the SwiGLU kernel, up being one."""
    x, y = np.concatenate((gate, np.ones_like(gate))), np.empty_like(gate)
    call(path or library(), "swiglu", count=1, x=x, x_stride=len(x), y=y, y_stride=len(y), width=len(y))
    return y


def exact_silu(gate: np.ndarray) -> np.ndarray:
    wide = gate.astype(np.float64)
    # Beyond 700 the exponential leaves float64 too; silu is then zero to any precision asked here.
    return wide / (1 + np.exp(np.minimum(-wide, 700)))


def sweep() -> np.ndarray:
    rng = np.random.default_rng(0)
    parts = np.linspace(-87, 87, 200_001), rng.uniform(-1, 1, 50_000), rng.normal(size=20_000) * 1e-3
    gate = np.concatenate(parts).astype(np.float32)
    return gate[gate != 0]


def test_exponential_over_its_range() -> None:
    gate = sweep()
    # The exponential, a sum and a division: two ulp in all.
    assert np.abs(silu(gate) / exact_silu(gate) - 1).max() < 2 * 2.0**-23


def test_exponential_at_the_ends_of_fp32() -> None:
    ends = (0.0, 87.0, 87.5, 88.0, 88.5, 88.8, 89.0, 103.0, 104.0, 150.0, 1e3, 1e4, 1e30, 3.4e38)
    gate = np.array([sign * x for x in ends for sign in (1, -1)], np.float32)
    found = silu(gate)
    assert np.isfinite(found).all()
    # Past the clamp silu is x e^-88 instead of x e^x: of no weight beside any normal number.
    small = np.abs(gate) <= 1e4
    np.testing.assert_allclose(found[small], exact_silu(gate[small]), rtol=2.0**-22, atol=1e-33)
    assert silu(np.array([np.inf], np.float32))[0] == np.inf


@pytest.mark.parametrize("level", LEVELS[1:])
def test_exponential_has_the_same_bits_everywhere(level: str) -> None:
    special = np.array([0.0, -0.0, 1e-45, -1e-45, 1e-38, 88.0, 89.0, -88.0, -89.0, 1e4, -1e4, 3e38, -3e38, np.inf])
    gate = np.concatenate((sweep(), special.astype(np.float32)))
    assert_bits(silu(gate, library(level)), silu(gate), level)


def widened(level: str, patterns: np.ndarray) -> np.ndarray:
    """bf16 patterns as one linear layer's weights, times one."""
    panels = np.zeros((-(-len(patterns) // 32), 32), np.uint16)
    panels.reshape(-1)[: len(patterns)] = patterns
    panels = np.ascontiguousarray(panels.reshape(-1, 2, 16).swapaxes(1, 2))
    y = np.empty(len(patterns), np.float32)
    call(
        library(level), "linear_bf16", count=1, x=np.ones(1, np.float32), x_stride=1, weight=panels, bias=None, y=y,
        y_stride=len(y), n=len(y), k=1,
    )  # fmt: skip
    return y


@pytest.mark.parametrize("level", LEVELS)
def test_every_finite_bf16_is_widened_exactly(level: str) -> None:
    patterns = PATTERNS[FINITE_BF16]
    np.testing.assert_array_equal(widened(level, patterns), (patterns.astype(np.uint32) << 16).view(np.float32))


def rounding_cases() -> np.ndarray:
    """Every bf16 number, and beside it just below, at and just above the middle to the next."""
    high = PATTERNS.astype(np.uint32) << 16
    return np.concatenate([high + low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]).astype(np.uint32)


@pytest.mark.parametrize("level", LEVELS)
def test_rounding_to_bf16_is_to_nearest_even(level: str) -> None:
    x = rounding_cases().view(np.float32).reshape(-1, 1, 256)
    slots = np.arange(len(x), dtype=np.int32)
    cache = Paged(1, 256, "bf16", blocks=-(-len(x) // PAGE))
    cache.write(x, x, np.zeros_like(slots), slots, library(level))
    wanted = torch.from_numpy(x).to(torch.bfloat16).view(torch.uint16).numpy()[:, 0]
    page, place = cache.table[0, slots // PAGE], slots % PAGE
    nan = np.isnan(x[:, 0])
    for found in (cache.k[page, 0, :, place], cache.v[page, 0, place]):
        np.testing.assert_array_equal(found[~nan], wanted[~nan])
        # Any NaN will do, as long as it is one.
        assert ((found[nan] & 0x7FFF) > 0x7F80).all()
