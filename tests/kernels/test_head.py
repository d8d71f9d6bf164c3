"""The head's ends: rows picked for logits, rows left for a drafter, and the largest logit with its lead."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem import kernels
from tests.kernels.harness import (
    LEVELS,
    ROWS,
    assert_bits,
    assert_one_arithmetic,
    call,
    canvas,
    library,
    normal,
    poisoned,
    written,
)


def gather(x: np.ndarray, row: np.ndarray, path: Path | None = None, threads: int = 1) -> np.ndarray:
    width, count = x.shape[1], len(row)
    y = canvas(count, width + 2)
    call(
        path or library(), "gather_rows", threads, count=count, x=poisoned(x, width + 3), x_stride=width + 3, row=row,
        y=y, y_stride=width + 2, width=width,
    )  # fmt: skip
    return written(y, count, width)


def argmax(logits: np.ndarray, path: Path | None = None, threads: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """(ids int32 [O], gaps float32 [O]); places behind the last row must stay untouched."""
    count, width = logits.shape
    ids, gaps = np.full(count + 1, -5, np.int32), np.full(count + 1, -5, np.float32)
    call(
        path or library(), "argmax_gap", threads, count=count, logits=poisoned(logits, width + 3),
        logits_stride=width + 3, argmax=ids, gap=gaps, width=width,
    )  # fmt: skip
    assert ids[-1] == gaps[-1] == -5
    return ids[:-1], gaps[:-1]


def expected(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    ids = logits.argmax(-1)
    ordered = np.sort(logits, axis=-1)
    return ids.astype(np.int32), ordered[:, -1] - ordered[:, -2]


def check(logits: np.ndarray) -> None:
    ids, gaps = expected(logits)
    for level in LEVELS:
        found_ids, found_gaps = argmax(logits, library(level), 2)
        np.testing.assert_array_equal(found_ids, ids)
        np.testing.assert_array_equal(found_gaps, gaps)


@pytest.mark.parametrize("width", (1, 17, 576))
def test_gather_rows_copies(width: int) -> None:
    x = normal(20, width)
    row = np.array([19, 0, 0, 7, 3, 19], np.int32)
    assert_bits(gather(x, row, threads=3), x[row])


@pytest.mark.parametrize("width", (1, 17, 320))
def test_scatter_rows_leaves_what_is_wanted(width: int) -> None:
    x, row = normal(6, width), np.array([3, -1, 0, 11, -1, 5], np.int32)
    for level in LEVELS:
        ring = canvas(9, width)
        call(
            library(level), "scatter_rows", 3, count=len(row), x=poisoned(x, width + 3), x_stride=width + 3, ring=ring,
            tap_out=row, width=width,
        )  # fmt: skip
        wanted = canvas(9, width)
        for i in (0, 2, 3, 5):
            wanted[row[i]] = x[i]
        assert_bits(ring, wanted)
    by_definition = torch.from_numpy(canvas(9, width))
    kernels.scatter_rows(torch.from_numpy(x), by_definition, torch.from_numpy(row))
    assert_bits(by_definition.numpy(), wanted)


@pytest.mark.parametrize("width", (1, 17, 320))
def test_scatter_sum_leaves_sums_in_its_columns(width: int) -> None:
    """Sums of rows that are wanted; NaN stands around what is read, and what is beside its columns stays."""
    x, delta, row = normal(6, width), normal(6, width, seed=1), np.array([3, -1, 0, 8, -1, 5], np.int32)
    wide, first = width + 7, 4
    wanted = canvas(9, wide)
    for i in (0, 2, 3, 5):
        wanted[row[i], first : first + width] = x[i] + delta[i]
    for level in LEVELS:
        ring = canvas(9, wide)
        call(
            library(level), "scatter_sum", 3, count=len(row), x=poisoned(x, width + 3), x_stride=width + 3,
            delta=poisoned(delta, width + 1), delta_stride=width + 1, ring=ring.reshape(-1)[first:], ring_stride=wide,
            tap_out=row, width=width,
        )  # fmt: skip
        assert_bits(ring, wanted)
    by_definition = torch.from_numpy(canvas(9, wide))
    columns = by_definition[:, first : first + width]
    kernels.scatter_sum(torch.from_numpy(x), torch.from_numpy(delta), columns, torch.from_numpy(row))
    assert_bits(by_definition.numpy(), wanted)


@pytest.mark.parametrize("width", (2, 3, 15, 16, 17, 31, 33, 64, 97, 1000, 49157))
def test_argmax_and_gap(width: int) -> None:
    logits = normal(9, width)
    # The largest at the first, the last and each place of the tail.
    logits[1, 0] = logits[2, -1] = logits[3, width // 2] = 100
    logits[4, 0] = logits[4, -1] = 50
    check(logits)
    wanted, gap = kernels.argmax_gap(torch.from_numpy(logits))
    found, found_gap = argmax(logits)
    assert_bits(found, wanted.numpy())
    assert_bits(found_gap, gap.numpy())


@settings(max_examples=60)
@given(st.lists(st.sampled_from([-np.inf, -3.0, -2.0, -0.5, 0.0, 1.0, 2.0]), min_size=2, max_size=70))
def test_lowest_id_wins_every_tie(values: list[float]) -> None:
    logits = np.array([values], np.float32)
    ids, gaps = argmax(logits)
    assert ids[0] == values.index(max(values))
    ordered = sorted(values)
    if max(values) > -np.inf:
        assert gaps[0] == ordered[-1] - ordered[-2]


def test_minus_infinity_everywhere_but_one() -> None:
    logits = np.full((3, 37), -np.inf, np.float32)
    logits[0, 0], logits[1, 20], logits[2, 36] = -1e30, 0, 5
    ids, gaps = argmax(logits)
    assert ids.tolist() == [0, 20, 36] and (gaps == np.inf).all()


def test_minus_zero_ties_with_zero() -> None:
    logits = np.full((2, 20), -1, np.float32)
    logits[0, [4, 9]] = -0.0, 0.0
    logits[1, [4, 18]] = 0.0, -0.0
    ids, gaps = argmax(logits)
    assert ids.tolist() == [4, 4] and (gaps == 0).all()


def test_one_arithmetic() -> None:
    logits = normal(ROWS, 1003)

    def rows_of(ids: Sequence[int], path: Path, threads: int) -> np.ndarray:
        best, gap = argmax(logits[ids], path, threads)
        return np.stack((best.view(np.float32), gap), axis=1)

    assert_one_arithmetic(rows_of)
