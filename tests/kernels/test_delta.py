"""The gated delta rule: against float64, and bit for bit in every way that rows may come, on any team and machine."""

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
from tests.kernels.slotted import LAYERS, USED, Heads, Inputs, Slotted

FEW = settings(max_examples=40, deadline=None)
SHAPES = (
    Heads(1, 1, 1, 1),
    Heads(1, 3, 5, 2),
    Heads(2, 4, 16, 16),
    Heads(1, 2, 20, 33),
    Heads(2, 2, 7, 48),
    Heads(2, 6, 33, 24),
    Heads(1, 2, 64, 128),
)
BUSHY = Rows.of({2: [-1, 0, 0, 1, 1, 2, 2, 0, 4, 8], 0: [-1, 0, 1, 0, 3], 1: [-1]}, [4, 0, 9], [3, 1, 4])
"""Lanes with branches that go on late, one with nothing committed and one of one row."""
LEVEL = st.sampled_from(LEVELS)
TEAM = st.sampled_from(THREADS)


def reference(inputs: Inputs, state: np.ndarray, rows: Rows, dtype: torch.dtype) -> tuple[np.ndarray, ...]:
    """(o, k, u) of a tree and the state of every slot as its definition has them, in `dtype`."""
    factors = tuple(torch.full((len(x), *x.shape[1:]), torch.nan, dtype=dtype) for x in inputs.tensors(dtype)[1:4])
    before = torch.from_numpy(state.copy()).to(dtype)
    o = kernels.delta_verify(*inputs.tensors(dtype), before, *rows.where, *factors, True)
    return tuple(x.numpy() for x in (o, *factors[:2]))


@pytest.mark.parametrize("heads", SHAPES)
def test_a_tree_is_the_definition(heads: Heads) -> None:
    slotted, inputs = Slotted(heads, BUSHY), Inputs.random(heads, len(BUSHY.lane))
    plain, exact = (reference(inputs, slotted.state[:, USED], BUSHY, t) for t in (torch.float32, torch.float64))
    count = len(inputs.v)
    found = (slotted.recur(inputs, BUSHY, tree=True), slotted.k[USED, :count], slotted.u[USED, :count])
    for ours, theirs, wanted in zip(found, plain, exact, strict=True):
        assert_accurate(ours, wanted, error(theirs, wanted))


@pytest.mark.parametrize("heads", (Heads(1, 2, 20, 33), Heads(2, 4, 128, 128)))
def test_a_long_text_is_the_definition(heads: Heads) -> None:
    rows = Rows.of({0: list(range(-1, 99))}, [0], [1])
    slotted, inputs = Slotted(heads, rows), Inputs.random(heads, 100)
    outcomes = []
    for dtype in (torch.float32, torch.float64):
        state = torch.zeros(2, *heads.state, dtype=dtype)
        o = kernels.delta_rule(*inputs.tensors(dtype), state, *rows.where)
        outcomes.append((o.numpy(), state[1].numpy()))
    found = slotted.recur(inputs, rows), slotted.state[1, USED]
    for ours, theirs, wanted in zip(found, *outcomes, strict=True):
        assert_accurate(ours, wanted, error(theirs, wanted))


@given(passes(), st.sampled_from(SHAPES), LEVEL, TEAM, st.data())
@FEW
def test_a_verify_leaves_the_state_and_a_commit_gives_the_bits_of_extend(
    rows: Rows, heads: Heads, level: str, threads: int, data: st.DataObject
) -> None:
    """In all layers at once; and not one number elsewhere is touched."""
    count, paths = len(rows.lane), accepted(data, rows)
    extended, slotted = Slotted(heads, rows), Slotted(heads, rows)
    before = slotted.memory.copy()
    inputs = [Inputs.random(heads, count, seed=10 * layer) for layer in range(LAYERS)]
    for layer in range(LAYERS):
        o = slotted.recur(inputs[layer], rows, tree=True, layer=layer, path=library(level), threads=threads)
        for line in paths:
            assert_bits(extended.recur(inputs[layer].of(line), rows.line(line), layer=layer), o[line])
        assert_bits(slotted.decay[layer, :count], inputs[layer].decay)
    assert_bits(slotted.memory, before)
    assert all(np.isnan(x[:, count:]).all() for x in (slotted.k, slotted.u, slotted.decay, slotted.raw))
    slotted.commit_state(rows, paths, library(level), threads)
    assert_bits(slotted.memory, extended.memory)


