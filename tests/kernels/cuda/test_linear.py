"""The Triton linears against one chain of fp32 products per element, which no tile, bucket or neighbour may change."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tandem.kernels.cuda.linear import linear_work
from tandem.kernels.cuda.linear_tiles import MULTIPROCESSORS, ChunkTiles, FewTiles, Matrix, even_columns
from tests.kernels.cuda.chain import chain, chained_dots, drawn
from tests.kernels.cuda.interpreter import interpreted, run

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 64)
BF16, FP32 = torch.bfloat16, torch.float32


@pytest.fixture(autouse=True)
def _chained() -> Iterator[None]:
    with chained_dots():
        yield


def _call(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    rows: int,
    *,
    gated: bool = False,
    dtype: torch.dtype = FP32,
    tiles: FewTiles | ChunkTiles | None = None,
) -> Tensor:
    """y of a pass of `rows` rows with x in its first ones; all around x, weight and y is NaN, and stays so in y."""
    (count, k), n = x.shape, weight.shape[0] // (1 + gated)
    x_stride, y_stride = k + 3, n + 5
    padded = torch.full((rows, x_stride), torch.nan, dtype=x.dtype)
    padded[:count, :k] = x
    held = torch.full((weight.numel() + 7 * k,), torch.nan, dtype=weight.dtype)
    held[: weight.numel()] = weight.flatten()
    y = torch.full((rows, y_stride), torch.nan, dtype=dtype)
    name, work = linear_work(n, k, rows, gated, weight.itemsize, x_stride, y_stride)
    matrix = Matrix(n, k, gated, weight.itemsize, x_stride, y_stride)
    if isinstance(tiles, FewTiles):
        name, work = "linear", tiles.work(matrix)
    elif tiles:
        name, work = "linear_chunk", tiles.work(matrix, rows)
    run(
        getattr(interpreted("linear"), name),
        work,
        x=padded,
        weight=held,
        bias=bias,
        count=torch.tensor([count], dtype=torch.int32),
        y=y,
    )
    assert y[count:].isnan().all()
    assert y[:, n:].isnan().all()
    return y[:count, :n]


@pytest.mark.parametrize(("rows", "gated"), [(1, False), (32, True), (64, False), (64, True)])
def test_rows_in_fp32_are_rounded_on_their_way_to_bf16_weights(rows: int, gated: bool) -> None:
    x, weight = drawn(1, 70, dtype=BF16), drawn(2 * 24, 70, dtype=BF16)
    assert torch.equal(_call(x.float(), weight, None, rows, gated=gated), _call(x, weight, None, rows, gated=gated))


@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize(
    ("n", "k", "rows", "count"),
    [(1, 1, 1, 1), (64, 64, 32, 17), (70, 300, 1, 1), (65, 129, 16, 5), (130, 70, 64, 33), (64, 128, 128, 70)],
)
def test_each_element_is_one_chain_over_k(n: int, k: int, rows: int, count: int, dtype: torch.dtype) -> None:
    x, weight, bias = drawn(count, k, dtype=dtype), drawn(n, k, dtype=dtype), drawn(n)
    y = _call(x, weight, bias, rows)
    assert torch.equal(y, chain(x, weight, bias))
    assert torch.equal(_call(x, weight, None, rows), chain(x, weight))
    # Rounding errors of a chain of k sums of order 1, in fp32.
    wanted = x.double() @ weight.double().T + bias.double()
    torch.testing.assert_close(y.double(), wanted, rtol=0, atol=2e-6 * k)


@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize(
    ("n", "k", "rows", "count"), [(1, 2, 1, 1), (70, 65, 32, 17), (64, 64, 64, 64), (70, 65, 64, 9)]
)
def test_gated_is_silu_of_the_first_half_times_the_second(
    n: int, k: int, rows: int, count: int, dtype: torch.dtype
) -> None:
    x, weight = drawn(count, k, dtype=dtype) / k**0.5, drawn(2 * n, k, dtype=dtype)
    gate, value = (x.double() @ weight.double().T).chunk(2, -1)
    y = _call(x, weight, None, rows, gated=True)
    torch.testing.assert_close(y.double(), torch.nn.functional.silu(gate) * value, rtol=1e-5, atol=1e-5)


def test_gated_has_the_bits_of_two_launches() -> None:
    x, weight = drawn(3, 80, dtype=BF16), drawn(2 * 21, 80, dtype=BF16)
    plain, y = _call(x, weight, None, 4), torch.full((3, 21), torch.nan)
    swiglu = interpreted("swiglu")
    count = torch.tensor([3], dtype=torch.int32)
    run(swiglu.swiglu, swiglu.swiglu_work(3, 21, 42), x=plain.contiguous(), count=count, y=y)
    assert torch.equal(_call(x, weight, None, 4, gated=True), y)


@pytest.mark.parametrize("gated", [False, True])
def test_a_bf16_output_is_the_fp32_one_narrowed(gated: bool) -> None:
    x, weight = drawn(5, 40, dtype=BF16), drawn(34, 40, dtype=BF16)
    for rows in (8, 64):
        wide, narrow = (_call(x, weight, None, rows, gated=gated, dtype=dtype) for dtype in (FP32, BF16))
        # The interpreter cuts off where a GPU rounds.
        assert torch.equal(narrow.float(), (wide.contiguous().view(torch.int32) & -(1 << 16)).view(FP32))


@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize("gated", [False, True])
def test_a_row_has_its_bits_in_every_bucket_at_every_place(dtype: torch.dtype, gated: bool) -> None:
    x, weight = drawn(64, 72, dtype=dtype), drawn(42, 72, dtype=dtype)
    alone = torch.cat([_call(x[i : i + 1], weight, None, 1, gated=gated) for i in range(3)])
    for rows in BUCKETS[1:]:
        count = max(rows - 1, 3)
        y = _call(x.roll(count - 3, 0)[:count], weight, None, max(rows, 3), gated=gated)
        assert torch.equal(y[count - 3 :], alone), rows


FEW = st.builds(
    FewTiles,
    bm=st.sampled_from([16, 32]),
    bn=st.sampled_from([8, 16, 32]),
    bk=st.sampled_from([16, 32, 64]),
    num_warps=st.just(4),
    num_stages=st.just(3),
    weight_left=st.booleans(),
    prefetch=st.just(0),
    rest=st.sampled_from([0, 8, 16]),
)
CHUNK = st.builds(
    ChunkTiles,
    bm=st.sampled_from([8, 16, 32]),
    bn=st.sampled_from([8, 16, 32]),
    bk=st.sampled_from([16, 32, 64]),
    num_warps=st.just(4),
    num_stages=st.just(3),
    group=st.sampled_from([1, 2, 3, 16]),
)


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 40), k=st.integers(1, 80), rows=st.integers(1, 50), gated=st.booleans(), tiles=FEW | CHUNK)
def test_no_tile_moves_a_bit(n: int, k: int, rows: int, gated: bool, tiles: FewTiles | ChunkTiles) -> None:
    rows = min(rows, tiles.bm) if isinstance(tiles, FewTiles) else rows
    with chained_dots():
        x, weight = drawn(rows, k, dtype=BF16), drawn(n * (1 + gated), k, dtype=BF16)
        usual = torch.cat([_call(part, weight, None, 32, gated=gated) for part in x.split(32)])
        assert torch.equal(_call(x, weight, None, rows, gated=gated, tiles=tiles), usual)


@given(
    n=st.integers(1, 300_000),
    k=st.integers(1, 20_000),
    rows=st.sampled_from([*BUCKETS, 128, 256, 512, 1024, 2048]),
    gated=st.booleans(),
    itemsize=st.sampled_from([2, 4]),
)
def test_work_covers_every_row_and_column_once(n: int, k: int, rows: int, gated: bool, itemsize: int) -> None:
    name, work = linear_work(n, k, rows, gated, itemsize, k, n)
    tile = dict(work.constants)
    columns = -(-n // (tile["BN"] + tile.get("REST", 0)))
    assert name == ("linear" if rows <= 32 else "linear_chunk")
    if name == "linear":
        assert work.grid == (columns, 1, 1)
        assert tile["BM"] >= rows
        lines = tile["PREFETCH"] // 128
        assert tile["PREFETCH"] == 128 * lines <= k * itemsize
        assert lines & (lines - 1) == 0
    else:
        assert work.grid == (columns * -(-rows // tile["BM"]), 1, 1)


@pytest.mark.parametrize(
    ("columns", "wanted"), [(10_240, (64, 16)), (17_408, (128, 8)), (8192, (64, 0)), (5120, (32, 8))]
)
def test_columns_of_the_27b_shape_go_round_evenly(columns: int, wanted: tuple[int, int]) -> None:
    assert even_columns(columns) == wanted


@given(columns=st.integers(1, 300_000))
def test_even_columns_leave_no_multiprocessor_a_second_program(columns: int) -> None:
    first, rest = even_columns(columns)
    assert all(part & (part - 1) == 0 and part % 8 == 0 for part in (first, rest))
    assert (first + rest) * MULTIPROCESSORS >= columns and first + rest <= 1.5 * (columns / MULTIPROCESSORS + 8)
