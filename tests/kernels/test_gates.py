"""What gates hybrid layers: the decay and beta of a state, the norm of its output with its gate, attention's gate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

EPS = 1e-6
HEADS = (1, 3, 15, 16, 17, 48)
GROUPS = ((1, 1), (3, 20), (2, 64), (4, 33), (2, 128))
"""Heads of a row and their width."""


def gates(
    a: np.ndarray, b: np.ndarray, a_log: np.ndarray, dt_bias: np.ndarray, path: Path | None = None, threads: int = 1
) -> np.ndarray:
    """decay and beta side by side, [R, 2 heads]."""
    count, heads = a.shape
    decay, beta = canvas(count, heads + 1), canvas(count, heads + 4)
    call(
        path or library(), "delta_gates", threads, count=count, a=poisoned(a, heads + 2), a_stride=heads + 2,
        b=poisoned(b, heads + 3), b_stride=heads + 3, a_log=a_log, dt_bias=dt_bias, decay=decay,
        decay_stride=heads + 1, beta=beta, beta_stride=heads + 4, heads=heads,
    )  # fmt: skip
    return np.concatenate((written(decay, count, heads), written(beta, count, heads)), axis=1)


def gated_norm(
    x: np.ndarray, gate: np.ndarray, weight: np.ndarray, rounded: bool, path: Path | None = None, threads: int = 1
) -> np.ndarray:
    """x and gate [R, heads, D]"""
    count, groups, width = x.shape
    row = groups * width
    y = canvas(count, row + 2)
    call(
        path or library(), "gated_rms_norm", threads, count=count, x=poisoned(x.reshape(count, row), row + 3),
        x_stride=row + 3, gate=poisoned(gate.reshape(count, row), row + 5), gate_stride=row + 5, weight=weight, y=y,
        y_stride=row + 2, groups=groups, width=width, eps=EPS, rounded=int(rounded),
    )  # fmt: skip
    return written(y, count, row).reshape(x.shape)


def sigmoid_gate(x: np.ndarray, gate: np.ndarray, path: Path | None = None, threads: int = 1) -> np.ndarray:
    count, width = x.shape
    y = canvas(count, width + 4)
    call(
        path or library(), "sigmoid_gate", threads, count=count, x=poisoned(x, width + 1), x_stride=width + 1,
        z=poisoned(gate, width + 6), z_stride=width + 6, y=y, y_stride=width + 4, width=width,
    )  # fmt: skip
    return written(y, count, width)


def both(operator: Callable[..., object], *given: np.ndarray | float | bool) -> list[np.ndarray]:
    """An operator's definition in float32 and in float64, its outputs side by side."""
    outcomes = []
    for dtype in (torch.float32, torch.float64):
        out = operator(*(torch.from_numpy(x).to(dtype) if isinstance(x, np.ndarray) else x for x in given))
        outcomes.append(torch.cat(out if isinstance(out, tuple) else (out,), 1).numpy())
    return outcomes


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("scale", (0.1, 1.0, 8.0))
def test_gates_are_the_definition(heads: int, scale: float) -> None:
    given = normal(9, heads) * np.float32(scale), normal(9, heads, seed=1), normal(heads, seed=2), normal(heads, seed=3)
    plain, exact = both(kernels.delta_gates, *given)
    assert_accurate(gates(*given), exact, error(plain, exact))


def test_the_softplus_of_a_decay_over_its_range() -> None:
    """-log of the decay, where a_log makes it small enough that the decay's own rounding is far below it."""
    a = np.concatenate((np.linspace(-30, 60, 3001), (-200, -90, -87, 19.99, 20.0, 20.01, 80.0))).astype(np.float32)
    for a_log in (0.0, -3.0):
        zeros = np.zeros_like(a)
        decay = gates(a[None], zeros[None], zeros + np.float32(a_log), zeros)[0, : len(a)]
        exact = np.exp(-np.exp(np.float64(np.float32(a_log))) * np.logaddexp(0, a.astype(np.float64)))
        # An error of the exponent of 3 ulp, and of the exponential of 2.
        allowed = (3 * np.exp(a_log) * np.abs(a).clip(1) + 2) * 2.0**-23
        assert (np.abs(decay - exact) <= allowed * exact + 1e-37).all()


