"""The Triton kernels around the head: rows picked and left, the largest logit with its lead, ties and NaN included."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tandem.kernels.cuda.head import (
    CHUNK,
    argmax_chunks,
    argmax_gap_work,
    argmax_partial_work,
    gather_rows_work,
    scatter_rows_work,
)
from tests.kernels.cuda.interpreter import interpreted, run


@pytest.mark.parametrize("width", [1, 96, 1025])
def test_gather_rows_picks_rows(width: int) -> None:
    x = torch.full((5, width + 3), torch.nan)
    x[:, :width] = torch.randn(5, width, generator=torch.Generator().manual_seed(width))
    y = torch.full((4, width), torch.nan)
    run(
        interpreted("head").gather_rows,
        gather_rows_work(4, width, width + 3),
        x=x,
        row=torch.tensor([4, 1, 1, 1 << 30], dtype=torch.int32),
        count=torch.tensor([3], dtype=torch.int32),
        y=y,
    )
    assert torch.equal(y[:3], x[[4, 1, 1], :width])
    assert y[3:].isnan().all()


@pytest.mark.parametrize("width", [1, 96, 1025])
def test_scatter_rows_leaves_rows_where_they_are_wanted(width: int) -> None:
    """Of a pass of four rows, beside other columns of the ring; a row of -1 goes nowhere."""
    rows, stride = 5, width + 6
    x = torch.full((rows, width + 3), torch.nan)
    x[:4, :width] = torch.randn(4, width, generator=torch.Generator().manual_seed(width))
    ring = torch.full((6, stride), -1.5)
    run(
        interpreted("head").scatter_rows,
        scatter_rows_work(rows, width, width + 3, stride),
        x=x,
        tap_out=torch.tensor([5, -1, 0, 3, 1], dtype=torch.int32),
        count=torch.tensor([4], dtype=torch.int32),
        ring=ring.flatten()[4:],
    )
    for row, target in ((0, 5), (2, 0), (3, 3)):
        assert torch.equal(ring[target, 4 : 4 + width], x[row, :width])
    ring[[5, 0, 3], 4 : 4 + width] = -1.5
    assert (ring == -1.5).all()


def _argmax_gap(logits: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """(argmax, gap) of a pass of `rows` rows, the first ones those of logits; what stands behind them must stay."""
    (count, width), stride = logits.shape, logits.shape[1] + 3
    held = torch.full((rows, stride), math.inf)
    held[:count, :width] = logits
    chunks, filled = argmax_chunks(width), torch.tensor([count], dtype=torch.int32)
    value, second = torch.full((2, rows, chunks), torch.nan)
    index, argmax = torch.full((rows, chunks), -7, dtype=torch.int32), torch.full((rows,), -7, dtype=torch.int32)
    gap, head = torch.full((rows,), torch.nan), interpreted("head")
    partial = argmax_partial_work(rows, width, stride)
    run(head.argmax_partial, partial, logits=held, count=filled, value=value, second=second, index=index)
    last = argmax_gap_work(rows, width)
    run(head.argmax_gap, last, value=value, second=second, index=index, count=filled, argmax=argmax, gap=gap)
    assert value[count:].isnan().all() and second[count:].isnan().all() and gap[count:].isnan().all()
    assert (index[count:] == -7).all() and (argmax[count:] == -7).all()
    return argmax[:count], gap[:count]


@pytest.mark.parametrize("width", [2, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
def test_argmax_gap_is_the_largest_and_its_lead(width: int) -> None:
    logits = torch.randn(3, width, generator=torch.Generator().manual_seed(width))
    argmax, gap = _argmax_gap(logits, 4)
    top = logits.topk(2).values
    assert argmax.tolist() == logits.argmax(-1).tolist()
    assert torch.equal(gap, top[:, 0] - top[:, 1])


@settings(max_examples=25, deadline=None)
@given(
    places=st.lists(st.integers(0, 2 * CHUNK + 99), min_size=1, max_size=4, unique=True),
    runner_up=st.integers(0, 2 * CHUNK + 99),
)
def test_the_lowest_id_wins_a_tie_wherever_chunks_end(places: list[int], runner_up: int) -> None:
    logits = torch.full((1, 2 * CHUNK + 100), -3.0)
    logits[0, runner_up] = 1.0
    logits[0, places] = 2.5
    argmax, gap = _argmax_gap(logits, 1)
    assert argmax.item() == min(places)
    assert gap.item() == (0.0 if len(places) > 1 else 1.5 if runner_up not in places else 5.5)


@pytest.mark.parametrize("width", [2, CHUNK + 1])
def test_nan_and_infinity_leave_an_id_of_the_vocabulary(width: int) -> None:
    for everywhere in (math.nan, -math.inf, math.inf):
        with np.errstate(invalid="ignore"):  # the lead of infinity over infinity
            argmax, gap = _argmax_gap(torch.full((1, width), everywhere), 1)
        assert argmax.item() == 0
        assert gap.isnan().all()
    logits = torch.full((1, width), math.nan)
    logits[0, width - 1] = -5.0
    argmax, gap = _argmax_gap(logits, 1)
    assert (argmax.item(), gap.item()) == (width - 1, math.inf)
