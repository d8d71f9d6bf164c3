"""Triton attention against the definition in float64, and rows of trees and chains against one-token steps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.kernels.cuda.attending import Branch, Pass, attend, chain, filled, laid_out
from tests.kernels.cuda.chain import chained_dots
from tests.kernels.cuda.interpreter import interpreted
from tests.kernels.cuda.paged import ANCESTORS, Paged

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2}
"""Relative to the whole row; the interpreter cuts probabilities off at bf16 where a GPU rounds."""


@pytest.fixture(autouse=True)
def _chained() -> Iterator[None]:
    with chained_dots():
        yield


def assert_close(found: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    assert found.isfinite().all()
    error = (found.double() - wanted).flatten(1).norm(dim=1) / wanted.flatten(1).norm(dim=1)
    assert error.max() < TOLERANCE[dtype]


def rounded(rows: Pass, dtype: torch.dtype) -> Tensor:
    return rows.q.to(dtype).double()


def check(
    branches: list[Branch], heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, tree: bool,
    tiles: tuple[int, int, int] | None = None, blocks: int = 4,
) -> None:  # fmt: skip
    cache = Paged(kv_heads, head_dim, dtype, lanes=len(branches), blocks=blocks)
    rows = laid_out(cache, branches, heads)
    wanted = cache.reference(
        rounded(rows, dtype), rows.position, rows.lane, rows.prefix, rows.ancestor, scale=0.25, tree=tree
    )
    assert_close(attend(cache, rows, tree, tiles=tiles), wanted, dtype)


@st.composite
def branches(draw: st.DrawFn, room: int = 14) -> Branch:
    prefix = draw(st.one_of(st.sampled_from((0, 1, 62, 63, 64, 65, 127, 128, 129)), st.integers(0, 200)))
    size = draw(st.integers(1, room))
    return Branch(prefix, (0, *(draw(st.integers(max(0, i - 5), i - 1)) for i in range(1, size))))


@settings(max_examples=5, deadline=None)
@given(
    st.lists(branches(), min_size=1, max_size=2),
    st.sampled_from(((1, 1, 16), (6, 2, 16), (3, 1, 20), (16, 1, 16))),
    st.sampled_from(sorted(TOLERANCE, key=str)),
)
def test_trees_of_several_lanes(branches: list[Branch], heads: tuple[int, int, int], dtype: torch.dtype) -> None:
    check(branches, *heads, dtype, tree=True)


@settings(max_examples=5, deadline=None)
@given(
    st.lists(st.builds(chain, st.integers(0, 200), st.integers(1, 7)), min_size=1, max_size=4),
    st.sampled_from(((1, 1, 16), (6, 2, 16), (3, 1, 20), (16, 1, 16))),
    st.sampled_from(sorted(TOLERANCE, key=str)),
    st.sampled_from((16, 32, 64)),
)
def test_chains_of_several_lanes(
    chains: list[Branch], heads: tuple[int, int, int], dtype: torch.dtype, bm: int
) -> None:
    check(chains, *heads, dtype, tree=False, tiles=(bm, 4, 1))


def test_many_lanes_of_one_row() -> None:
    check([chain(i * 9, 1) for i in range(8)], 6, 2, 16, torch.float32, tree=False)


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("prefix", [2047, 2560, 8190, 9220])
def test_borders_of_groups_of_every_size(prefix: int, tree: bool) -> None:
    check([chain(prefix, 3)], 2, 1, 16, torch.float32, tree, blocks=prefix // 64 + 2)


@pytest.mark.parametrize("head_dim", [80, 256])
@pytest.mark.parametrize("tree", [False, True])
def test_wide_heads(head_dim: int, tree: bool) -> None:
    check([Branch(58, (0, 0, 1, 2, 2, 4, 5, 0, 7))], 3, 1, head_dim, torch.bfloat16, tree)


def test_a_pass_without_rows_touches_nothing() -> None:
    cache = Paged(1, 16, torch.float32)
    rows = laid_out(cache, [chain(3, 2)], 2)
    nothing = Pass(*(x[:0] for x in (rows.q, rows.position, rows.lane, rows.prefix, rows.ancestor)))
    for tree in (False, True):
        assert len(attend(cache, nothing, tree, bucket=4, context=128)) == 0


def step(branch: Branch, node: int, rows: Pass, index: int, like: Paged, lane: int) -> Tensor:
    """The node's path laid out straight in a cache of its own, and a one-row pass at its prefix."""
    path = [branch.prefix + i for i in branch.path(node)]
    tokens = [*range(branch.prefix), *path]
    alone = Paged(like.kv_heads, like.head_dim, like.memory.dtype, blocks=like.table.shape[1], seed=7)
    filled_lane(alone, tokens, lane)
    row = rows.row(index)
    straight = Pass(row.q, row.position, torch.zeros_like(row.lane), row.position, row.ancestor)
    return attend(alone, straight, tree=False, bucket=1)[0]


