"""The Gluon kernel against `attention_split`, whose bits it has to give: every number of places, trees and chains."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.kernels.cuda import attention, attention_wide
from tests.kernels.cuda.attending import Branch, Pass, attend, chain, laid_out
from tests.kernels.cuda.chain import chained_dots
from tests.kernels.cuda.interpreter import interpreted
from tests.kernels.cuda.paged import Paged
from tests.kernels.cuda.ptx import Early, before_wait
from tests.kernels.cuda.test_attention_compiled import SIZES
from tests.kernels.cuda.test_compiled import _ptx

HEADS = 8
BUSHY = (0, 0, 1, 2, 2, 4, 5, 0, 7)


@pytest.fixture(autouse=True)
def _chained() -> Iterator[None]:
    with chained_dots():
        yield


def equal(branches: list[Branch], tree: bool, head_dim: int = 64, heads: int = HEADS, kv_heads: int = 1) -> None:
    longest = max(branch.prefix + len(branch.parent) for branch in branches)
    cache = Paged(kv_heads, head_dim, torch.bfloat16, lanes=len(branches), blocks=longest // 64 + 1)
    rows = laid_out(cache, branches, heads)
    bucket = max(len(rows.q), 64 * kv_heads // heads + 1)  # more than 64 pairs
    context = max(4096, longest)  # a class that takes this kernel, however short the text
    found = attend(cache, rows, tree, bucket=bucket, context=context)
    wanted = attend(cache, rows, tree, bucket=bucket, context=context, tiles=(64, 4, 1))
    assert found.isfinite().all() and torch.equal(found, wanted)


def test_it_is_what_wide_passes_behind_long_contexts_launch() -> None:
    def split(rows: int, context: int, **sizes: int) -> str:
        works = attention.attention_works(rows=rows, context=context, tree=True, max_lanes=8, **{**SIZES, **sizes})
        return works[0][0]

    assert split(32, 4096) == split(16, 4096) == "attention_wide"
    assert split(8, 4096) == split(32, 2048) == split(32, 4096, itemsize=4) == "attention_split"
    assert split(32, 4096, head_dim=96) == "attention_split"


@settings(max_examples=4, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 420), st.integers(1, 6)), min_size=1, max_size=3),
    st.booleans(),
    st.sampled_from((1, 3, 132)),
)
def test_lanes_and_places(lanes: list[tuple[int, int]], tree: bool, places: int) -> None:
    module = interpreted("attention")
    usual = module.PLACES
    module.PLACES = places
    try:
        equal([chain(prefix, rows) for prefix, rows in lanes], tree)
    finally:
        module.PLACES = usual


@pytest.mark.parametrize(
    ("prefix", "tree"), [(0, True), (63, False), (64, True), (127, True), (128, False), (192, True), (255, True)]
)
def test_contexts_that_end_at_borders(prefix: int, tree: bool) -> None:
    equal([Branch(prefix, BUSHY)] if tree else [chain(prefix, 9)], tree)


@pytest.mark.parametrize("tree", [False, True])
def test_a_short_lane_beside_long_ones(tree: bool) -> None:
    equal([chain(3, 2), chain(520, 4), chain(64, 1), chain(500, 2)], tree)


@pytest.mark.parametrize(("prefix", "places"), [(2040, 132), (9220, 6)])
def test_groups_of_every_size(monkeypatch: pytest.MonkeyPatch, prefix: int, places: int) -> None:
    monkeypatch.setattr(interpreted("attention"), "PLACES", places)
    equal([chain(prefix, 9 if prefix < 4096 else 17)], tree=prefix > 4096)


@pytest.mark.parametrize("head_dim", [128, 256])
def test_wider_heads_of_several_kv_heads(head_dim: int) -> None:
    equal([Branch(140, (*BUSHY, *range(8, 21)))], True, head_dim, heads=6, kv_heads=2)


def test_a_pass_without_rows_touches_nothing() -> None:
    cache = Paged(1, 64, torch.bfloat16)
    rows = laid_out(cache, [chain(3, 2)], HEADS)
    nothing = Pass(*(x[:0] for x in (rows.q, rows.position, rows.lane, rows.prefix, rows.ancestor)))
    for tree in (False, True):
        assert len(attend(cache, nothing, tree, bucket=16, context=4096)) == 0


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_what_the_compiler_makes_of_it(head_dim: int, tree: bool) -> None:
    works = attention.attention_works(rows=32, context=32768, tree=tree, max_lanes=8, **{**SIZES, "head_dim": head_dim})
    kernel = attention_wide.attention_wide
    pointers = [param.name for param in kernel.signature]
    types = dict.fromkeys(("q", "k_cache", "v_cache"), "bf16")
    types |= dict.fromkeys(("position", "lane", "prefix", "block_table", "count"), "i32")
    ptx = _ptx(kernel, works[0][1], **types)
    assert before_wait(ptx, pointers) == Early(frozenset({"count"}), frozenset(), writes=False)
    assert "wgmma.mma_async" in ptx and "mma.sync" not in ptx
    assert "cp.async.cg.shared.global.L2::128B" in ptx
