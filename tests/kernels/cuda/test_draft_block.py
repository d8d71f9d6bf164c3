"""Triton attention and convolution of draft blocks: against the definitions in float64, and alike in any company."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.kernels.cuda.attending import filled
from tests.kernels.cuda.chain import chained_dots
from tests.kernels.cuda.drafting import (
    Blocks,
    attend_block,
    attention_defined,
    block_cache,
    convolution_defined,
    convolve,
    normal,
)
from tests.kernels.cuda.interpreter import interpreted
from tests.kernels.cuda.paged import Paged

BF16 = torch.bfloat16
TOLERANCE = {torch.float32: 2e-6, BF16: 2e-2}
"""Relative to the whole row; the interpreter cuts probabilities off at bf16 where a GPU rounds."""
DTYPES = st.sampled_from(sorted(TOLERANCE, key=str))
SHAPES = st.sampled_from(((1, 1, 16), (6, 2, 16), (3, 1, 20), (16, 1, 16)))
"""Query heads, kv heads, head_dim."""
ANCHORS = st.one_of(st.sampled_from((0, 1, 62, 63, 64, 65, 121, 127, 128, 129)), st.integers(0, 300))


@pytest.fixture(autouse=True)
def _chained() -> Iterator[None]:
    with chained_dots():
        yield


def check(
    anchors: list[int], size: int, window: int, shape: tuple[int, int, int], dtype: torch.dtype, context: int = 0
) -> None:
    """Each lane's block against the definition; what lies outside of what it sees is NaN."""
    heads, kv_heads, head_dim = shape
    places = list(enumerate(anchors))
    cache, blocks = block_cache(places, size, window, kv_heads, head_dim, dtype), Blocks.of(places, size)
    q = normal(len(blocks.lane), heads, head_dim)
    found, wanted = attend_block(cache, q, blocks, window, context=context), attention_defined(cache, q, blocks, window)
    assert found.isfinite().all()
    error = (found.double() - wanted).flatten(1).norm(dim=1) / wanted.flatten(1).norm(dim=1)
    assert error.max() < TOLERANCE[dtype]


@settings(max_examples=6, deadline=None)
@given(st.lists(ANCHORS, min_size=1, max_size=3), st.integers(2, 9), st.integers(9, 150), SHAPES, DTYPES)
def test_blocks_of_several_lanes(
    anchors: list[int], size: int, window: int, shape: tuple[int, int, int], dtype: torch.dtype
) -> None:
    check(anchors, size, window, shape, dtype)


@pytest.mark.parametrize("head_dim", [80, 128, 256])
def test_wide_heads(head_dim: int) -> None:
    check([58], 8, 100, (4, 1, head_dim), BF16)


@pytest.mark.parametrize(("window", "anchor"), [(2048, 2300), (4096, 4200)])
def test_long_windows(window: int, anchor: int) -> None:
    """Spans of 128 positions, and of 256; the first begins inside one."""
    check([anchor], 3, window, (2, 1, 16), torch.float32)


def test_a_context_shorter_than_the_window() -> None:
    check([70, 0], 8, 2048, (2, 1, 16), torch.float32, context=128)


def test_a_block_of_more_rows_than_a_tile() -> None:
    assert dict(interpreted("draft_block").block_attention_works(**SIZES)[0].constants)["TILE_ROWS"] == 8
    check([100], 32, 40, (16, 1, 16), BF16)


SIZES = {
    "rows": 32, "heads": 16, "kv_heads": 1, "head_dim": 16, "block": 32, "window": 40, "context": 132, "scale": 1.0,
    "q_stride": 256, "table_stride": 4, "page": 1 << 20, "itemsize": 2,
}  # fmt: skip


