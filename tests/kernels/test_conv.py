"""Convolution with SiLU: against float64, and bit for bit in every way that rows may come, on any team and machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem import kernels
from tests.kernels.harness import (
    LEVELS,
    ROWS,
    THREADS,
    assert_accurate,
    assert_bits,
    assert_one_arithmetic,
    error,
    library,
    normal,
)
from tests.kernels.recurrent import Rows, accepted, passes
from tests.kernels.slotted import LAYERS, USED, Heads, Slotted

FEW = settings(max_examples=40, deadline=None)
CHANNELS = (1, 15, 16, 17, 80, 129)
TAPS = (2, 3, 4, 8)
BUSHY = Rows.of({2: [-1, 0, 0, 1, 1, 3, 5, 0, 4, 8, 9], 0: [-1, 0, 1, 0, 3], 1: [-1]}, [4, 0, 9], [3, 1, 4])
"""Lanes with branches, one longer than the window, one with nothing committed and one of one row."""
SHAPES = st.builds(lambda n, taps: Heads(1, 1, 1, 1, n, taps), st.sampled_from(CHANNELS), st.sampled_from(TAPS))
LEVEL = st.sampled_from(LEVELS)
TEAM = st.sampled_from(THREADS)


def taken(heads: Heads, count: int, seed: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """Raw inputs [R, N] and the weight [W * N]."""
    return normal(count, heads.channels, seed=seed), normal(heads.taps * heads.channels, seed=seed + 1)


def reference(x: np.ndarray, weight: np.ndarray, tail: np.ndarray, rows: Rows, dtype: torch.dtype) -> np.ndarray:
    """A tree's outputs as the definition has them, in `dtype`."""
    given, factors, before = (torch.from_numpy(a.copy()).to(dtype) for a in (x, weight, tail))
    return kernels.conv_verify(given, factors, before, *rows.where, torch.empty_like(given), True).numpy()


@pytest.mark.parametrize("taps", TAPS)
@pytest.mark.parametrize("channels", CHANNELS)
def test_a_tree_is_the_definition(channels: int, taps: int) -> None:
    heads, count = Heads(1, 1, 1, 1, channels, taps), len(BUSHY.lane)
    slotted, (x, weight) = Slotted(heads, BUSHY), taken(heads, count)
    plain, exact = (
        reference(x, weight, slotted.tail[:, USED], BUSHY, dtype) for dtype in (torch.float32, torch.float64)
    )
    assert_accurate(slotted.convolve(x, weight, BUSHY, tree=True, threads=2), exact, error(plain, exact))
    assert_bits(slotted.raw[USED, :count], x)


@given(passes(), SHAPES, LEVEL, TEAM, st.data())
@FEW
def test_a_verify_leaves_the_tail_and_a_commit_gives_the_bits_of_extend(
    rows: Rows, heads: Heads, level: str, threads: int, data: st.DataObject
) -> None:
    """In all layers at once; and not one number elsewhere is touched."""
    count, paths = len(rows.lane), accepted(data, rows)
    extended, slotted = Slotted(heads, rows), Slotted(heads, rows)
    before = slotted.memory.copy()
    for layer in range(LAYERS):
        x, weight = taken(heads, count, seed=10 * layer)
        y = slotted.convolve(x, weight, rows, tree=True, layer=layer, path=library(level), threads=threads)
        for line in paths:
            assert_bits(extended.convolve(x[line], weight, rows.line(line), layer=layer), y[line])
    assert_bits(slotted.memory, before)
    assert np.isnan(slotted.raw[:, count:]).all() and np.isnan(slotted.k).all() and np.isnan(slotted.u).all()
    slotted.commit_conv(rows, paths, library(level), threads)
    assert_bits(slotted.memory, extended.memory)


