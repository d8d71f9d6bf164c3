"""Cache writes and moves: the right bytes in the right places, and not one byte elsewhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem import kernels
from tests.kernels.harness import LEVELS, THREADS, assert_bits, library, normal
from tests.kernels.paged import PAGE, STORED, TORCH, Paged, ints

HEAD_DIMS = (1, 16, 20, 48, 64, 80, 128, 256)


def rows_of(cache: Paged, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    return tuple(normal(count, cache.kv_heads, cache.head_dim, seed=2 * seed + i) for i in range(2))


def scattered(count: int, lanes: int, blocks: int) -> tuple[np.ndarray, np.ndarray]:
    """`count` different (lane, slot) pairs, page borders and both ends among them."""
    last = blocks * PAGE - 1
    fixed = [(0, 0), (0, PAGE - 1), (0, PAGE), (lanes - 1, last)]
    rng = np.random.default_rng(7)
    rest = [divmod(int(i), last + 1) for i in rng.permutation(lanes * (last + 1))]
    pairs = [*fixed, *(p for p in rest if p not in fixed)][:count]
    return ints(*(lane for lane, _ in pairs)), ints(*(slot for _, slot in pairs))


def expected_write(cache: Paged, k: np.ndarray, v: np.ndarray, lane: np.ndarray, slot: np.ndarray) -> np.ndarray:
    """The cache's memory after a write, worked out place by place on a copy."""
    after = Paged(cache.kv_heads, cache.head_dim, cache.dtype, *cache.table.shape)
    after.memory[:] = cache.memory
    stored = torch.uint16 if cache.dtype == "bf16" else torch.float32
    k_bits, v_bits = (torch.from_numpy(x).to(TORCH[cache.dtype]).view(stored).numpy() for x in (k, v))
    for i in range(len(k)):
        page, place = cache.table[lane[i], slot[i] // PAGE], slot[i] % PAGE
        after.k[page, :, :, place] = k_bits[i]
        after.v[page, :, place] = 0
        after.v[page, :, place, : cache.head_dim] = v_bits[i]
    return after.memory


@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("kv_heads", (1, 3))
def test_write_touches_its_places_and_no_others(kv_heads: int, head_dim: int, dtype: str) -> None:
    cache = Paged(kv_heads, head_dim, dtype, lanes=3, blocks=3)
    k, v = rows_of(cache, 37)
    lane, slot = scattered(37, 3, 3)
    wanted = expected_write(cache, k, v, lane, slot)
    cache.write(k, v, lane, slot)
    assert_bits(cache.memory, wanted)


@pytest.mark.parametrize("dtype", STORED)
def test_write_is_the_reference(dtype: str) -> None:
    cache = Paged(2, 20, dtype, lanes=2, blocks=2)
    k, v = rows_of(cache, 20)
    lane, slot = scattered(20, 2, 2)
    k_cache, v_cache = cache.tensors()
    new_k, new_v, lanes, slots, table = map(torch.from_numpy, (k, v, lane, slot, cache.table))
    kernels.kv_write(new_k, new_v, k_cache, v_cache, lanes, slots, table)
    cache.write(k, v, lane, slot, threads=2)
    found_k, found_v = cache.tensors()
    for found, wanted in ((found_k, k_cache), (found_v, v_cache)):
        assert torch.equal(found.isnan(), wanted.isnan())
        assert torch.equal(found.nan_to_num(), wanted.nan_to_num())


@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("level", LEVELS)
def test_write_is_the_same_alone_beside_others_and_on_any_team(level: str, dtype: str) -> None:
    lane, slot = scattered(32, 2, 3)
    alone = Paged(3, 48, dtype, lanes=2, blocks=3)
    k, v = rows_of(alone, 32)
    for i in range(32):
        alone.write(k[i : i + 1], v[i : i + 1], lane[i : i + 1], slot[i : i + 1])
    for threads in THREADS:
        together = Paged(3, 48, dtype, lanes=2, blocks=3)
        together.write(k, v, lane, slot, library(level), threads)
        assert_bits(together.memory, alone.memory, f"{threads} threads")


@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_write_then_move_equals_writing_straight(head_dim: int, dtype: str) -> None:
    start = 61  # the tree crosses a page border
    path = [0, 1, 4, 5, 9, 14]
    tree, straight = (Paged(3, head_dim, dtype, lanes=2, blocks=3) for _ in range(2))
    k, v = rows_of(tree, 16)
    tree.write(k, v, np.full(16, 1, np.int32), np.arange(start, start + 16, dtype=np.int32))
    moves = [(start + node, start + depth) for depth, node in enumerate(path) if node != depth]
    source, target = (ints(*side) for side in zip(*moves, strict=True))
    tree.move(np.full(len(moves), 1, np.int32), source, target, threads=2)
    slots = np.arange(start, start + len(path), dtype=np.int32)
    straight.write(k[path], v[path], np.full(len(path), 1, np.int32), slots)
    for slot in slots:
        page, place = tree.table[1, slot // PAGE], slot % PAGE
        assert_bits(tree.k[page, :, :, place], straight.k[page, :, :, place], slot)
        assert_bits(tree.v[page, :, place], straight.v[page, :, place], slot)


def moved(cache: Paged, moves: list[tuple[int, int, int]]) -> np.ndarray:
    """Memory after the moves, in order, on a copy."""
    after = Paged(cache.kv_heads, cache.head_dim, cache.dtype, *cache.table.shape)
    after.memory[:] = cache.memory
    for lane, source, target in moves:
        (a, i), (b, j) = ((cache.table[lane, s // PAGE], s % PAGE) for s in (source, target))
        after.k[b, :, :, j] = after.k[a, :, :, i].copy()
        after.v[b, :, j] = after.v[a, :, i].copy()
    return after.memory


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 191), st.integers(0, 191)), max_size=32),
    st.sampled_from(sorted(STORED)),
    st.sampled_from((1, 2, 3, 5)),
)
def test_moves_happen_in_order(moves: list[tuple[int, int, int]], dtype: str, threads: int) -> None:
    """Targets may be sources of other moves, and a move may stay in place."""
    cache = Paged(3, 20, dtype, lanes=2, blocks=3)
    cache.memory[:] = np.random.default_rng(3).integers(0, 256, cache.memory.shape, dtype=np.uint8)
    wanted = moved(cache, moves)
    lane, source, target = (ints(*(move[i] for move in moves)) for i in range(3))
    path: Path = library(LEVELS[threads % len(LEVELS)])
    cache.move(lane, source, target, path, threads)
    assert_bits(cache.memory, wanted)
