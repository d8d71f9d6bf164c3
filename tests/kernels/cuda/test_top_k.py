"""The Triton kernels that find the likeliest tokens: ids, logits and sums against float64, ties and odd numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.cuda.likeliest import CHUNK, Found, likeliest
from tests.kernels.harness import assert_bits

WIDTHS = [16, 333, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5]


def interpreted_rows(logits: np.ndarray, top: int, most: int = 0) -> Found:
    return likeliest(logits, top, most=most)


def by_hand(logits: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids, logits and the log of the sum in float64."""
    wide = logits.astype(np.float64)
    ids = np.argsort(-wide, axis=1, kind="stable")[:, :top]
    peak = wide.max(axis=1)
    return ids, np.take_along_axis(logits, ids, 1), peak + np.log(np.exp(wide - peak[:, None]).sum(axis=1))


@pytest.mark.parametrize("top", [1, 2, 16])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_likeliest_are_those_of_a_stable_sort(width: int, top: int) -> None:
    logits = (3 * np.random.default_rng(width).standard_normal((3, width))).astype(np.float32)
    ids, values, lse = by_hand(logits, top)
    found = interpreted_rows(logits, top, most=4)
    assert found.token.tolist() == ids.tolist()
    assert_bits(found.logit, values)
    np.testing.assert_allclose(found.lse, lse, rtol=0, atol=2e-6)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_among_equals_the_lower_id_stands_first_wherever_chunks_end(data: st.DataObject) -> None:
    width = data.draw(st.sampled_from([17, CHUNK - 1, CHUNK + 3, 2 * CHUNK + 40]))
    places = data.draw(st.lists(st.integers(0, width - 1), max_size=20, unique=True))
    logits = np.full((1, width), data.draw(st.sampled_from([-2.0, 0.0, -0.0, -math.inf])), np.float32)
    for place in places:
        logits[0, place] = data.draw(st.sampled_from([-2.0, 0.0, -0.0, 1.5, 1.5, -math.inf, 3e38, 1e-40]))
    top = data.draw(st.sampled_from([2, 16]))
    with np.errstate(divide="ignore"):  # the log of nothing
        found = interpreted_rows(logits, top)
    order = sorted(range(width), key=lambda i: (-float(logits[0, i]), i))[:top]
    assert found.token.tolist() == [order]
    assert_bits(found.logit, logits[:, order])
    wanted = torch.from_numpy(logits).double().logsumexp(1)
    torch.testing.assert_close(torch.from_numpy(found.lse).double(), wanted, rtol=1e-6, atol=2e-6)


def test_rows_have_the_bits_that_they_have_alone() -> None:
    logits = np.random.default_rng(1).standard_normal((8, CHUNK + 77)).astype(np.float32)
    whole = interpreted_rows(logits, 16, most=32)
    for row in range(len(logits)):
        alone = interpreted_rows(logits[row : row + 1], 16)
        for found, wanted in zip(alone, whole, strict=True):
            assert_bits(found, wanted[row : row + 1])


@pytest.mark.parametrize("width", [16, CHUNK + 1])
def test_nan_leaves_ids_of_the_vocabulary_and_a_sum_that_nobody_believes(width: int) -> None:
    logits = np.random.default_rng(width).standard_normal((3, width)).astype(np.float32)
    logits[0, 3] = math.nan
    logits[1] = math.nan
    logits[2, [5, 9]] = math.inf
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        found = interpreted_rows(logits, 2)
    assert found.token[0].tolist() == np.argsort(-np.nan_to_num(logits[0], nan=-math.inf), kind="stable")[:2].tolist()
    assert found.token[1].tolist() == [0, 1] and found.token[2].tolist() == [5, 9]
    assert np.isnan(found.lse[:2]).all() and found.lse[2] == math.inf
