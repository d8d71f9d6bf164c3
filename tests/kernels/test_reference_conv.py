"""Convolution with SiLU over ancestors, held against numpy over each row's whole text, and its tails bit by bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tandem import kernels
from tests.kernels.recurrent import Rows, accepted, normal, passes

CHANNELS, SLOTS = 5, 5
FEW = settings(max_examples=30, deadline=None)


def tails(width: int, rows: Rows, dtype: torch.dtype = torch.float64) -> Tensor:
    """Random tails; NaN in the slots of lanes with nothing committed, zeros where there was no token yet."""
    tail = normal(9, SLOTS, width - 1, CHANNELS, dtype=dtype)
    for slot, start in zip(rows.slots, rows.starts, strict=True):
        tail[slot, : max(0, width - 1 - start)] = 0.0
        if start == 0:
            tail[slot] = torch.nan
    return tail


def expected(x: Tensor, weight: Tensor, tail: Tensor, rows: Rows) -> np.ndarray:
    """Each row as the last of its own text: a full convolution of channel after channel."""
    width, out = tail.shape[1] + 1, np.empty(x.shape)
    taps = weight.double().numpy().reshape(width, CHANNELS)
    for row in range(len(rows.lane)):
        lane = rows.lane[row]
        past = np.zeros((width - 1, CHANNELS)) if rows.starts[lane] == 0 else tail[rows.slots[lane]].double().numpy()
        text = np.concatenate((past, x.double().numpy()[rows.path(row)]))
        for channel in range(CHANNELS):
            y = np.convolve(text[:, channel], taps[::-1, channel], mode="valid")[-1]
            out[row, channel] = y / (1 + np.exp(-y))
    return out


@given(passes(), st.sampled_from((2, 3, 4)))
@FEW
def test_a_row_sees_its_nearest_ancestors(rows: Rows, width: int) -> None:
    x, weight = normal(1, len(rows.lane), CHANNELS), normal(2, width * CHANNELS)
    tail, raw = tails(width, rows), torch.full((12 * 3, CHANNELS), torch.nan, dtype=torch.float64)
    before = tail.clone()
    y = kernels.conv_verify(x, weight, tail, *rows.where, raw, True)
    np.testing.assert_allclose(y, expected(x, weight, tail, rows), rtol=1e-12, atol=1e-12)
    assert torch.equal(raw[: len(x)], x)
    assert bool(raw[len(x) :].isnan().all())
    torch.testing.assert_close(tail, before, rtol=0, atol=0, equal_nan=True)


@given(passes(tree=False), st.data())
@FEW
def test_no_bit_depends_on_where_a_pass_ends(rows: Rows, data: st.DataObject) -> None:
    """One pass, two passes, and a verify whose rows are committed: the same outputs and the same tails."""
    x, weight = normal(1, len(rows.lane), CHANNELS, dtype=torch.float32), normal(2, 4 * CHANNELS, dtype=torch.float32)
    whole = tails(4, rows, torch.bfloat16)
    parts, verified = whole.clone(), whole.clone()
    y = kernels.causal_conv(x, weight, whole, *rows.where)
    np.testing.assert_allclose(y, expected(x.bfloat16(), weight, parts, rows), rtol=1e-5, atol=1e-5)
    cut = data.draw(st.integers(0, max(rows.depth)))
    for keep in (lambda depth: depth < cut, lambda depth: depth >= cut):
        if chosen := [row for row, depth in enumerate(rows.depth) if keep(depth)]:
            slot, lane, position, _ = rows.where
            parent = [-1 if i == 0 or rows.lane[r] != rows.lane[chosen[i - 1]] else i - 1 for i, r in enumerate(chosen)]
            at = torch.tensor(chosen)
            where = (slot, lane[at], position[at], torch.tensor(parent, dtype=torch.int32))
            assert torch.equal(kernels.causal_conv(x[at], weight, parts, *where), y[at])
    raw = torch.empty(len(x), CHANNELS, dtype=torch.bfloat16)
    assert torch.equal(kernels.conv_verify(x, weight, verified, *rows.where, raw, False), y)
    kernels.conv_commit(raw, verified, *rows.moves([list(range(len(x)))]))
    for tail in (parts, verified):
        torch.testing.assert_close(tail, whole, rtol=0, atol=0, equal_nan=True)


@given(passes(), st.data())
@FEW
def test_a_commit_leaves_the_tail_of_the_path(rows: Rows, data: st.DataObject) -> None:
    x, weight, tail = normal(1, len(rows.lane), CHANNELS), normal(2, 4 * CHANNELS), tails(4, rows)
    raw, wanted = torch.empty(len(x), CHANNELS, dtype=torch.float64), tail.clone()
    kernels.conv_verify(x, weight, tail, *rows.where, raw, True)
    paths = accepted(data, rows)
    kernels.conv_commit(raw, tail, *rows.moves(paths))
    for path in paths:
        kernels.causal_conv(x[path], weight, wanted, *rows.line(path).where)
    torch.testing.assert_close(tail, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_an_input_counts_as_the_tail_keeps_it(dtype: torch.dtype) -> None:
    x, tail = torch.tensor([[1.0 + 2.0**-9]]), torch.zeros(1, 1, 1, dtype=dtype)
    zero = torch.zeros(1, dtype=torch.int32)
    y = kernels.causal_conv(x, torch.tensor([0.0, 1.0]), tail, zero, zero, zero, zero - 1)
    kept = x.to(dtype).float()
    assert torch.equal(y, torch.nn.functional.silu(kept))
    assert torch.equal(tail[0].float(), kept)
