"""Paged attention, writes and moves, held against a dense softmax in numpy float64 over caches full of NaN."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem import kernels

HEADS, KV_HEADS, HEAD_DIM, PAGE_TOKENS, NUM_PAGES, LANES = 6, 2, 4, 4, 40, 3
SCALE = 0.7


class Cache:
    """One layer's pages, poisoned with NaN, dealt to the lanes in random order; `dense` remembers what was written."""

    def __init__(self, seed: int = 0, dtype: torch.dtype = torch.float64) -> None:
        self.rng = np.random.default_rng(seed)
        self.k = torch.full((NUM_PAGES, KV_HEADS, HEAD_DIM, PAGE_TOKENS), torch.nan, dtype=dtype)
        self.v = torch.full((NUM_PAGES, KV_HEADS, PAGE_TOKENS, HEAD_DIM), torch.nan, dtype=dtype)
        pages = self.rng.permutation(NUM_PAGES)[: LANES * 13].reshape(LANES, 13)
        self.table = torch.tensor(pages, dtype=torch.int32)
        self.dense: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}

    def write(self, lane: list[int], slot: list[int]) -> None:
        k, v = (torch.tensor(self.rng.normal(size=(len(slot), KV_HEADS, HEAD_DIM))) for _ in range(2))
        kernels.kv_write(k, v, self.k, self.v, rows(lane), rows(slot), self.table)
        for i, place in enumerate(zip(lane, slot, strict=True)):
            self.dense[place] = k[i].numpy(), v[i].numpy()

    def expected(self, q: torch.Tensor, lane: int, slots: list[int]) -> np.ndarray:
        """Softmax attention [HEADS, HEAD_DIM] of one row over `slots` in order."""
        out = np.empty((HEADS, HEAD_DIM))
        for head in range(HEADS):
            group = head // (HEADS // KV_HEADS)
            k = np.stack([self.dense[lane, slot][0][group] for slot in slots])
            v = np.stack([self.dense[lane, slot][1][group] for slot in slots])
            scores = k @ q[head].numpy() * SCALE
            weights = np.exp(scores - scores.max())
            out[head] = weights @ v / weights.sum()
        return out


def rows(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def attend(
    cache: Cache,
    q: torch.Tensor,
    position: list[int],
    lane: list[int],
    prefix: list[int],
    paths: list[list[int]] | None,
) -> torch.Tensor:
    ancestor = torch.full((len(position), 32), 10**6, dtype=torch.int32)  # an index that must never be followed
    for i, path in enumerate(paths or []):
        ancestor[i, : len(path)] = rows(path)
    where = (rows(position), rows(lane), rows(prefix), ancestor, cache.table)
    return kernels.attention(q, cache.k, cache.v, *where, SCALE, paths is not None)


def queries(count: int) -> torch.Tensor:
    return torch.randn(count, HEADS, HEAD_DIM, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def test_rows_of_several_lanes_see_their_own_positions_only() -> None:
    cache = Cache()
    for lane, length in enumerate((9, 1, 17)):
        cache.write([lane] * length, list(range(length)))
    position, lane = [8, 3, 0, 16, 15], [0, 0, 1, 2, 2]
    q = queries(5)
    # Without `tree`, prefix and ancestors are ignored, whatever stands there.
    found = attend(cache, q, position, lane, [0] * 5, None)
    for i in range(5):
        np.testing.assert_allclose(found[i], cache.expected(q[i], lane[i], list(range(position[i] + 1))), rtol=1e-12)


@given(st.data())
@settings(max_examples=25)
def test_a_tree_row_equals_the_step_at_its_prefix(data: st.DataObject) -> None:
    """Bit for bit: the tree's row, and a lane whose straight text is that row's path."""
    length = data.draw(st.integers(0, 9))
    parents = [-1] + [data.draw(st.integers(0, i - 1)) for i in range(1, data.draw(st.integers(1, 8)))]
    paths: list[list[int]] = []
    for node, parent in enumerate(parents):
        paths.append(([] if parent < 0 else paths[parent]) + [length + node])
    cache = Cache(seed=length)
    nodes = len(parents)
    cache.write([0] * (length + nodes), list(range(length + nodes)))
    q = queries(nodes)
    depth = [len(path) - 1 for path in paths]
    found = attend(cache, q, [length + d for d in depth], [0] * nodes, [length] * nodes, paths)
    for i, path in enumerate(paths):
        slots = list(range(length)) + path
        np.testing.assert_allclose(found[i], cache.expected(q[i], 0, slots), rtol=1e-12, atol=1e-14)
        copy = Cache(seed=99)
        k = torch.tensor(np.stack([cache.dense[0, slot][0] for slot in slots]))
        v = torch.tensor(np.stack([cache.dense[0, slot][1] for slot in slots]))
        straight = rows(list(range(len(slots))))
        kernels.kv_write(k, v, copy.k, copy.v, torch.full_like(straight, 1), straight, copy.table)
        step = attend(copy, q[i : i + 1], [len(slots) - 1], [1], [len(slots)], None)
        assert torch.equal(step[0], found[i])


def test_pages_are_transposed_for_keys_only() -> None:
    cache = Cache()
    cache.write([2], [6])
    k, v = cache.dense[2, 6]
    page = cache.table[2, 1]
    np.testing.assert_array_equal(cache.k[page, :, :, 2], k)
    np.testing.assert_array_equal(cache.v[page, :, 2], v)
    assert int(cache.k.isfinite().sum()) == KV_HEADS * HEAD_DIM


def test_a_bfloat16_cache_rounds_to_nearest_even_and_is_read_in_float32() -> None:
    cache = Cache(dtype=torch.bfloat16)
    halfway = torch.tensor([1.0 + 2**-8, 1.0 + 3 * 2**-8, -1.0 - 2**-8, 1.0 + 2**-8 + 2**-20])
    k = halfway.expand(1, KV_HEADS, HEAD_DIM)
    kernels.kv_write(k, k, cache.k, cache.v, rows([0]), rows([0]), cache.table)
    found = attend(cache, queries(1).float(), [0], [0], [1], None)
    assert found.dtype == torch.float32
    assert found[0, 0].tolist() == [1.0, 1.0 + 2**-6, -1.0, 1.0 + 2**-7]


@pytest.mark.parametrize("path", ([0, 1, 2], [0, 2, 3, 7], [0, 5], [0]))
def test_moves_bring_an_accepted_path_into_place_in_order(path: list[int]) -> None:
    cache, length = Cache(), 6
    cache.write([1] * (length + 8), list(range(length + 8)))
    moves = [(length + node, length + depth) for depth, node in enumerate(path) if node != depth]
    source, target = [s for s, _ in moves], [t for _, t in moves]
    kernels.kv_move(cache.k, cache.v, rows([1] * len(moves)), rows(source), rows(target), cache.table)
    q = queries(1)
    last = length + len(path) - 1
    found = attend(cache, q, [last], [1], [last + 1], None)
    slots = list(range(length)) + [length + node for node in path]
    np.testing.assert_allclose(found[0], cache.expected(q[0], 1, slots), rtol=1e-12, atol=1e-14)


def test_a_target_may_be_the_source_of_a_later_move() -> None:
    cache = Cache()
    cache.write([0, 0, 0], [0, 1, 2])
    kernels.kv_move(cache.k, cache.v, rows([0, 0]), rows([2, 1]), rows([1, 0]), cache.table)
    page = cache.table[0, 0]
    for place in range(3):
        np.testing.assert_array_equal(cache.v[page, :, place], cache.dense[0, 2][1])