def filled_lane(cache: Paged, tokens: list[int], lane: int) -> None:
    """The tokens of another cache's `lane`, in slots 0.. of this one's only lane."""
    donor = Paged(cache.kv_heads, cache.head_dim, cache.memory.dtype, lanes=lane + 1, blocks=cache.table.shape[1])
    filled(donor, lane, range(max(tokens) + 1), range(max(tokens) + 1))
    at = [donor.place(lane, token) for token in tokens]
    k, v = (torch.stack([donor.values(part)[page, :, place] for page, place in at]) for part in range(2))
    cache.put(0, range(len(tokens)), k, v)


@settings(max_examples=3, deadline=None)
@given(st.lists(branches(), min_size=1, max_size=2), st.sampled_from(sorted(TOLERANCE, key=str)))
def test_a_tree_row_equals_a_step_at_its_own_prefix(branches: list[Branch], dtype: torch.dtype) -> None:
    """Tiles of 16 pairs in both: numpy's product keeps its order of sums only at one shape, a GPU's at all."""
    cache = Paged(2, 16, dtype, lanes=len(branches))
    rows = laid_out(cache, branches, heads=6)
    found = attend(cache, rows, tree=True, tiles=(16, 4, 1))
    index = 0
    for lane, branch in enumerate(branches):
        for node in range(len(branch.parent)):
            wanted = step(branch, node, rows, index, cache, lane)
            assert torch.equal(found[index], wanted), f"lane {lane}, node {node}"
            index += 1


def test_ancestors_may_lie_in_any_slot() -> None:
    cache = Paged(1, 16, torch.float32)
    filled(cache, 0, range(70), range(70))
    slots = [211, 70, 250, 131]
    filled(cache, 0, slots, range(70, 74))
    ancestor = torch.full((1, ANCESTORS), 2**30, dtype=torch.int32)
    ancestor[0, :4] = torch.tensor(slots)
    one = torch.ones(1, dtype=torch.int32)
    rows = Pass(torch.randn(1, 2, 16), 73 * one, 0 * one, 70 * one, ancestor)
    straight = Paged(1, 16, torch.float32, seed=3)
    filled(straight, 0, range(74), range(74))
    assert torch.equal(attend(cache, rows, tree=True), attend(straight, rows, tree=False))


def test_groups_cover_every_position_once_and_in_order() -> None:
    groups = interpreted("groups")
    sizes = [128] * 16 + [512] * 12 + [1024] * 8
    for context in range(1, sum(sizes) + 1):
        wanted, covered = 0, 0
        while covered < context:
            covered, wanted = covered + sizes[wanted], wanted + 1
        assert groups.num_groups(context) == wanted


def test_a_scale_that_is_not_positive_is_refused() -> None:
    with pytest.raises(ValueError, match="positive"):
        interpreted("attention").exponent_scale(0.0)
