"""Rows of draft trees: the same bits as their own paths laid out straight and stepped one token at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.kernels.harness import LEVELS, assert_bits, library
from tests.kernels.paged import ANCESTORS, BEYOND, STORED, Paged, ints


@dataclass(frozen=True, slots=True)
class Branch:
    """A lane's committed length and its tree: `parent[i] < i`, node 0 the root."""

    prefix: int
    parent: tuple[int, ...]

    def path(self, node: int) -> list[int]:
        return [node] if node == 0 else [*self.path(self.parent[node]), node]

    def ancestors(self) -> np.ndarray:
        out = np.full((len(self.parent), ANCESTORS), BEYOND, np.int32)
        for node in range(len(self.parent)):
            path = self.path(node)
            out[node, : len(path)] = [self.prefix + i for i in path]
        return out


@st.composite
def branches(draw: st.DrawFn) -> Branch:
    prefix = draw(st.one_of(st.sampled_from((0, 1, 31, 32, 33, 62, 63, 64, 65, 127, 128)), st.integers(0, 200)))
    size = draw(st.integers(1, 32))
    return Branch(prefix, (0, *(draw(st.integers(max(0, i - 5), i - 1)) for i in range(1, size))))


class Lane:
    """Keys, values and queries of a lane: rows 0..prefix-1 committed, then one row per node."""

    def __init__(self, cache: Paged, heads: int, branch: Branch, seed: int) -> None:
        self.branch, rng = branch, np.random.default_rng(seed)
        num_rows = branch.prefix + len(branch.parent)
        self.k, self.v = rng.standard_normal((2, num_rows, cache.kv_heads, cache.head_dim)).astype(np.float32)
        self.q = rng.standard_normal((len(branch.parent), heads, cache.head_dim)).astype(np.float32)


def tree_pass(cache: Paged, lanes: list[Lane], level: str, threads: int) -> list[np.ndarray]:
    """All nodes of all lanes in one pass, out of order; one [nodes, heads, D] per lane."""
    rows = [(i, node) for i, lane in enumerate(lanes) for node in range(len(lane.branch.parent))]
    order = np.random.default_rng(0).permutation(len(rows))
    rows = [rows[i] for i in order]
    for i, lane in enumerate(lanes):
        cache.write(lane.k, lane.v, np.full(len(lane.k), i, np.int32), np.arange(len(lane.k), dtype=np.int32))
    depths = [lanes[i].branch.prefix + len(lanes[i].branch.path(node)) - 1 for i, node in rows]
    ancestor = np.stack([lanes[i].branch.ancestors()[node] for i, node in rows])
    found = cache.attend(
        np.stack([lanes[i].q[node] for i, node in rows]), ints(*depths), ints(*(i for i, _ in rows)),
        ints(*(lanes[i].branch.prefix for i, _ in rows)), ancestor, library(level), threads,
    )  # fmt: skip
    out = [np.empty_like(lane.q) for lane in lanes]
    for (i, node), y in zip(rows, found, strict=True):
        out[i][node] = y
    return out


def straight_step(cache: Paged, lane: Lane, node: int) -> np.ndarray:
    """The node's path behind the committed text in a cache of its own, and one plain step."""
    prefix, path = lane.branch.prefix, lane.branch.path(node)
    slots = [*range(prefix), *(prefix + i for i in path)]
    alone = Paged(cache.kv_heads, cache.head_dim, cache.dtype, lanes=1, blocks=cache.table.shape[1], seed=5)
    alone.write(lane.k[slots], lane.v[slots], np.zeros(len(slots), np.int32), np.arange(len(slots), dtype=np.int32))
    return alone.attend(lane.q[node : node + 1], ints(len(slots) - 1), ints(0))[0]


def check(branches: list[Branch], head_dim: int, dtype: str, level: str, threads: int) -> None:
    cache = Paged(2, head_dim, dtype, lanes=len(branches), blocks=4, seed=1)
    lanes = [Lane(cache, 6, branch, seed) for seed, branch in enumerate(branches)]
    found = tree_pass(cache, lanes, level, threads)
    for i, lane in enumerate(lanes):
        for node in range(len(lane.branch.parent)):
            assert_bits(found[i][node], straight_step(cache, lane, node), f"lane {i}, node {node}")


CHAIN = tuple(max(0, i - 1) for i in range(32))
STAR = (0,) * 32


@settings(max_examples=80)
@given(
    st.lists(branches(), min_size=1, max_size=3),
    st.sampled_from((16, 20, 48, 64, 80)),
    st.sampled_from(sorted(STORED)),
    st.sampled_from(LEVELS),
    st.sampled_from((1, 2, 3, 5)),
)
@example([Branch(0, CHAIN), Branch(50, STAR), Branch(63, (0, 0, 1, 1, 0))], 64, "bf16", LEVELS[0], 2)
def test_a_tree_row_equals_a_step_at_its_own_prefix(
    branches: list[Branch], head_dim: int, dtype: str, level: str, threads: int
) -> None:
    check(branches, head_dim, dtype, level, threads)


@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("head_dim", (128, 256))
def test_wide_heads(head_dim: int, dtype: str) -> None:
    check([Branch(58, (0, 0, 1, 2, 2, 4, 5, 0, 7, 8, 9, 10, 11))], head_dim, dtype, LEVELS[0], 2)


@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("prefix", (0, 1, 33, 63, 64, 65, 128))
def test_ancestors_may_lie_in_any_slot(prefix: int, dtype: str) -> None:
    """The first of them too, which a draft tree keeps in the slot of its position."""
    scattered, straight = (Paged(2, 48, dtype, blocks=4, seed=seed) for seed in range(2))
    length = prefix + ANCESTORS
    k, v = np.random.default_rng(2).standard_normal((2, length, 2, 48)).astype(np.float32)
    behind = np.random.default_rng(3).permutation(np.arange(prefix + 1, 4 * 64, dtype=np.int32))[:ANCESTORS]
    slots, lane = np.arange(length, dtype=np.int32), np.zeros(length, np.int32)
    straight.write(k, v, lane, slots)
    scattered.write(k, v, lane, np.concatenate((slots[:prefix], behind)))
    position = np.arange(prefix, length, dtype=np.int32)
    q = np.random.default_rng(4).standard_normal((ANCESTORS, 6, 48)).astype(np.float32)
    rows = lane[:ANCESTORS]
    found = scattered.attend(q, position, rows, np.full(ANCESTORS, prefix, np.int32), np.tile(behind, (ANCESTORS, 1)))
    assert_bits(found, straight.attend(q, position, rows))
