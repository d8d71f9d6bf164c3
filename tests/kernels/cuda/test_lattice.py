"""The Triton kernels of the lattice: scores against float64, the walk against plain Python, in any company alike."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.kernels.cuda.drafting import Blocks, Slots, normal

FEW = settings(max_examples=8, deadline=None)
BF16 = torch.bfloat16
DTYPES = st.sampled_from((torch.float32, BF16))


def blocks_of(sizes: list[int]) -> Blocks:
    """Blocks of these sizes side by side."""
    parts = [Blocks.of([(lane, 11 * lane + size)], size) for lane, size in enumerate(sizes)]
    return Blocks(*(torch.cat([getattr(part, name) for part in parts]) for name in ("position", "lane", "prefix")), 0)


@given(st.lists(st.integers(2, 6), min_size=1, max_size=3), st.integers(2, 20), st.sampled_from((1, 7, 8, 20)), DTYPES)
@FEW
def test_scores_are_the_definition(sizes: list[int], k: int, rank: int, dtype: torch.dtype) -> None:
    slots = Slots.drawn(blocks_of(sizes), k, rank, dtype)
    torch.testing.assert_close(slots.scores().double(), slots.defined(), rtol=0, atol=2e-5)


@pytest.mark.parametrize(("k", "rank"), [(16, 256), (32, 64)])
def test_sizes_of_real_drafters(k: int, rank: int) -> None:
    slots = Slots.drawn(blocks_of([3]), k, rank, BF16)
    torch.testing.assert_close(slots.scores().double(), slots.defined(), rtol=0, atol=1e-4)


def test_a_score_is_a_sum_in_pairs_of_rounded_products() -> None:
    slots = Slots.drawn(blocks_of([2]), 3, 8)
    gated = slots.predecessor[slots.token[0]] * slots.gate[0]
    terms = gated * slots.successor[slots.candidate[0].long()]
    while terms.shape[1] > 1:
        terms = terms[:, ::2] + terms[:, 1::2]
    wanted = slots.unary[0] + terms[:, 0]
    assert torch.equal(slots.scores(), wanted.expand(1, 3, 3))


def test_a_first_slot_follows_the_anchor_whatever_stands_before() -> None:
    slots = Slots.drawn(blocks_of([3, 3]), 4, 8)
    score = slots.scores()
    for first in (0, 2):
        assert torch.equal(score[first], score[first, :1].expand(4, 4))
    assert not torch.equal(score[1, 0], score[1, 1])


@given(st.lists(st.integers(2, 20), min_size=1, max_size=4), st.sampled_from((2, 5, 16, 17)), st.integers(0, 99))
@FEW
def test_a_walk_is_the_definition(sizes: list[int], k: int, seed: int) -> None:
    """Blocks shorter and longer than what is loaded at once; scores of few values, so many are equal."""
    slots = Slots.drawn(blocks_of(sizes), k, 1)
    generator = torch.Generator().manual_seed(seed)
    score = torch.randint(0, 4, (len(slots.unary), k, k), generator=generator).float()
    assert slots.walk(score).tolist() == walked(score, sizes)


def walked(score: Tensor, sizes: list[int]) -> list[int]:
    """In plain Python."""
    found: list[int] = []
    for size in sizes:
        before = 0
        for _ in range(size - 1):
            line = score[len(found), before].tolist()
            before = line.index(max(line))
            found.append(before)
    return found


def test_nan_is_never_taken_and_a_line_of_it_gives_a_place() -> None:
    slots = Slots.drawn(blocks_of([4]), 3, 1)
    score = torch.zeros(3, 3, 3)
    score[0, 0] = torch.tensor([torch.nan, 1.0, 2.0])
    score[1, 2] = torch.nan
    score[2, 0] = torch.tensor([-torch.inf, torch.nan, -torch.inf])
    with np.errstate(invalid="ignore"):
        assert slots.walk(score).tolist() == [2, 0, 0]


@given(st.lists(st.integers(2, 6), min_size=2, max_size=4), DTYPES)
@FEW
def test_a_block_has_the_bits_that_it_has_alone(sizes: list[int], dtype: torch.dtype) -> None:
    slots = Slots.drawn(blocks_of(sizes), 5, 20, dtype)
    score = slots.scores()
    walk = slots.walk(score)
    row, slot = 0, 0
    for size in sizes:
        rows, mine = slice(row, row + size), slice(slot, slot + size - 1)
        alone = Slots(
            slots.blocks.of_rows(rows), slots.token[rows], slots.candidate[mine], slots.unary[mine], slots.gate[mine],
            slots.predecessor, slots.successor,
        )  # fmt: skip
        assert torch.equal(alone.scores(slots=size - 1), score[mine])
        assert torch.equal(alone.walk(score[mine], slots=size - 1), walk[mine])
        row, slot = row + size, slot + size - 1


def test_a_pass_without_slots_touches_nothing() -> None:
    slots = Slots.drawn(Blocks.of([], 4), 5, 8)
    assert len(slots.scores()) == len(slots.walk(normal(0, 5, 5))) == 0


def test_a_bad_gate_stays_in_its_slot() -> None:
    slots = Slots.drawn(blocks_of([4]), 3, 8)
    clean = slots.scores()
    slots.gate[1, 3] = torch.nan
    found = slots.scores()
    assert found[1].isnan().all() and torch.equal(found[[0, 2]], clean[[0, 2]])
