"""Draft blocks on the GPU: right to the definitions in float64, alike beside any lanes, and how long they take.

`pytest -s` shows the times; docs/measurements.md keeps those of a quiet device.
"""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
import torch

from bench.gpu import block_times
from tests.gpu.launching import launch
from tests.kernels.cuda import drafting
from tests.kernels.cuda.drafting import (
    Blocks,
    Slots,
    attend_block,
    attention_defined,
    block_cache,
    convolution_defined,
    convolve,
    normal,
)
from tests.kernels.cuda.test_lattice import walked

BF16 = torch.bfloat16
SHAPES = (
    (32, 8, 128, 16, BF16), (4, 2, 64, 16, BF16), (9, 3, 64, 8, BF16), (24, 4, 256, 4, BF16),
    (6, 1, 80, 5, torch.float32),
)  # fmt: skip
"""Query heads, kv heads, head_dim, rows of a block, what the cache holds."""
TOLERANCE = {torch.float32: 1e-5, BF16: 1e-2}
WINDOW, CONTEXT = 2048, 8192


@pytest.fixture(autouse=True)
def _on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The passes of the interpreter's tests, on the GPU."""

    def compiled(module: str) -> ModuleType:
        return importlib.import_module(f"tandem.kernels.cuda.{module}")

    monkeypatch.setattr(drafting, "interpreted", compiled)
    monkeypatch.setattr(drafting, "run", launch)


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "size", "dtype"), SHAPES)
def test_attention_is_the_definition_and_alike_in_any_company(
    heads: int, kv_heads: int, head_dim: int, size: int, dtype: torch.dtype
) -> None:
    anchors = [(0, 2900), (1, 0), (2, 63), (3, 2047)]
    sizes = size, WINDOW, kv_heads, head_dim, dtype
    cache, blocks = block_cache(anchors, *sizes), Blocks.of(anchors, size)
    q = normal(len(blocks.lane), heads, head_dim)
    found = attend_block(cache, q, blocks, WINDOW, bucket=8 * size, context=CONTEXT)
    some = [*range(0, len(q), 3)]
    wanted = attention_defined(cache, q[some], blocks.of_rows(some), WINDOW)
    error = (found[some].double() - wanted).flatten(1).norm(dim=1) / wanted.flatten(1).norm(dim=1)
    assert error.max() < TOLERANCE[dtype]
    for lane, at in anchors:  # the first in a bucket and a class of its own
        mine, alone = slice(lane * size, (lane + 1) * size), block_cache([(lane, at)], *sizes, seed=3)
        bucket, context = (size, at + size) if lane == 0 else (8 * size, CONTEXT)
        own = attend_block(alone, q[mine], blocks.of_rows(mine), WINDOW, bucket=bucket, context=context)
        assert torch.equal(own, found[mine]), f"lane {lane}"
    backwards = [*range(len(q) - 1, -1, -1)]
    turned = attend_block(cache, q[backwards], blocks.of_rows(backwards), WINDOW, bucket=8 * size, context=CONTEXT)
    assert torch.equal(turned, found[backwards])


@pytest.mark.parametrize(("width", "group", "taps", "parts"), [(5120, 16, 2, 4), (576, 16, 2, 1), (90, 5, 3, 2)])
def test_a_convolution_is_the_definition_and_alike_in_any_company(
    width: int, group: int, taps: int, parts: int
) -> None:
    size, anchors = 16, [(lane, 100 * lane) for lane in range(8)]
    blocks, count = Blocks.of(anchors, size), 8 * size
    x, delta = normal(count, parts, width), normal(count, taps, width // group, seed=1)
    weight = normal(taps, width, seed=2)
    found = convolve(x, delta, weight, blocks, bucket=count)
    torch.testing.assert_close(found.double(), convolution_defined(x, delta, weight, blocks), rtol=1e-5, atol=1e-4)
    assert torch.equal(convolve(x, delta, weight, blocks, out=BF16), found.to(BF16))
    for first in range(0, count, size):
        mine = slice(first, first + size)
        assert torch.equal(convolve(x[mine], delta[mine], weight, blocks.of_rows(mine), bucket=size), found[mine])


@pytest.mark.parametrize(
    ("k", "rank", "size", "dtype"), [(16, 256, 16, BF16), (16, 8, 8, torch.float32), (32, 100, 32, BF16)]
)
def test_a_lattice_is_the_definition_and_alike_in_any_company(k: int, rank: int, size: int, dtype: torch.dtype) -> None:
    blocks = Blocks.of([(lane, 9 * lane) for lane in range(8)], size)
    slots = Slots.drawn(blocks, k, rank, dtype, vocabulary=5000)
    score = slots.scores()
    torch.testing.assert_close(score.double(), slots.defined(), rtol=1e-5, atol=1e-4)
    for scores in (score, score.round()):  # of which many are equal
        assert slots.walk(scores).tolist() == walked(scores, [size] * 8)
    for lane in (0, 5):
        rows, mine = slice(lane * size, (lane + 1) * size), slice(lane * (size - 1), (lane + 1) * (size - 1))
        alone = Slots(
            blocks.of_rows(rows), slots.token[rows], slots.candidate[mine], slots.unary[mine], slots.gate[mine],
            slots.predecessor, slots.successor,
        )  # fmt: skip
        assert torch.equal(alone.scores(slots=size - 1), score[mine])
        assert torch.equal(alone.walk(score[mine], slots=size - 1), slots.walk(score)[mine])


def test_times_beside_pytorchs() -> None:
    print()
    for line in block_times.lines(block_times.SHAPES[::2], lanes=(1, 8)):
        print(line.text(4.8e12))
        assert line.us > 0
