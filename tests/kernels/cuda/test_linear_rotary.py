"""The product that turns and writes by itself has the bits of `linear` then `rotary_kv_write`, and float64's values."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import triton
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem import kernels
from tandem.kernels.cuda.build import Pointer, Variant, compile_variant
from tandem.kernels.cuda.linear_rotary import can_fuse, linear_rotary_work, rotary_tiles
from tandem.kernels.cuda.linear_tiles import Matrix
from tests.kernels.cuda.chain import chained_dots
from tests.kernels.cuda.paged import Paged, ints
from tests.kernels.cuda.turning import BF16, FP32, Case, Heads, apart, assert_same, fused, parts, work_of

SHARED = 227 << 10
"""Bytes of shared memory that a block may have on sm_90."""
PLAIN, FEW_PAIRS = Heads(3, 1, 8, 48), Heads(6, 3, 4, 40)
SEVERAL_BLOCKS, RAGGED = Heads(2, 2, 24, 33), Heads(2, 1, 10, 50)
SHAPES = [(PLAIN, False), (FEW_PAIRS, True), (SEVERAL_BLOCKS, True), (RAGGED, False), (RAGGED, True)]
"""Heads, and whether they have a bias."""


@pytest.fixture(autouse=True)
def _chained() -> Iterator[None]:
    with chained_dots():
        yield


@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize(
    ("shape", "bias", "bucket", "count"),
    [
        *((*shape, 8, 5) for shape in SHAPES),
        *((*shape, *rows) for shape in SHAPES[2::2] for rows in ((1, 1), (32, 19))),
    ],
)
def test_it_has_the_bits_of_two_launches(shape: Heads, bias: bool, bucket: int, count: int, dtype: torch.dtype) -> None:
    case = Case(shape, count, dtype, bias)
    y, memory = fused(case, bucket)
    assert_same((y, memory), apart(case, bucket))
    written = shape.heads * shape.head_dim
    assert y[:count, :written].isfinite().all()
    assert y[count:].isnan().all() and y[:, written:].isnan().all()
    assert memory.isfinite().sum() == count * 2 * shape.kv_heads * shape.head_dim


@pytest.mark.parametrize(("dtype", "tolerance"), [(BF16, 2.0**-7), (FP32, 1e-5)])
@pytest.mark.parametrize(("shape", "bias"), SHAPES)
def test_it_is_what_the_definitions_say(shape: Heads, bias: bool, dtype: torch.dtype, tolerance: float) -> None:
    case = Case(shape, 5, dtype, bias)
    y, memory = fused(case, 8)
    qkv = case.x.double() @ case.weight.double().T + (0.0 if case.bias is None else case.bias.double())
    q, k, v = (part.unflatten(1, (-1, shape.head_dim)) for part in parts(qkv, shape))
    q, k = (kernels.rotary(part, case.cos.double(), case.sin.double(), ints(case.position)) for part in (q, k))
    wanted = Paged(shape.kv_heads, shape.head_dim, dtype, lanes=2)
    wanted.memory = wanted.memory.double()
    for i in range(5):
        wanted.put(case.lane[i], [case.slot[i]], k[i : i + 1], v[i : i + 1])
    found = y[:5, : shape.heads * shape.head_dim].double()
    torch.testing.assert_close(found, q.flatten(1), rtol=tolerance, atol=1e-5)
    torch.testing.assert_close(memory.double(), wanted.memory, rtol=tolerance, atol=1e-5, equal_nan=True)


def test_a_row_has_its_bits_in_every_bucket() -> None:
    case = Case(SEVERAL_BLOCKS, 1, BF16, bias=True)
    y, memory = fused(case, 1)
    for bucket in (2, 4, 8, 16, 24, 32):
        wide, same = fused(case, bucket)
        assert_same((wide[:1], same), (y, memory))


@settings(max_examples=15, deadline=None)
@given(
    shape=st.builds(Heads, st.integers(1, 3), st.integers(1, 2), st.integers(1, 20), st.integers(1, 60)),
    bn=st.sampled_from([8, 16, 32, 64]),
    bk=st.sampled_from([16, 32, 64]),
    bm=st.sampled_from([16, 32]),
    left=st.booleans(),
    bias=st.booleans(),
)
def test_no_tile_moves_a_bit(shape: Heads, bn: int, bk: int, bm: int, left: bool, bias: bool) -> None:
    with chained_dots():
        case = Case(shape, 3, BF16, bias)
        usual = work_of(case, 4)
        tiles = {"BM": bm, "BN": bn, "BK": bk, "WEIGHT_LEFT": left}
        grid = (shape.heads + 2 * shape.kv_heads) * -(-shape.half // (bn // 2))
        other = replace(usual, grid=(grid, 1, 1), constants=tuple((dict(usual.constants) | tiles).items()))
        assert_same(fused(case, 4, other), apart(case, 4))


@given(
    heads=st.integers(1, 64),
    kv_heads=st.integers(1, 16),
    half=st.integers(1, 256),
    k=st.integers(1, 20_000),
    rows=st.sampled_from([1, 2, 4, 8, 16, 24, 32]),
    itemsize=st.sampled_from([2, 4]),
)
def test_work_covers_every_pair_of_every_head_once(
    heads: int, kv_heads: int, half: int, k: int, rows: int, itemsize: int
) -> None:
    work = linear_rotary_work(
        rows=rows, heads=heads, kv_heads=kv_heads, head_dim=2 * half, half=half, k=k, itemsize=itemsize, x_stride=k,
        y_stride=heads * 2 * half, table_stride=8, page=64,
    )  # fmt: skip
    tile = dict(work.constants)
    pairs = tile["BN"] // 2
    assert work.grid == ((heads + 2 * kv_heads) * -(-half // pairs), 1, 1)
    assert tile["BM"] >= rows
    assert 128 * (tile["PREFETCH"] // 128) == tile["PREFETCH"] <= k * itemsize
    assert pairs & (pairs - 1) == 0 and tile["BN"] >= 8


def test_tiles_are_those_of_the_product_alone_where_heads_divide_into_them() -> None:
    for n, k, half in ((8192, 5120, 128), (960, 576, 32)):
        matrix = Matrix(n, k, False, 2, k, n)
        for rows in (1, 32):
            tiles = rotary_tiles(matrix, rows, half)
            assert half % (tiles.bn // 2) == 0
    assert rotary_tiles(Matrix(8192, 5120, False, 2, 5120, 8192), 1, 48).bn <= 32  # 48 pairs in three of 16, not 1.5


def test_only_heads_that_turn_as_a_whole_are_served() -> None:
    assert can_fuse(64, 32)
    assert not can_fuse(80, 20)
    assert not can_fuse(21, 10)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("rows", [1, 32])
@pytest.mark.parametrize(("shape", "bias"), [(Heads(24, 4, 128, 5120), False), (Heads(9, 3, 32, 576), True)])
def test_it_compiles_without_spills(shape: Heads, bias: bool, rows: int, dtype: str, tmp_path: Path) -> None:
    s = shape
    work = linear_rotary_work(
        rows=rows, heads=s.heads, kv_heads=s.kv_heads, head_dim=s.head_dim, half=s.half, k=s.k,
        itemsize={"bf16": 2, "fp32": 4}[dtype], x_stride=s.k, y_stride=s.heads * s.head_dim, table_stride=512,
        page=30 * 2 * 64 * s.kv_heads * s.head_dim,
    )  # fmt: skip
    compute, full, whole = Pointer(dtype, True), Pointer("fp32", True), Pointer("int32", True)
    # x weight bias, cos sin, position lane slot block_table count, k_cache v_cache y
    pointers = [compute, compute, full if bias else None, full, full, *[whole] * 5, *[compute] * 3]
    cubin = compile_variant(Variant.of("linear_rotary", pointers, work), 90)
    assert cubin.shared <= SHARED
    (tmp_path / "x.cubin").write_bytes(cubin.data)
    tool = triton.knobs.nvidia.cuobjdump.path
    usage = subprocess.run([tool, "--dump-resource-usage", tmp_path / "x.cubin"], capture_output=True, text=True).stdout
    assert "STACK:0 " in usage and "LOCAL:0 " in usage
