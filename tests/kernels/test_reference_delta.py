"""The gated delta rule against its closed form in numpy float64, and every way to run rows bit by bit."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tandem import kernels
from tests.kernels.recurrent import Rows, accepted, normal, passes

SLOTS = 5
FEW = settings(max_examples=30, deadline=None)
HEADS = st.sampled_from(((1, 1, 3, 2), (1, 3, 4, 5), (2, 4, 5, 3), (2, 2, 2, 6)))
"""Key heads, value heads, and their widths."""
FLOATS = (torch.float32, torch.float64)


class Layer:
    """Random inputs of a pass and states; NaN in the slots of lanes with nothing committed."""

    def __init__(self, rows: Rows, heads: tuple[int, int, int, int], dtype: torch.dtype = torch.float64) -> None:
        key_heads, value_heads, dk, dv = heads
        count, self.rows, self.heads = len(rows.lane), rows, heads
        self.q, self.k = normal(1, count, key_heads, dk, dtype=dtype), normal(2, count, key_heads, dk, dtype=dtype)
        self.v = normal(3, count, value_heads, dv, dtype=dtype)
        self.g = -normal(4, count, value_heads).abs()  # gates in logarithms, which the operator never sees
        self.decay = self.g.exp().to(dtype)
        self.beta = torch.sigmoid(normal(5, count, value_heads, dtype=dtype))
        self.state = normal(6, SLOTS, value_heads, dk, dv, dtype=dtype)
        for slot, start in zip(rows.slots, rows.starts, strict=True):
            if start == 0:
                self.state[slot] = torch.nan
        self.factors = tuple(
            torch.full((40, *x.shape[1:]), torch.nan, dtype=dtype) for x in (self.k, self.v, self.decay)
        )

    def taken(self, chosen: list[int]) -> tuple[Tensor, ...]:
        return tuple(x[chosen] for x in (self.q, self.k, self.v, self.decay, self.beta))

    def extend(self, state: Tensor, rows: Rows, chosen: list[int]) -> Tensor:
        return kernels.delta_rule(*self.taken(chosen), state, *rows.where)

    def verify(self, *, tree: bool) -> Tensor:
        everything = self.taken(list(range(len(self.q))))
        return kernels.delta_verify(*everything, self.state, *self.rows.where, *self.factors, tree)

    def commit(self, paths: list[list[int]]) -> None:
        kernels.delta_commit(*self.factors, self.state, *self.rows.moves(paths))

    def entry(self, lane: int, head: int) -> np.ndarray:
        """The committed state of a lane."""
        state = self.state[self.rows.slots[lane], head].double().numpy()
        return state if self.rows.starts[lane] else np.zeros_like(state)

    def unit(self, x: Tensor, head: int) -> np.ndarray:
        """[R, dk] of length one, of the key head that a value head reads."""
        key = x[:, head // (self.heads[1] // self.heads[0])].double().numpy()
        return key / np.sqrt((key**2).sum(-1, keepdims=True) + 1e-6)

    def closed_form(self, path: list[int], head: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(o of the last row, u of every row, the state behind), by one solve over the whole path and no recurrence."""
        k, v = self.unit(self.k, head)[path], self.v[:, head].double().numpy()[path]
        q = self.unit(self.q, head)[path[-1]] / math.sqrt(k.shape[1])
        gc = np.cumsum(self.g[:, head].numpy()[path])
        beta = self.beta[:, head].double().numpy()[path, None]
        ratio = np.exp(np.tril(gc[:, None] - gc[None])) * np.tri(len(path))
        lower = beta * (k @ k.T) * ratio * np.tri(len(path), k=-1)
        entry = self.entry(self.rows.lane[path[0]], head)
        right = beta * v - beta * np.exp(gc)[:, None] * (k @ entry)
        u = np.linalg.solve(np.eye(len(path)) + lower, right)
        state = np.exp(gc[-1]) * entry + (np.exp(gc[-1] - gc)[:, None] * k).T @ u
        return state.T @ q, u, state


def equal(found: Tensor, wanted: Tensor) -> None:
    """Bit for bit, NaN where nobody may have looked."""
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


@given(passes(), HEADS, st.data())
@FEW
def test_tree_and_commit_are_the_closed_form(rows: Rows, heads: tuple[int, int, int, int], data: st.DataObject) -> None:
    layer = Layer(rows, heads)
    before = layer.state.clone()
    found = layer.verify(tree=True)
    equal(layer.state, before)
    for row in range(len(rows.lane)):
        for head in range(heads[1]):
            o, u, _ = layer.closed_form(rows.path(row), head)
            np.testing.assert_allclose(found[row, head], o, rtol=1e-9, atol=1e-11)
            np.testing.assert_allclose(layer.factors[1][row, head], u[-1], rtol=1e-9, atol=1e-11)
    chosen = accepted(data, rows)
    wanted = [[layer.closed_form(path, head)[2] for head in range(heads[1])] for path in chosen]
    layer.commit(chosen)
    for path, states in zip(chosen, wanted, strict=True):
        slot = rows.slots[rows.lane[path[0]]]
        np.testing.assert_allclose(layer.state[slot], np.array(states), rtol=1e-9, atol=1e-11)
        before[slot] = layer.state[slot]
    equal(layer.state, before)  # nobody else's slot was touched


