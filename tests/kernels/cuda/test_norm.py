"""The Triton norms against float64, among rows that no one asked for and poison behind each row."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tandem.kernels.cuda.norm import add_rms_norm_taps_work, add_rms_norm_work, rms_norm_work
from tests.kernels.cuda.interpreter import interpreted, run

EPS = 1e-5
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 2**-7}  # the interpreter cuts bf16 off where a GPU rounds


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def _count(count: int) -> Tensor:
    return torch.tensor([count], dtype=torch.int32)


def _poisoned(x: Tensor, rows: int, stride: int) -> Tensor:
    """x [count, WIDTH] as the first of `rows` rows that begin every `stride` elements; NaN elsewhere."""
    held = torch.full((rows, stride), torch.nan, dtype=x.dtype)
    held[: x.shape[0], : x.shape[1]] = x
    return held


def _normed(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.double()
    return wide / (wide.square().mean(-1, keepdim=True) + EPS).sqrt() * weight.double()


@pytest.mark.parametrize("row", [None, [2, 0, 0]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("groups", "width"), [(1, 1), (1, 576), (3, 64), (5, 96), (1, 1025)])
def test_rms_norm_norms_each_group_by_itself(
    groups: int, width: int, dtype: torch.dtype, row: list[int] | None
) -> None:
    rows, count, x_stride, y_stride = 4, 3, groups * width + 3, groups * width + 2
    x, weight = 3 * _random(count, groups * width), 1 + _random(width)
    y = torch.full((rows, y_stride), torch.nan, dtype=dtype)
    run(
        interpreted("norm").rms_norm,
        rms_norm_work(rows, groups, width, EPS, x_stride, y_stride),
        x=_poisoned(x, rows, x_stride),
        weight=weight,
        row=row if row is None else torch.tensor([*row, 1 << 30], dtype=torch.int32),
        count=_count(count),
        y=y,
    )
    wanted = _normed(x.view(count, groups, width), weight).flatten(1)[row or [0, 1, 2]]
    torch.testing.assert_close(y[:count, : groups * width].double(), wanted, rtol=TOLERANCE[dtype], atol=1e-6)
    assert y[count:].isnan().all()
    assert y[:, groups * width :].isnan().all()


@pytest.mark.parametrize(("groups", "width"), [(1, 576), (3, 20)])
def test_rms_norm_sums_parts_in_their_order(groups: int, width: int) -> None:
    parts, whole, count = 3, groups * width, 2
    x, weight = _random(count, parts, whole), 1 + _random(width)
    found = []
    for held, number in ((x, parts), ((x[:, 0] + x[:, 1]) + x[:, 2], 1)):
        y = torch.full((count, whole), torch.nan)
        run(
            interpreted("norm").rms_norm,
            rms_norm_work(count, groups, width, EPS, number * whole + 3, whole, number),
            x=_poisoned(held.reshape(count, -1), count, number * whole + 3),
            weight=weight,
            row=None,
            count=_count(count),
            y=y,
        )
        found.append(y)
    assert torch.equal(*found) and found[0].isfinite().all()


def _add_rms_norm(
    x: Tensor, delta: Tensor, weight: Tensor, row: list[int] | None, rows: int, dtype: torch.dtype, keep: bool
) -> tuple[Tensor | None, Tensor]:
    """(sum, y) of a pass of `rows` rows, the first ones named by `row` or as many as x has."""
    width = x.shape[1]
    count = x.shape[0] if row is None else len(row)
    total = torch.full((rows, width + 1), torch.nan) if keep else None
    y = torch.full((rows, width + 4), torch.nan, dtype=dtype)
    run(
        interpreted("norm").add_rms_norm,
        add_rms_norm_work(rows, width, EPS, width + 3, width + 2, width + 1, width + 4),
        x=_poisoned(x, max(rows, x.shape[0]), width + 3),
        delta=_poisoned(delta, max(rows, x.shape[0]), width + 2),
        weight=weight,
        row=None if row is None else torch.tensor([*row, *[1 << 30] * (rows - count)], dtype=torch.int32),
        count=_count(count),
        sum=total,
        y=y,
    )
    for written in (y, total):
        assert written is None or (written[count:].isnan().all() and written[:, width:].isnan().all())
    return None if total is None else total[:count, :width], y[:count, :width]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("row", [None, [4, 0, 0]])
@pytest.mark.parametrize("width", [1, 576, 1030])
def test_add_rms_norm_norms_the_sum_of_the_rows_named(
    width: int, row: list[int] | None, keep: bool, dtype: torch.dtype
) -> None:
    x, delta, weight = _random(5, width), 2 * _random(6, width)[:5], 1 + _random(width)
    total, y = _add_rms_norm(x, delta, weight, row, 8, dtype, keep)
    named = list(range(5)) if row is None else row
    wanted = (x + delta)[named]
    if keep:
        assert total is not None
        assert torch.equal(total, wanted)
    torch.testing.assert_close(y.double(), _normed(wanted, weight), rtol=TOLERANCE[dtype], atol=1e-6)


@pytest.mark.parametrize("row", [None, [4, 0, 0]])
@pytest.mark.parametrize("parts", [2, 5])
def test_a_delta_in_parts_is_summed_in_their_order_first(parts: int, row: list[int] | None) -> None:
    """With the bits of a norm of the sum; what stands behind a row's parts is poison."""
    width, rows = 70, 8
    x, weight = _random(5, width), 1 + _random(width)
    delta = _random(5, parts, width) * 10.0 ** torch.arange(parts)[:, None].flip(0)  # far apart: their order shows
    whole = torch.zeros(5, width)
    for part in range(parts):
        whole = whole + delta[:, part]
    named = list(range(5)) if row is None else row
    total, y = torch.full((rows, width), torch.nan), torch.full((rows, width), torch.nan)
    stride = parts * width + 3
    run(
        interpreted("norm").add_rms_norm,
        add_rms_norm_work(rows, width, EPS, width, stride, width, width, parts),
        x=_poisoned(x, rows, width),
        delta=_poisoned(delta.flatten(1), rows, stride),
        weight=weight,
        row=None if row is None else torch.tensor([*row, *[1 << 30] * 5], dtype=torch.int32),
        count=_count(len(named)),
        sum=total,
        y=y,
    )
    wanted, y_wanted = _add_rms_norm(x, whole, weight, row, rows, torch.float32, True)
    assert wanted is not None
    assert torch.equal(total[: len(named)], (x + whole)[named]) and torch.equal(wanted, total[: len(named)])
    assert torch.equal(y[: len(named)], y_wanted)
    assert parts == 2 or not torch.equal(whole, delta.flip(1).cumsum(1)[:, -1])  # an order that shows
    assert total[len(named) :].isnan().all() and y[len(named) :].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("width", "parts"), [(1, 1), (576, 1), (1030, 3)])