@given(passes(tree=False), st.sampled_from(SHAPES), LEVEL, TEAM, st.data())
@FEW
def test_no_bit_depends_on_where_a_pass_ends(
    rows: Rows, heads: Heads, level: str, threads: int, data: st.DataObject
) -> None:
    """Lanes side by side in one pass, each alone in two, and as a chain whose rows are all committed."""
    together, alone, chain = (Slotted(heads, rows) for _ in range(3))
    inputs, everything = Inputs.random(heads, len(rows.lane)), list(range(len(rows.lane)))
    o = together.recur(inputs, rows, path=library(level), threads=threads)
    for lane in dict.fromkeys(rows.lane):
        mine = [row for row in everything if rows.lane[row] == lane]
        cut = data.draw(st.integers(1, len(mine)))
        assert_bits(alone.recur(inputs.of(mine[:cut]), rows.line(mine[:cut])), o[mine[:cut]])
        if rest := mine[cut:]:
            starts = [start + cut * (i == lane) for i, start in enumerate(rows.starts)]
            later = Rows.of({lane: list(range(-1, len(rest) - 1))}, starts, rows.slots)
            assert_bits(alone.recur(inputs.of(rest), later), o[rest])
    assert_bits(alone.memory, together.memory)
    assert_bits(chain.recur(inputs, rows, tree=False, path=library(level), threads=threads), o)
    chain.factors[[layer for layer in range(LAYERS) if layer != USED]] = 0
    chain.commit_state(rows, [everything], library(level), threads)
    assert_bits(chain.state[:, USED], together.state[:, USED])


def test_without_tree_only_the_sign_of_a_parent_counts() -> None:
    rows, heads = Rows.of({0: [-1, 0, 1], 1: [-1, 0]}, [3, 4], [2, 0]), SHAPES[3]
    slotted, inputs = Slotted(heads, rows), Inputs.random(heads, 5)
    wanted = slotted.recur(inputs, rows, tree=True)
    rows.parent[2], rows.parent[4] = 0, 1
    assert_bits(slotted.recur(inputs, rows, tree=False), wanted)
    assert_bits(slotted.recur(inputs, rows), wanted)


@pytest.mark.parametrize("heads", SHAPES)
def test_factors_have_the_same_bits_on_every_team_and_machine(heads: Heads) -> None:
    inputs, wanted = Inputs.random(heads, len(BUSHY.lane)), None
    for level in LEVELS:
        for threads in THREADS:
            slotted = Slotted(heads, BUSHY)
            o = slotted.recur(inputs, BUSHY, tree=True, path=library(level), threads=threads)
            found = np.concatenate((o, slotted.factors), axis=None)
            wanted = found if wanted is None else wanted
            assert_bits(found, wanted, (level, threads))


@pytest.mark.parametrize("heads", (Heads(1, 3, 20, 33), Heads(2, 2, 16, 64)))
def test_one_arithmetic(heads: Heads) -> None:
    """Lanes of one row each: what a row reads, and the state behind it."""
    inputs = Inputs.random(heads, ROWS)
    states = normal(ROWS, *heads.state, seed=9)

    def rows_of(ids: Sequence[int], path: Path, threads: int) -> np.ndarray:
        count = len(ids)
        rows = Rows.of({lane: [-1] for lane in range(count)}, [1 + i % 3 for i in ids], list(range(count))[::-1])
        slotted = Slotted(heads, rows, slots=count)
        slotted.state[rows.slots, USED] = states[ids]
        o = slotted.recur(inputs.of(list(ids)), rows, path=path, threads=threads)
        return np.concatenate([x.reshape(count, -1) for x in (o, slotted.state[rows.slots, USED])], axis=1)

    assert_one_arithmetic(rows_of)


@pytest.mark.parametrize("name", ("q", "k", "v", "decay", "beta"))
def test_a_bad_row_shows_in_what_follows_it_and_nowhere_else(name: str) -> None:
    heads, count = SHAPES[3], len(BUSHY.lane)
    slotted, inputs = Slotted(heads, BUSHY), Inputs.random(heads, count)
    clean = slotted.recur(inputs, BUSHY, tree=True)
    inputs.named()[name][4] = np.nan
    found = slotted.recur(inputs, BUSHY, tree=True)
    # A query asks for its own row alone.
    bad = [4 in (BUSHY.path(row)[-1:] if name == "q" else BUSHY.path(row)) for row in range(count)]
    assert np.isnan(found[bad]).all()
    assert_bits(found[np.logical_not(bad)], clean[np.logical_not(bad)])


def test_no_rows_and_no_moves_touch_nothing() -> None:
    rows = Rows.of({}, [1], [0])
    slotted = Slotted(SHAPES[3], rows)
    memory, factors, none = slotted.memory.copy(), slotted.factors.copy(), Inputs.random(SHAPES[3], 0)
    assert slotted.recur(none, rows, threads=3).size == slotted.recur(none, rows, tree=True).size == 0
    slotted.commit_state(rows, [], threads=3)
    assert_bits(slotted.memory, memory)
    assert_bits(slotted.factors, factors)
