"""Chunks through the one-launch kernel: against the definition, and the bits of split and merge row by row."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.cuda.attending import Branch, Pass, attend, attend_chunk, chain, laid_out
from tests.kernels.cuda.chain import chained_dots
from tests.kernels.cuda.paged import Paged
from tests.kernels.cuda.test_attention import TOLERANCE, assert_close, rounded


@pytest.fixture(autouse=True)
def _chained() -> Iterator[None]:
    with chained_dots():
        yield


def check(
    chunks: list[Branch], heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, bm: int, blocks: int = 6
) -> None:
    cache = Paged(kv_heads, head_dim, dtype, lanes=len(chunks), blocks=blocks)
    rows = laid_out(cache, chunks, heads)
    found = attend_chunk(cache, rows, bucket=len(rows.q) + 5, tiles=(bm, 4, 1))
    wanted = cache.reference(
        rounded(rows, dtype), rows.position, rows.lane, rows.prefix, rows.ancestor, scale=0.25, tree=False
    )
    assert_close(found, wanted, dtype)
    assert torch.equal(found[-2:], attend(cache, tail(rows), tree=False)), "not the bits of a pass of few rows"


def tail(rows: Pass) -> Pass:
    """The last two rows."""
    return Pass(*(x[-2:] for x in (rows.q, rows.position, rows.lane, rows.prefix, rows.ancestor)))


chunks = st.builds(chain, st.integers(0, 160), st.integers(1, 30))


@settings(max_examples=4, deadline=None)
@given(
    st.lists(chunks, min_size=1, max_size=3),
    st.sampled_from(((1, 1, 16), (6, 2, 16), (3, 1, 20))),
    st.sampled_from(sorted(TOLERANCE, key=str)),
    st.sampled_from((16, 64)),
)
def test_chunks_of_several_lanes(
    chunks: list[Branch], heads: tuple[int, int, int], dtype: torch.dtype, bm: int
) -> None:
    check(chunks, *heads, dtype, bm)


@pytest.mark.parametrize("prefix", [120, 2040, 2553, 8185])
def test_a_chunk_over_a_border_of_groups(prefix: int) -> None:
    check([chain(prefix, 20)], 2, 1, 16, torch.float32, 32, blocks=prefix // 64 + 2)


def test_wide_heads() -> None:
    check([chain(70, 9)], 6, 1, 256, torch.bfloat16, 16)


def test_a_chunk_without_rows_touches_nothing() -> None:
    cache = Paged(1, 16, torch.float32)
    rows = laid_out(cache, [chain(3, 2)], 2)
    nothing = Pass(*(x[:0] for x in (rows.q, rows.position, rows.lane, rows.prefix, rows.ancestor)))
    assert len(attend_chunk(cache, nothing, bucket=4)) == 0