@given(passes(), HEADS, st.data())
@FEW
def test_a_commit_gives_the_bits_of_extend(rows: Rows, heads: tuple[int, int, int, int], data: st.DataObject) -> None:
    layer = Layer(rows, heads, torch.float32)
    wanted, found = layer.state.clone(), layer.verify(tree=True)
    chosen = accepted(data, rows)
    layer.commit(chosen)
    for path in chosen:
        equal(layer.extend(wanted, rows.line(path), path), found[path])
    equal(layer.state, wanted)


@given(passes(tree=False), HEADS, st.data())
@FEW
def test_no_bit_depends_on_where_a_pass_ends(rows: Rows, heads: tuple[int, int, int, int], data: st.DataObject) -> None:
    """Lanes side by side in one pass, each alone in two, and as a chain: the same outputs and the same states."""
    layer = Layer(rows, heads, torch.float32)
    alone, together = layer.state.clone(), layer.state.clone()
    everything = list(range(len(rows.lane)))
    o = layer.extend(together, rows, everything)
    for lane in dict.fromkeys(rows.lane):
        mine = [row for row in everything if rows.lane[row] == lane]
        cut = data.draw(st.integers(1, len(mine)))
        equal(layer.extend(alone, rows.line(mine[:cut]), mine[:cut]), o[mine[:cut]])
        if rest := mine[cut:]:
            starts = [start + cut * (i == lane) for i, start in enumerate(rows.starts)]
            later = Rows.of({lane: list(range(-1, len(rest) - 1))}, starts, rows.slots)
            equal(layer.extend(alone, later, rest), o[rest])
    equal(alone, together)
    equal(layer.verify(tree=False), o)
    layer.commit([everything])
    equal(layer.state, together)


def test_without_tree_only_the_sign_of_a_parent_counts() -> None:
    rows = Rows.of({0: [-1, 0, 1], 1: [-1, 0]}, [3, 4], [2, 0])
    layer = Layer(rows, (1, 2, 3, 4))
    wanted = layer.verify(tree=True)
    rows.parent[2], rows.parent[4] = 0, 1
    equal(layer.verify(tree=False), wanted)


@pytest.mark.parametrize("dtype", FLOATS)
def test_gates(dtype: torch.dtype) -> None:
    a, b = normal(1, 6, 4, dtype=dtype) * 15, normal(2, 6, 4, dtype=dtype)
    a_log, dt_bias = normal(3, 4, dtype=dtype), normal(4, 4, dtype=dtype)
    decay, beta = kernels.delta_gates(a, b, a_log, dt_bias)
    rate = np.logaddexp(0.0, a.double().numpy() + dt_bias.double().numpy())
    wanted = np.exp(-np.exp(a_log.double().numpy()) * rate)
    assert decay.dtype == beta.dtype == dtype
    np.testing.assert_allclose(decay, wanted, rtol=1e-4 if dtype == torch.float32 else 1e-7, atol=1e-12)
    np.testing.assert_allclose(beta, 1 / (1 + np.exp(-b.double().numpy())), rtol=1e-6)
    assert bool((decay <= 1).all())


@pytest.mark.parametrize("dtype", FLOATS)
def test_gated_rms_norm_rounds_between_norm_and_gate(dtype: torch.dtype) -> None:
    x, gate, weight = normal(1, 4, 3, 10, dtype=dtype), normal(2, 4, 3, 10, dtype=dtype), normal(3, 10, dtype=dtype)
    wide, z = x.double().numpy(), gate.double().numpy()
    normed = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * weight.double().numpy()
    tolerance = 2e-6 if dtype == torch.float32 else 1e-14
    found = kernels.gated_rms_norm(x, gate, weight, 1e-5, False)
    np.testing.assert_allclose(found, normed * z / (1 + np.exp(-z)), rtol=tolerance, atol=tolerance)
    rounded = kernels.rms_norm(x, weight, 1e-5).bfloat16().double().numpy() * z / (1 + np.exp(-z))
    found = kernels.gated_rms_norm(x, gate, weight, 1e-5, True)
    np.testing.assert_allclose(found, rounded, rtol=tolerance, atol=tolerance)
    assert found.dtype == dtype


@pytest.mark.parametrize("dtype", FLOATS)
def test_sigmoid_gate(dtype: torch.dtype) -> None:
    x, gate = normal(1, 4, 7, dtype=dtype), normal(2, 4, 7, dtype=dtype)
    found = kernels.sigmoid_gate(x, gate)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, x.double().numpy() / (1 + np.exp(-gate.double().numpy())), rtol=2e-6)
