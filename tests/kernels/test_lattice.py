"""The lattice's scores against float64, its walk against plain Python, both bit for bit in any company."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem import kernels
from tests.kernels.blocks import Blocks
from tests.kernels.harness import (
    ROWS,
    THREADS,
    assert_accurate,
    assert_bits,
    assert_one_arithmetic,
    call,
    error,
    library,
    normal,
    poisoned,
    rounded,
)

FEW = settings(max_examples=30, deadline=None)
VOCABULARY = 50
TORCH = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Slots:
    """Candidates of `blocks`, drawn by `seed`; codebooks of `rank` as `dtype` stores them."""

    def __init__(self, blocks: Blocks, k: int, rank: int, dtype: str = "fp32", seed: int = 0) -> None:
        self.blocks, self.dtype, count = blocks, dtype, len(blocks.output_row)
        rng = np.random.default_rng(seed)
        self.token = rng.integers(0, VOCABULARY, len(blocks.position)).astype(np.int32)
        self.candidate = rng.integers(0, VOCABULARY, (count, k)).astype(np.int32)
        self.unary, self.gate = normal(count, k, seed=seed + 1), normal(count, rank, seed=seed + 2)
        self.codebooks = [rounded(normal(VOCABULARY, rank, seed=i), TORCH[dtype]) for i in (7, 8)]

    def where(self) -> list[np.ndarray]:
        return [self.blocks.output_row, self.blocks.position, self.blocks.prefix]

    def scores(self, path: Path | None = None, threads: int = 1) -> np.ndarray:
        (count, k), rank = self.unary.shape, self.gate.shape[1]
        stored = np.uint16 if self.dtype == "bf16" else np.float32
        books = [np.array(book.view(torch.uint8).numpy()).view(stored) for book in self.codebooks]
        output_row, position, prefix = self.where()
        score = np.full((count + 1, k, k), -5, np.float32)
        call(
            path or library(), f"lattice_scores_{self.dtype}", threads, count=count, candidate=self.candidate,
            unary=self.unary, gate=poisoned(self.gate, rank + 3), gate_stride=rank + 3, token=self.token,
            output_row=output_row, position=position, prefix=prefix, predecessor=books[0], successor=books[1],
            score=score, k=k, rank=rank,
        )  # fmt: skip
        assert (score[count:] == -5).all()
        return score[:count]

    def defined(self, dtype: torch.dtype) -> np.ndarray:
        candidate, token = torch.from_numpy(self.candidate), torch.from_numpy(self.token)
        given = [torch.from_numpy(a).to(dtype) for a in (self.unary, self.gate)]
        where = map(torch.from_numpy, self.where())
        return kernels.lattice_scores(candidate, *given, token, *where, *self.codebooks).numpy()

    def by_hand(self) -> np.ndarray:
        """In float64, slot by slot."""
        a, b = (book.double().numpy() for book in self.codebooks)
        exact = np.zeros((*self.unary.shape, self.unary.shape[1]))
        for o, row in enumerate(self.blocks.output_row):
            within = self.blocks.position[row] - self.blocks.prefix[row]
            for p, c in np.ndindex(exact.shape[1:]):
                before = self.token[row - 1] if within == 1 else self.candidate[o - 1, p]
                exact[o, p, c] = self.unary[o, c] + (a[before] * self.gate[o] * b[self.candidate[o, c]]).sum()
        return exact


def walk(score: np.ndarray, blocks: Blocks, path: Path | None = None, threads: int = 1) -> np.ndarray:
    greedy = np.full(len(score) + 1, -5, np.int32)
    call(
        path or library(), "lattice_walk", threads, count=len(score), score=score, output_row=blocks.output_row,
        position=blocks.position, prefix=blocks.prefix, greedy=greedy, k=score.shape[1],
    )  # fmt: skip
    assert greedy[-1] == -5
    return greedy[:-1]


@pytest.mark.parametrize("dtype", TORCH)
@pytest.mark.parametrize(("k", "rank"), ((16, 256), (16, 8), (3, 17), (1, 1), (5, 33)))
def test_scores_are_the_definition(k: int, rank: int, dtype: str) -> None:
    slots = Slots(Blocks.of([0, 9, 4], 5), k, rank, dtype)
    exact = slots.by_hand()
    np.testing.assert_allclose(slots.defined(torch.float64), exact, rtol=0, atol=1e-10)
    assert_accurate(slots.scores(threads=3), exact, error(slots.defined(torch.float32), exact))


@pytest.mark.parametrize("dtype", TORCH)
def test_one_arithmetic(dtype: str) -> None:
    """Scores and walks of blocks in any company."""
    size, k = 4, 5
    everything = Slots(Blocks.of(range(ROWS), size), k, 21, dtype)

    def blocks_of(ids: Sequence[int], path: Path, threads: int) -> np.ndarray:
        part = Slots(Blocks.of(ids, size), k, 21, dtype)
        for name, rows in (("token", size), ("candidate", size - 1), ("unary", size - 1), ("gate", size - 1)):
            whole = getattr(everything, name)
            setattr(part, name, whole.reshape(ROWS, rows, -1)[ids].reshape(len(ids) * rows, *whole.shape[1:]))
        score = part.scores(path, threads)
        greedy = walk(score, part.blocks, path, threads)
        found = score.reshape(len(ids), -1), greedy.reshape(len(ids), -1).astype(np.float32)
        return np.concatenate(found, axis=1)

    assert_one_arithmetic(blocks_of)


@given(
    st.integers(2, 6), st.lists(st.integers(0, 9), min_size=1, max_size=4), st.integers(1, 4), st.integers(0, 99),
    st.sampled_from(THREADS),
)  # fmt: skip
@FEW
def test_the_walk_takes_the_best_behind_the_best(
    size: int, anchors: list[int], k: int, seed: int, threads: int
) -> None:
    """Scores of few values, so that many are equal: the first wins."""
    blocks = Blocks.of(anchors, size)
    count = len(blocks.output_row)
    score = np.random.default_rng(seed).integers(0, 3, (count, k, k)).astype(np.float32)
    wanted, before = [], 0
    for o in range(count):
        row = score[o, before if o % (size - 1) else 0].tolist()
        before = row.index(max(row))
        wanted.append(before)
    where = [torch.from_numpy(a) for a in (blocks.output_row, blocks.position, blocks.prefix)]
    assert kernels.lattice_walk(torch.from_numpy(score), *where).tolist() == wanted
    assert walk(score, blocks, threads=threads).tolist() == wanted


def test_minus_infinity_is_taken_only_where_there_is_nothing_else() -> None:
    blocks, score = Blocks.of([3], 3), np.full((2, 3, 3), -np.inf, np.float32)
    score[0, 0, 2] = -1e30
    score[1, 2, 1] = 0
    assert walk(score, blocks).tolist() == [2, 1]
    assert walk(np.full((2, 3, 3), -np.inf, np.float32), blocks).tolist() == [0, 0]


def test_no_slots_touch_nothing() -> None:
    slots = Slots(Blocks.of([], 4), 3, 5)
    assert slots.scores(threads=3).size == walk(slots.unary.reshape(0, 3, 3), slots.blocks, threads=3).size == 0
    assert slots.defined(torch.float64).shape == (0, 3, 3)


def test_definitions_keep_the_rules_of_torch() -> None:
    slots = Slots(Blocks.of([2, 5], 3), 4, 6)
    candidate, unary, gate, token = map(torch.from_numpy, (slots.candidate, slots.unary, slots.gate, slots.token))
    where = [torch.from_numpy(a) for a in slots.where()]
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(
        torch.ops.tandem.lattice_scores.default, (candidate, unary, gate, token, *where, *slots.codebooks),
        test_utils=checks,
    )  # fmt: skip
    score = torch.from_numpy(normal(4, 4, 4))
    torch.library.opcheck(torch.ops.tandem.lattice_walk.default, (score, *where), test_utils=checks)


def test_bits_do_not_depend_on_candidates_of_other_slots() -> None:
    slots = Slots(Blocks.of([2], 4), 4, 20)
    before = slots.scores()
    slots.candidate[2] = slots.candidate[2][::-1]  # the last slot's
    assert_bits(slots.scores()[:2], before[:2])
