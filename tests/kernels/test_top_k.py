"""The likeliest tokens of a row and the log of its sum of exponentials."""

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
    assert_accurate,
    assert_bits,
    assert_one_arithmetic,
    call,
    error,
    library,
    normal,
    poisoned,
)

Found = tuple[np.ndarray, np.ndarray, np.ndarray]


def top(logits: np.ndarray, k: int, path: Path | None = None, threads: int = 1) -> Found:
    """(ids int32 [O, k], logits float32 [O, k], float32 [O]); places behind the last row must stay untouched."""
    count, width = logits.shape
    ids, values = np.full((count + 1, k), -5, np.int32), np.full((count + 1, k), -5, np.float32)
    sums = np.full(count + 1, -5, np.float32)
    call(
        path or library(), "top_k", threads, count=count, logits=poisoned(logits, width + 3), logits_stride=width + 3,
        draft_token=ids, draft_logit=values, draft_lse=sums, width=width, top=k,
    )  # fmt: skip
    assert (ids[-1] == -5).all() and (values[-1] == -5).all() and sums[-1] == -5
    return ids[:-1], values[:-1], sums[:-1]


def expected(logits: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """By the rule itself: larger first, then the lower id."""
    order = [sorted(range(len(row)), key=lambda i, row=row: (-row[i], i))[:k] for row in logits.tolist()]
    ids = np.array(order, np.int32).reshape(len(logits), k)
    return ids, np.take_along_axis(logits, ids.astype(np.int64), axis=1)


def exact_sums(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    peak = wide.max(-1)
    return peak + np.log(np.exp(wide - peak[:, None]).sum(-1))


@pytest.mark.parametrize("k", (1, 2, 16))
@pytest.mark.parametrize("width", (16, 17, 63, 64, 65, 80, 127, 1000, 8192, 49157))
def test_largest_first(width: int, k: int) -> None:
    logits = 3 * normal(7, width)
    # The largest at the first, the last and a middle place, and equals far apart.
    logits[1, 0] = logits[2, -1] = logits[3, width // 2] = 100
    logits[4, 0] = logits[4, -1] = 50
    ids, values = expected(logits, k)
    plain = error(torch.from_numpy(logits).logsumexp(-1).numpy(), exact_sums(logits))
    for level in LEVELS:
        found = top(logits, k, library(level), 2)
        assert_bits(found[0], ids)
        assert_bits(found[1], values)
        assert_accurate(found[2], exact_sums(logits), plain)
    wanted = kernels.top_k(torch.from_numpy(logits), k)
    assert_bits(wanted[0].numpy(), ids)
    assert_bits(wanted[1].numpy(), values)


@pytest.mark.parametrize("width", (1, 2, 5))
def test_as_many_as_there_are(width: int) -> None:
    logits = normal(3, width)
    found, wanted = top(logits, width), expected(logits, width)
    assert_bits(found[0], wanted[0])
    assert_bits(found[1], wanted[1])


VALUES = st.sampled_from([-np.inf, -3.0, -2.0, -0.5, -0.0, 0.0, 1.0, 2.0])


@settings(max_examples=100)
@given(st.lists(VALUES, min_size=4, max_size=200), st.integers(1, 4))
def test_the_lower_id_stands_first_among_equals(values: list[float], k: int) -> None:
    logits = np.array([values], np.float32)
    ids, found, sums = top(logits, k)
    np.testing.assert_array_equal(ids, expected(logits, k)[0])
    np.testing.assert_array_equal(found, logits[:, ids[0]])
    if max(values) == -np.inf:
        assert sums[0] == -np.inf
    else:
        assert sums[0] == pytest.approx(exact_sums(logits)[0], abs=1e-6, rel=1e-6)


def test_sums_far_from_zero() -> None:
    """No exponential overflows, and what is far below the largest is nothing."""
    logits = np.full((3, 100), -1e30, np.float32)
    logits[0, 50], logits[1, 99], logits[2, :] = 1e30, 3e4, -200
    sums = top(logits, 2)[2]
    assert sums[:2].tolist() == [np.float32(1e30), 3e4]
    assert sums[2] == pytest.approx(-200 + np.log(100), rel=1e-6)


def test_one_arithmetic() -> None:
    logits = normal(ROWS, 1003)

    def rows_of(ids: Sequence[int], path: Path, threads: int) -> np.ndarray:
        found, values, sums = top(logits[ids], 2, path, threads)
        return np.concatenate((found.view(np.float32), values, sums[:, None]), axis=1)

    assert_one_arithmetic(rows_of)