def test_norms_of_a_head_and_of_a_ring_are_one_launch(width: int, parts: int, dtype: torch.dtype) -> None:
    """With the bits of `add_rms_norm`; rows of the ring that no one names keep what they had."""
    rows, outputs, most, most_outputs = 5, 3, 8, 4
    x, delta, weight = _random(rows, width), 2 * _random(rows, parts * width + 1)[:, :-1], 1 + _random(width)
    whole = torch.zeros(rows, width)
    for part in range(parts):
        whole = whole + delta.view(rows, parts, width)[:, part]
    picked, tap_out = [4, 0, 4], [6, -1, 0, -1, 3]
    y, ring = torch.full((most_outputs, width + 4), torch.nan, dtype=dtype), torch.full((7, width + 2), torch.nan)
    run(
        interpreted("norm").add_rms_norm_taps,
        add_rms_norm_taps_work(
            rows=most, outputs=most_outputs, width=width, eps=EPS, x_stride=width + 3, delta_stride=parts * width + 2,
            y_stride=width + 4, ring_stride=width + 2, parts=parts,
        ),
        x=_poisoned(x, most, width + 3),
        delta=_poisoned(delta, most, parts * width + 2),
        weight=weight,
        row=torch.tensor([*picked, 1 << 30], dtype=torch.int32),
        count=_count(outputs),
        tap_out=torch.tensor([*tap_out, 1, 2, 1 << 30], dtype=torch.int32),
        num_rows=_count(rows),
        y=y,
        ring=ring,
    )  # fmt: skip
    _, wanted = _add_rms_norm(x, whole, weight, picked, 8, dtype, False)
    assert torch.equal(y[:outputs, :width], wanted) and y[outputs:].isnan().all() and y[:, width:].isnan().all()
    _, wanted = _add_rms_norm(x, whole, weight, None, 8, torch.float32, False)
    for row, target in enumerate(tap_out):
        assert target < 0 or torch.equal(ring[target, :width], wanted[row])
    assert ring[[1, 2, 4, 5]].isnan().all() and ring[:, width:].isnan().all()


def test_a_row_has_its_bits_in_every_bucket_at_every_place() -> None:
    x, delta, weight = _random(32, 320), _random(33, 320)[:32], _random(320)
    _, alone = _add_rms_norm(x[:1], delta[:1], weight, None, 1, torch.float32, True)
    for rows in (2, 8, 24, 32):
        order = torch.arange(rows).roll(rows // 2)
        _, y = _add_rms_norm(x[order], delta[order], weight, None, rows, torch.float32, False)
        assert torch.equal(y[rows // 2], alone[0])
        _, gathered = _add_rms_norm(x, delta, weight, [0] * rows, rows, torch.float32, False)
        assert torch.equal(gathered, alone.expand(rows, -1))


@given(width=st.integers(1, 20_000), rows=st.tuples(st.integers(1, 2048), st.integers(1, 2048)))
def test_the_width_alone_orders_the_sum(width: int, rows: tuple[int, int]) -> None:
    first, second = (add_rms_norm_work(count, width, EPS, width, width, width, width) for count in rows)
    assert (first.constants, first.num_warps, first.num_stages) == (
        second.constants,
        second.num_warps,
        second.num_stages,
    )
    assert width <= dict(first.constants)["BLOCK"] < 2 * width
    assert first.grid == (rows[0], 1, 1)
    assert rms_norm_work(rows[0], 3, width, EPS, width, width).grid == (rows[0], 3, 1)