@pytest.mark.parametrize("context", [1, 128, 129, 1024, 40_000])
def test_spans_hold_all_that_a_block_sees(context: int) -> None:
    module = interpreted("draft_block")
    for window, block in ((2048, 16), (2049, 2), (100, 8), (8, 8), (4096, 32)):
        span = module.span_of(window)
        assert span % 64 == 0 and span >= 128
        anchors = {*range(max(0, context - block + 1)), context - block} if context < 2000 else range(1000, 5200)
        most = max(((a + block - 1) // span - max(0, a - window + 1) // span + 1 for a in anchors if a >= 0), default=0)
        assert most <= module.num_spans(window, block, context)


@settings(max_examples=4, deadline=None)
@given(st.data())
def test_rows_in_any_company_have_the_bits_of_a_block_alone(data: st.DataObject) -> None:
    """Other lanes beside, blocks torn apart, pages elsewhere, a longer context class, a larger bucket."""
    size, window = data.draw(st.integers(2, 6)), data.draw(st.integers(8, 140))
    anchors = list(enumerate(data.draw(st.lists(ANCHORS, min_size=1, max_size=3))))
    dtype = data.draw(DTYPES)
    blocks, q = Blocks.of(anchors, size), normal(len(anchors) * size, 6, 16)
    alone = []
    for i, (_lane, at) in enumerate(anchors):
        cache = block_cache(anchors[i : i + 1], size, window, 2, 16, dtype)
        mine = slice(i * size, (i + 1) * size)
        alone.append(attend_block(cache, q[mine], blocks.of_rows(mine), window, bucket=size, context=at + size))
    order = data.draw(st.permutations(range(len(q))))
    together = block_cache(anchors, size, window, 2, 16, dtype, seed=5)
    found = attend_block(together, q[order], blocks.of_rows(order), window, context=data.draw(st.integers(400, 2000)))
    assert torch.equal(found, torch.cat(alone)[order])


def test_what_no_row_sees_moves_nothing() -> None:
    anchors = [(0, 100)]
    blocks, q, window = Blocks.of(anchors, 4), normal(4, 6, 16), 30
    clean, other = (block_cache(anchors, 4, window, 2, 16, torch.float32) for _ in range(2))
    for slot in (*range(71), *range(104, 128)):
        filled(other, 0, [slot], [slot], seed=3)
    assert torch.equal(attend_block(clean, q, blocks, window), attend_block(other, q, blocks, window))


def test_a_pass_without_rows_touches_nothing() -> None:
    nothing = Blocks.of([], 4)
    assert len(attend_block(Paged(1, 16, BF16), normal(0, 2, 16), nothing, 30, bucket=4, context=64)) == 0
    assert len(convolve(normal(0, 1, 20), normal(0, 2, 5), normal(2, 20), nothing, bucket=4)) == 0


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from((1, 3, 16, 20)), st.integers(1, 40), st.integers(1, 4), st.integers(1, 9), st.integers(1, 4),
    st.lists(st.integers(0, 50), min_size=1, max_size=3),
)  # fmt: skip
def test_convolution_is_the_definition(
    group: int, groups: int, taps: int, size: int, parts: int, anchors: list[int]
) -> None:
    blocks = Blocks.of([(0, anchor) for anchor in anchors], size)
    count, width = len(blocks.lane), group * groups
    x, delta, weight = normal(count, parts, width), normal(count, taps, groups, seed=1), normal(taps, width, seed=2)
    found, wanted = convolve(x, delta, weight, blocks), convolution_defined(x, delta, weight, blocks)
    most = (x.abs().sum(1).max() * (delta.abs().max() + weight.abs().max())).item()
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=taps * most * 2e-7)


def test_a_convolution_has_the_bits_of_its_block_alone_and_rounds_once() -> None:
    anchors, size, width = [(0, 7), (1, 0), (0, 90)], 5, 600
    blocks = Blocks.of(anchors, size)
    x, delta, weight = normal(15, 2, width), normal(15, 3, 60, seed=1), normal(3, width, seed=2)
    found = convolve(x, delta, weight, blocks)
    torch.testing.assert_close(convolve(x, delta, weight, blocks, out=BF16).float(), cut(found), rtol=0, atol=0)
    # Parts are summed in order before they meet their factors.
    assert torch.equal(convolve((x[:, :1] + x[:, 1:]), delta, weight, blocks), found)
    for first in range(0, 15, size):
        mine = slice(first, first + size)
        assert torch.equal(convolve(x[mine], delta[mine], weight, blocks.of_rows(mine), bucket=size), found[mine])


def cut(x: Tensor) -> Tensor:
    """To bf16, which the interpreter cuts off where a GPU rounds."""
    return (x.view(torch.int32) >> 16 << 16).view(torch.float32)


def by_fma(x: Tensor, factor: Tensor, total: Tensor) -> Tensor:
    """Products of fp32 are exact in float64, and so the sum is rounded twice at most: near, but for one in 2^29."""
    return (x.double() * factor.double() + total.double()).float()


def test_a_convolution_takes_its_own_tap_first_by_multiply_adds_of_one_rounding() -> None:
    blocks = Blocks.of([(0, 3)], 3)
    x, delta, weight = normal(3, 1, 8), normal(3, 3, 8, seed=1), normal(3, 8, seed=2)
    factor = weight + delta
    total = x[2, 0] * factor[2, 0]
    for tap in (1, 2):
        total = by_fma(x[2 - tap, 0], factor[2, tap], total)
    assert torch.equal(convolve(x, delta, weight, blocks)[2], total)


def test_a_bad_row_stays_in_its_block_and_its_taps() -> None:
    blocks = Blocks.of([(0, 4), (1, 9)], 4)
    x, delta, weight = normal(8, 1, 20), normal(8, 2, 4, seed=1), normal(2, 20, seed=2)
    clean = convolve(x, delta, weight, blocks)
    for row, wrong in ((2, [2, 3]), (3, [3])):
        bad = x.clone()
        bad[row, 0, 7] = torch.nan
        found = convolve(bad, delta, weight, blocks)
        assert found.isnan().nonzero().tolist() == [[i, 7] for i in wrong]
        assert torch.equal(found[~found.isnan()], clean[~found.isnan()])


def test_a_bad_block_stays_alone() -> None:
    anchors = [(0, 40), (1, 40)]
    blocks, q = Blocks.of(anchors, 4), normal(8, 2, 16)
    cache = block_cache(anchors, 4, 30, 1, 16, BF16)
    clean = attend_block(cache, q, blocks, 30)
    page, place = cache.place(1, 42)
    cache.values(0)[page, :, place] = torch.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # numpy's, of maxima of nothing but NaN
        found = attend_block(cache, q, blocks, 30)
    assert found[4:].isnan().all() and torch.equal(found[:4], clean[:4])
