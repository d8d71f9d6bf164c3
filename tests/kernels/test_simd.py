"""The sixteen lanes seen through kernels: the exponential, widening and rounding, the same on every instruction set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.kernels.harness import LEVELS, assert_bits, call, library
from tests.kernels.layer import Layer
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
    layer = Layer(len(patterns), 1, "bf16")
    layer.hold(torch.from_numpy((patterns.astype(np.uint32) << 16).view(np.float32))[:, None])
    return layer(np.ones((1, 1), np.float32), library(level))[0]


@pytest.mark.parametrize("level", LEVELS)
def test_every_finite_bf16_is_widened_exactly(level: str) -> None:
    """Subnormal ones count as zero."""
    patterns = PATTERNS[FINITE_BF16]
    wanted = (patterns.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(widened(level, patterns), np.where(np.abs(wanted) < 2.0**-126, 0, wanted))


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


def folded(lanes: np.ndarray) -> np.float32:
    """Sixteen numbers added half onto half."""
    for half in (8, 4, 2, 1):
        lanes = lanes[:half] + lanes[half : 2 * half]
    return np.float32(lanes[0])


@pytest.mark.parametrize("level", LEVELS)
def test_sums_over_lanes_fold_in_halves(level: str) -> None:
    """A norm's sum of squares, whose numbers differ so much that another order shows."""
    rng, other = np.random.default_rng(0), 0
    for _ in range(200):
        x = (rng.choice([-1, 1], 16) * 2.0 ** rng.uniform(-13, 0, 16)).astype(np.float32)
        wanted = x * (np.float32(1) / np.sqrt(folded(x * x) / np.float32(16) + np.float32(1e-5)))
        y = np.empty_like(x)
        call(
            library(level), "rms_norm", count=1, x=x, x_stride=16, weight=np.ones(16, np.float32), y=y, y_stride=16,
            groups=1, width=16, eps=1e-5,
        )  # fmt: skip
        assert_bits(y, wanted)
        other += folded(x * x) != np.cumsum(x * x, dtype=np.float32)[-1]
    assert other > 50


@pytest.mark.parametrize("level", LEVELS)
def test_the_largest_lane_is_found_wherever_it_stands(level: str) -> None:
    """An int8 row's scale is that of its largest magnitude: over an identity each row gives its own numbers back."""
    x = np.tile(np.linspace(-1, 1, 40, dtype=np.float32), (40, 1))
    x[np.arange(40), np.arange(40)] = np.where(np.arange(40) % 2, -127, 127)
    layer = Layer(40, 40, "int8")
    layer.hold(torch.eye(40))
    found = layer(x, library(level))
    assert (found == np.rint(x) * layer.weight.diagonal().numpy()).all()
