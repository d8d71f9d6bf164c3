"""The CUDA recurrence with its inputs: right to the definitions, and one set of bits however rows are run."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tandem import kernels
from tests.kernels.cuda.recurring import Case, Memory, Sizes, commit
from tests.kernels.recurrent import Rows, passes

FEW = settings(max_examples=4, deadline=None)
SIZES = st.sampled_from((Sizes(1, 1, 8, 3), Sizes(1, 3, 5, 20, 2), Sizes(2, 4, 12, 8, 3), Sizes(2, 2, 16, 33)))
BUCKETS = (1, 2, 4, 8, 16, 24, 32)


def bucket_of(count: int) -> int:
    return next(bucket for bucket in BUCKETS if bucket >= count)


def equal(found: Tensor, wanted: Tensor) -> None:
    """Bit for bit, NaN where nobody may have looked."""
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found.double(), wanted.double(), rtol=2e-4, atol=2e-5, equal_nan=True)


def defined(case: Case, memory: Memory, kind: str, dtype: torch.dtype = torch.float64) -> Tensor:
    """o by the operators' definitions, in layer 1 of `memory`, whose tensors are moved on or filled alike."""
    s, count, rows = case.sizes, len(case.x), case.rows
    x, weight, a, b, a_log, dt_bias = (
        t.to(dtype) for t in (case.x, case.weight, case.a, case.b, case.a_log, case.dt_bias)
    )
    tail, state = memory.tail[:, 1].to(dtype), memory.state[:, 1].to(dtype)
    decay, beta = kernels.delta_gates(a, b, a_log, dt_bias)
    raw = torch.full((count, s.channels), torch.nan, dtype=dtype)
    if kind == "extend":
        y = kernels.causal_conv(x, weight, tail, *rows.where)
    else:
        y = kernels.conv_verify(x, weight, tail, *rows.where, raw, kind == "tree")
    q, k, v = y.split((s.key_heads * s.dk, s.key_heads * s.dk, s.heads * s.dv), 1)
    q, k, v = q.unflatten(1, (-1, s.dk)), k.unflatten(1, (-1, s.dk)), v.unflatten(1, (-1, s.dv))
    if kind == "extend":
        o = kernels.delta_rule(q, k, v, decay, beta, state, *rows.where)
        memory.tail[:, 1], memory.state[:, 1] = tail.to(memory.tail.dtype), state.float()
        return o
    factors = tuple(torch.full(t.shape, torch.nan, dtype=dtype) for t in (k, v, decay))
    o = kernels.delta_verify(q, k, v, decay, beta, state, *rows.where, *factors, kind == "tree")
    for name, made in zip(("raw", "k", "u", "decay"), (raw, *factors), strict=True):
        kept = getattr(memory, name)
        kept[1, :count] = made.to(kept.dtype)
    return o


def assert_alike(found: Memory, wanted: Memory) -> None:
    for name in ("state", "raw", "k", "u", "decay"):
        close(getattr(found, name), getattr(wanted, name))
    equal(found.tail, wanted.tail)


@given(passes(tree=False, most=5), SIZES)
@FEW
def test_rows_that_stay_are_the_definitions(rows: Rows, sizes: Sizes) -> None:
    case, memory = Case(sizes, rows), Memory(sizes, rows)
    wanted = memory.copy()
    o = case.run(memory, "extend", bucket_of(len(rows.lane)))
    close(o, defined(case, wanted, "extend"))
    assert_alike(memory, wanted)


@given(passes(most=6), SIZES)
@FEW
def test_a_tree_is_the_definitions_and_leaves_states(rows: Rows, sizes: Sizes) -> None:
    case, memory = Case(sizes, rows), Memory(sizes, rows)
    wanted = memory.copy()
    o = case.run(memory, "tree", bucket_of(len(rows.lane)))
    close(o, defined(case, wanted, "tree"))
    assert_alike(memory, wanted)
    equal(memory.state, wanted.state)