@given(passes(tree=False), SHAPES, LEVEL, TEAM, st.data())
@FEW
def test_no_bit_depends_on_where_a_pass_ends(
    rows: Rows, heads: Heads, level: str, threads: int, data: st.DataObject
) -> None:
    """Lanes side by side in one pass, each alone in two, and as a chain whose rows are all committed."""
    together, alone, chain = (Slotted(heads, rows) for _ in range(3))
    (x, weight), everything = taken(heads, len(rows.lane)), list(range(len(rows.lane)))
    y = together.convolve(x, weight, rows, path=library(level), threads=threads)
    for lane in dict.fromkeys(rows.lane):
        mine = [row for row in everything if rows.lane[row] == lane]
        cut = data.draw(st.integers(1, len(mine)))
        assert_bits(alone.convolve(x[mine[:cut]], weight, rows.line(mine[:cut])), y[mine[:cut]])
        if rest := mine[cut:]:
            starts = [start + cut * (i == lane) for i, start in enumerate(rows.starts)]
            later = Rows.of({lane: list(range(-1, len(rest) - 1))}, starts, rows.slots)
            assert_bits(alone.convolve(x[rest], weight, later), y[rest])
    assert_bits(alone.memory, together.memory)
    assert_bits(chain.convolve(x, weight, rows, tree=False, path=library(level), threads=threads), y)
    chain.commit_conv(rows, [everything], library(level), threads)
    assert_bits(chain.tail[:, USED], together.tail[:, USED])


def test_without_tree_only_the_sign_of_a_parent_counts() -> None:
    rows, heads = Rows.of({0: [-1, 0, 1], 1: [-1, 0]}, [3, 4], [2, 0]), Heads(1, 1, 1, 1, 20)
    slotted, (x, weight) = Slotted(heads, rows), taken(heads, 5)
    wanted = slotted.convolve(x, weight, rows, tree=True)
    rows.parent[2], rows.parent[4] = 0, 1
    assert_bits(slotted.convolve(x, weight, rows, tree=False), wanted)
    assert_bits(slotted.convolve(x, weight, rows), wanted)


@pytest.mark.parametrize(("channels", "taps"), ((80, 4), (33, 3)))
def test_one_arithmetic(channels: int, taps: int) -> None:
    """Lanes of one row each: what a row gives, and the tail behind it."""
    heads = Heads(1, 1, 1, 1, channels, taps)
    (x, weight), tails = taken(heads, ROWS), normal(ROWS, *heads.tail, seed=9)

    def rows_of(ids: Sequence[int], path: Path, threads: int) -> np.ndarray:
        count = len(ids)
        rows = Rows.of({lane: [-1] for lane in range(count)}, [7 for _ in ids], list(range(count))[::-1])
        slotted = Slotted(heads, rows, slots=count)
        slotted.tail[rows.slots, USED] = tails[ids]
        y = slotted.convolve(x[ids], weight, rows, path=path, threads=threads)
        return np.concatenate((y, slotted.tail[rows.slots, USED].reshape(count, -1)), axis=1)

    assert_one_arithmetic(rows_of)


@pytest.mark.parametrize("row", (0, 3, 7))
def test_a_bad_row_shows_in_its_nearest_descendants_alone(row: int) -> None:
    heads, count = Heads(1, 1, 1, 1, 20), len(BUSHY.lane)
    slotted, (x, weight) = Slotted(heads, BUSHY), taken(heads, count)
    clean = slotted.convolve(x, weight, BUSHY, tree=True)
    x[row, 7] = np.nan
    found = slotted.convolve(x, weight, BUSHY, tree=True)
    bad = np.zeros(found.shape, bool)
    bad[[at for at in range(count) if row in BUSHY.path(at)[-heads.taps :]], 7] = True
    assert np.isnan(found[bad]).all()
    assert_bits(found[~bad], clean[~bad])


def test_no_rows_and_no_moves_touch_nothing() -> None:
    rows, heads = Rows.of({}, [1], [0]), Heads(1, 1, 1, 1, 20)
    slotted, (x, weight) = Slotted(heads, rows), taken(heads, 0)
    memory, factors = slotted.memory.copy(), slotted.factors.copy()
    assert slotted.convolve(x, weight, rows, threads=3).size == slotted.convolve(x, weight, rows, tree=True).size == 0
    slotted.commit_conv(rows, [], threads=3)
    assert_bits(slotted.memory, memory)
    assert_bits(slotted.factors, factors)