def test_a_closed_or_wide_open_gate() -> None:
    """No gate leaves its range, however far out its input lies."""
    ends = np.array([[-3e38, -1e4, -100, 100, 1e4, 3e38]], np.float32)
    zeros = np.zeros(6, np.float32)
    decay, beta = np.split(gates(ends, ends, zeros, zeros)[0], 2)
    np.testing.assert_allclose(decay, [1, 1, 1, 0, 0, 0], atol=1e-37)
    np.testing.assert_allclose(beta, [0, 0, 0, 1, 1, 1], atol=1e-37)


@pytest.mark.parametrize("bad", (np.nan, np.inf, -np.inf))
def test_what_is_no_number_shows(bad: float) -> None:
    a, b, zeros = normal(2, 20), normal(2, 20, seed=1), np.zeros(20, np.float32)
    clean = gates(a, b, zeros, zeros)
    a[0, 3], b[1, 17] = bad, bad
    found, where = gates(a, b, zeros, zeros), np.zeros(clean.shape, bool)
    where[0, 3] = where[1, 37] = True
    assert np.isnan(found[where]).all()
    assert_bits(found[~where], clean[~where])
    assert np.isnan(sigmoid_gate(np.ones_like(b), b)).sum() == 1


@pytest.mark.parametrize(("groups", "width"), GROUPS)
@pytest.mark.parametrize("rounded", (False, True))
def test_gated_norm_is_the_definition(groups: int, width: int, rounded: bool) -> None:
    x, gate, weight = normal(7, groups, width), normal(7, groups, width, seed=1) * np.float32(3), normal(width, seed=2)
    if not rounded:
        plain, exact = both(kernels.gated_rms_norm, x, gate, weight, EPS, False)
        assert_accurate(gated_norm(x, gate, weight, False), exact, error(plain, exact))
        return
    # A norm at the border of two bf16 numbers may round either way, so it is taken from the kernel without a gate.
    normed = np.empty_like(x)
    call(
        library(), "rms_norm", count=7, x=x, x_stride=groups * width, weight=weight, y=normed,
        y_stride=groups * width, groups=groups, width=width, eps=EPS,
    )  # fmt: skip
    kept = torch.from_numpy(normed).bfloat16().float()
    plain = (kept * torch.nn.functional.silu(torch.from_numpy(gate))).numpy()
    exact = (kept.double() * torch.nn.functional.silu(torch.from_numpy(gate).double())).numpy()
    assert_accurate(gated_norm(x, gate, weight, True), exact, error(plain, exact))


@pytest.mark.parametrize("width", (1, 15, 16, 33, 129))
@pytest.mark.parametrize("scale", (0.01, 1.0, 30.0))
def test_sigmoid_gate_is_the_definition(width: int, scale: float) -> None:
    x, gate = normal(7, width), normal(7, width, seed=1) * np.float32(scale)
    plain, exact = both(kernels.sigmoid_gate, x, gate)
    assert_accurate(sigmoid_gate(x, gate), exact, error(plain, exact))


@pytest.mark.parametrize("level", LEVELS[1:])
def test_gates_have_the_same_bits_everywhere(level: str) -> None:
    a = np.concatenate((np.linspace(-100, 100, 20_001), (0, -0.0, 1e-30, 1e-45, 3e38))).astype(np.float32)[None]
    given = a, a[:, ::-1].copy(), np.full(a.shape[1], 0.3, np.float32), np.zeros(a.shape[1], np.float32)
    assert_bits(gates(*given, library(level)), gates(*given))


@pytest.mark.parametrize("kernel", ("delta_gates", "gated_rms_norm", "sigmoid_gate"))
def test_one_arithmetic(kernel: str) -> None:
    x, gate = normal(ROWS, 66), normal(ROWS, 66, seed=1) * np.float32(4)
    weight, bias = normal(66, seed=2), normal(66, seed=3)

    def rows_of(ids: Sequence[int], path: Path, threads: int) -> np.ndarray:
        if kernel == "delta_gates":
            return gates(x[ids], gate[ids], weight, bias, path, threads)
        if kernel == "sigmoid_gate":
            return sigmoid_gate(x[ids], gate[ids], path, threads)
        normed, gating = x[ids].reshape(-1, 2, 33), gate[ids].reshape(-1, 2, 33)
        return gated_norm(normed, gating, weight[:33], True, path, threads).reshape(-1, 66)

    assert_one_arithmetic(rows_of)