@given(passes(most=6), SIZES, st.sampled_from((torch.float32, torch.bfloat16)), st.data())
@FEW
def test_a_commit_gives_the_bits_of_rows_that_stay(
    rows: Rows, sizes: Sizes, dtype: torch.dtype, data: st.DataObject
) -> None:
    """Trees of several lanes at once; each accepted path alone, in another bucket."""
    memory = Memory(sizes, rows, dtype)
    wanted, cases = memory.copy(), [Case(sizes, rows, seed) for seed in (0, 10)]
    found = [case.run(memory, "tree", 32, layer=layer) for layer, case in enumerate(cases)]
    ends = [[row for row, at in enumerate(rows.lane) if at == lane] for lane in dict.fromkeys(rows.lane)]
    paths = [rows.path(data.draw(st.sampled_from(end))) for end in ends]
    commit(memory, rows, paths)
    for path in paths:
        for layer, case in enumerate(cases):
            o = case.run(wanted, "extend", bucket_of(len(path)), rows.line(path), path, layer)
            equal(o, found[layer][path])
    equal(memory.state, wanted.state)
    equal(memory.tail, wanted.tail)


@given(passes(tree=False, most=5), SIZES, st.data())
@FEW
def test_no_bit_depends_on_how_rows_are_run(rows: Rows, sizes: Sizes, data: st.DataObject) -> None:
    """A chunk of all lanes, a chain, and every lane alone in two passes of another bucket each."""
    case, count = Case(sizes, rows), len(rows.lane)
    chunk, parts, chain = Memory(sizes, rows), Memory(sizes, rows), Memory(sizes, rows)
    o = case.run(chunk, "extend", 64)
    equal(case.run(chain, "chain", 32), o)
    equal(case.run(chain, "tree", bucket_of(count)), o)
    for lane in dict.fromkeys(rows.lane):
        mine = [row for row, at in enumerate(rows.lane) if at == lane]
        cut = data.draw(st.integers(1, len(mine)))
        equal(case.run(parts, "extend", bucket_of(cut), rows.line(mine[:cut]), mine[:cut]), o[mine[:cut]])
        if rest := mine[cut:]:
            starts = [start + cut * (i == lane) for i, start in enumerate(rows.starts)]
            later = Rows.of({lane: list(range(-1, len(rest) - 1))}, starts, rows.slots)
            equal(case.run(parts, "extend", bucket_of(len(rest)), later, rest), o[rest])
    equal(parts.state[:, 1], chunk.state[:, 1])
    equal(parts.tail[:, 1], chunk.tail[:, 1])
    commit(chain, rows, [list(range(count))])
    equal(chain.state[:, 1], chunk.state[:, 1])
    equal(chain.tail[:, 1], chunk.tail[:, 1])


def test_a_branch_begins_at_its_parent_in_a_tree_of_32_rows() -> None:
    """Deep, bushy, and with parents that are no ancestors of the row before."""
    parents = [-1, *range(10), 3, 11, 3, 0, 14, 14, 9, 17, 5, 12, 20, 2, 22, 8, 24, 25, 26, 0, 1, 28, 30]
    sizes = Sizes(1, 1, 8, 2)
    rows = Rows.of({0: parents}, [4, 0, 0], [2, 0, 1])
    assert len(parents) == 32
    case, memory = Case(sizes, rows), Memory(sizes, rows)
    alone = memory.copy()
    o = case.run(memory, "tree", 32)
    for row in sorted(set(range(32)) - set(parents)):
        path = rows.path(row)
        equal(case.run(alone.copy(), "extend", bucket_of(len(path)), rows.line(path), path), o[path])


def test_wide_heads_are_the_definitions() -> None:
    rows = Rows.of({1: [-1, 0, 0]}, [0, 5, 0], [2, 0, 1])
    for sizes in (Sizes(1, 1, 128, 8), Sizes(1, 1, 200, 3)):
        case, memory = Case(sizes, rows), Memory(sizes, rows)
        wanted = memory.copy()
        close(case.run(memory, "tree", 4), defined(case, wanted, "tree"))
        commit(memory, rows, [[0, 2]])
        alone = Memory(sizes, rows)
        case.run(alone, "extend", 2, rows.line([0, 2]), [0, 2])
        equal(memory.state[0, 1], alone.state[0, 1])


@pytest.mark.parametrize("rows", BUCKETS)
def test_a_pass_without_rows_does_nothing(rows: int) -> None:
    sizes, none = Sizes(1, 2, 8, 4), Rows([], [], [], [0, 3, 0], [2, 0, 1])
    case, memory = Case(sizes, none), Memory(sizes, none)
    before = memory.copy()
    for kind in ("extend", "tree"):
        assert case.run(memory, kind, rows).shape[0] == 0
    equal(memory.state, before.state)
    equal(memory.tail, before.tail)
