"""Recurrent layers on the GPU: right to the definitions in float64, and the bits of one-row steps in every kind."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
import torch
from torch import Tensor

from tandem import kernels
from tests.gpu.launching import launch
from tests.kernels.cuda import recurring, test_gate
from tests.kernels.cuda.recurring import LAYERS, Case, Memory, Sizes, commit
from tests.kernels.cuda.test_delta import bucket_of, defined
from tests.kernels.recurrent import Rows, normal

SIZES = (Sizes(2, 6, 128, 128), Sizes(2, 4, 32, 32), Sizes(1, 3, 40, 20, 3), Sizes(1, 1, 256, 64))
TREE = (-1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 6, 10, 11, 4, 13, 14, 13, 2, 17, 18, 2, 0, 21, 22, 21, 0, 25, 0, 27, 28, 29, 27)
DTYPES = (torch.float32, torch.bfloat16)


@pytest.fixture(autouse=True)
def _on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The passes of the interpreter's tests, on the GPU."""

    def compiled(module: str) -> ModuleType:
        return importlib.import_module(f"tandem.kernels.cuda.{module}")

    for module in (recurring, test_gate):
        monkeypatch.setattr(module, "interpreted", compiled)
        monkeypatch.setattr(module, "run", launch)


def equal(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


def assert_near(found: Tensor, wanted: Tensor, most: float) -> None:
    """Relative error over all that is no poison."""
    real = ~wanted.isnan()
    found, wanted = found[real].double(), wanted[real].double()
    assert ((found - wanted).norm() / wanted.norm()).item() < most


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("kind", ["extend", "chain", "tree"])
def test_a_pass_is_the_definitions_and_a_commit_too(sizes: Sizes, kind: str) -> None:
    trees = {0: list(TREE[:20]), 2: list(TREE[:12])} if kind == "tree" else {0: [*range(-1, 19)], 2: [*range(-1, 11)]}
    rows = Rows.of(trees, [3, 0, 0], [4, 1, 2])
    case, memory = Case(sizes, rows), Memory(sizes, rows)
    wanted = memory.copy()
    assert_near(case.run(memory, kind, 32), defined(case, wanted, kind), 2e-5)
    for name in ("state", "k", "u", "decay", "raw", "tail"):
        if not getattr(wanted, name).isnan().all():
            assert_near(getattr(memory, name), getattr(wanted, name), 2e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_every_row_of_a_tree_has_the_bits_of_steps(sizes: Sizes, dtype: torch.dtype) -> None:
    """And the tree committed leaves what those steps leave, in both layers."""
    rows = Rows.of({1: list(TREE)}, [0, 5, 0], [4, 1, 2])
    cases, memory = [Case(sizes, rows, seed) for seed in range(0, 10 * LAYERS, 10)], Memory(sizes, rows, dtype)
    fresh = memory.copy()
    found = [case.run(memory, "tree", 32, layer=layer) for layer, case in enumerate(cases)]
    for leaf in sorted(set(range(32)) - set(TREE)):
        path, alone, committed = rows.path(leaf), fresh.copy(), memory.copy()
        for layer, case in enumerate(cases):
            for depth, row in enumerate(path):
                step = Rows.of({1: [-1]}, [0, 5 + depth, 0], rows.slots)
                equal(case.run(alone, "extend", 1, step, [row], layer)[0], found[layer][row])
        commit(committed, rows, [path])
        equal(committed.state, alone.state)
        equal(committed.tail, alone.tail)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_chunks_chains_and_steps_agree_beside_other_lanes(sizes: Sizes, dtype: torch.dtype) -> None:
    rows = Rows.of({0: [*range(-1, 13)], 2: [*range(-1, 2)], 1: [*range(-1, 14)]}, [0, 5, 9], [4, 1, 2])
    case, chunk = Case(sizes, rows), Memory(sizes, rows, dtype)
    fresh = chunk.copy()
    o = case.run(chunk, "extend", 256)
    for kind, bucket in (("extend", 64), ("extend", 32), ("chain", 32), ("tree", 32)):
        other = fresh.copy()
        equal(case.run(other, kind, bucket), o)
        if kind != "extend":
            commit(other, rows, [list(range(len(rows.lane)))])
        equal(other.state[:, 1], chunk.state[:, 1])
        equal(other.tail[:, 1], chunk.tail[:, 1])
    for lane in (0, 2, 1):
        mine = [row for row, at in enumerate(rows.lane) if at == lane]
        for first, behind in ((0, 1), (1, 3), (3, len(mine))):
            part = mine[first:behind]
            if part:
                starts = [start + first * (i == lane) for i, start in enumerate(rows.starts)]
                later = Rows.of({lane: list(range(-1, len(part) - 1))}, starts, rows.slots)
                equal(case.run(fresh, "extend", bucket_of(len(part)), later, part), o[part])
    equal(fresh.state[:, 1], chunk.state[:, 1])
    equal(fresh.tail[:, 1], chunk.tail[:, 1])


def test_a_long_prompt_has_the_bits_of_its_parts() -> None:
    sizes, count = SIZES[0], 2048
    rows = Rows.of({0: [*range(-1, count - 1)]}, [0, 0, 0], [3, 1, 2])
    case, whole, parts = Case(sizes, rows), Memory(sizes, rows), Memory(sizes, rows)
    o = case.run(whole, "extend", count)
    first = 0
    for size, bucket in ((700, 1024), (1, 1), (31, 32), (1000, 1024), (316, 512)):
        chosen = list(range(first, first + size))
        later = Rows.of({0: list(range(-1, size - 1))}, [first, 0, 0], rows.slots)
        equal(case.run(parts, "extend", bucket, later, chosen), o[chosen])
        first += size
    assert first == count
    equal(parts.state[3, 1], whole.state[3, 1])
    equal(parts.tail[3, 1], whole.tail[3, 1])


def test_an_input_counts_as_the_tail_keeps_it() -> None:
    sizes = Sizes(1, 1, 32, 32)
    rows = Rows.of({0: [-1, 0, 1, 2]}, [2, 0, 0], [0, 1, 2])
    case = Case(sizes, rows)
    case.x = normal(50, 4, sizes.channels, dtype=torch.float32)
    memory, kept = Memory(sizes, rows, torch.bfloat16), Memory(sizes, rows, torch.bfloat16)
    o = case.run(memory, "extend", 4)
    equal(memory.tail[0, 1], case.x[1:].bfloat16())
    case.x = case.x.bfloat16().float()
    equal(case.run(kept, "extend", 4), o)


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize(("heads", "width"), [(48, 128), (4, 32), (3, 20)])
def test_a_gated_norm_is_the_definition_in_every_bucket(heads: int, width: int, rounded: bool) -> None:
    x, gate = normal(1, 32, heads, width, dtype=torch.float32), normal(2, 32, heads, width, dtype=torch.float32)
    weight = normal(3, width, dtype=torch.float32)
    found = test_gate.gated(x, gate, weight, rounded, 32, torch.bfloat16)
    wanted = kernels.gated_rms_norm(x, gate, weight, test_gate.EPS, rounded)
    torch.testing.assert_close(found.float(), wanted, rtol=2**-6, atol=1e-5)
    for bucket in (1, 4, 16):
        equal(test_gate.gated(x[:bucket], gate[:bucket], weight, rounded, bucket, torch.bfloat16), found[:bucket])
    equal(test_gate.gated(x, gate, weight, rounded, 2048, torch.bfloat16), found)
