"""Linears whose K is split: each part a chain of its own, the same borders for every kernel, the sum in their order."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import triton
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tandem.kernels.cuda.build import Pointer, Variant, compile_variant
from tandem.kernels.cuda.launch import Work
from tandem.kernels.cuda.linear import linear_work
from tandem.kernels.cuda.linear_tiles import ChunkTiles, FewTiles, Matrix
from tandem.kernels.cuda.norm import add_rms_norm_work
from tandem.kernels.cuda.parts import add_parts_work, shortest_part, splits
from tests.kernels.cuda.chain import chain, chained_dots, drawn
from tests.kernels.cuda.interpreter import interpreted, run

BF16, FP32 = torch.bfloat16, torch.float32
SHARED = 227 << 10
"""Bytes of shared memory that a block may have on sm_90."""
BORDERS = {
    (1300, 2): [0, 768, 1300],
    (1300, 3): [0, 512, 1024, 1300],
    (1300, 5): [0, 256, 512, 768, 1024, 1300],
    (1024, 3): [0, 256, 512, 1024],
    (6144, 5): [0, 1024, 2304, 3584, 4864, 6144],
    (17408, 5): [0, 3328, 6912, 10240, 13824, 17408],
}
"""Of K in parts, by hand: whole blocks of 256 inputs, block i of B in part i * B // parts at the earliest."""
REAL = [(5120, 6144), (5120, 17408)]
"""`o` and `down` of the 27B shape."""


@pytest.fixture(autouse=True)
def _chained() -> Iterator[None]:
    with chained_dots():
        yield


def _count(count: int) -> Tensor:
    return torch.tensor([count], dtype=torch.int32)


def _chains(x: Tensor, weight: Tensor, bias: Tensor | None, parts: int) -> list[Tensor]:
    spans = list(pairwise(BORDERS[x.shape[1], parts]))
    return [chain(x[:, a:b], weight[:, a:b], None if a else bias) for a, b in spans]


def _in_order(parts: list[Tensor]) -> Tensor:
    total, *others = parts
    for other in others:
        total = total + other
    return total


def _call(
    x: Tensor, weight: Tensor, bias: Tensor | None, rows: int, parts: int, tiles: FewTiles | ChunkTiles | None = None
) -> Tensor:
    """y of a pass of `rows` rows, [count, parts, n] or, of a chunk, [count, 1, n]; around x, weight and y is NaN."""
    (count, k), n = x.shape, weight.shape[0]
    left = parts if (isinstance(tiles, FewTiles) if tiles else rows <= 32) else 1
    y_stride = left * n + 5
    padded, y = torch.full((rows, k + 3), torch.nan, dtype=x.dtype), torch.full((rows, y_stride), torch.nan)
    padded[:count, :k] = x
    held = torch.full((weight.numel() + 7 * k,), torch.nan, dtype=weight.dtype)
    held[: weight.numel()] = weight.flatten()
    name, work = linear_work(n, k, rows, False, weight.itemsize, k + 3, y_stride, parts)
    if tiles:
        matrix = Matrix(n, k, False, weight.itemsize, k + 3, y_stride, parts)
        few = isinstance(tiles, FewTiles)
        name, work = ("linear", tiles.work(matrix)) if few else ("linear_chunk", tiles.work(matrix, rows))
    kernel = getattr(interpreted("linear"), name)
    run(kernel, work, x=padded, weight=held, bias=bias, count=_count(count), y=y)
    assert y[count:].isnan().all() and y[:, left * n :].isnan().all()
    return y[:count, : left * n].unflatten(1, (left, n))


def test_a_split_is_of_the_shape_alone() -> None:
    assert [splits(*shape) for shape in REAL] == [2, 4]
    assert (splits(4096, 4096), splits(4096, 8191), splits(4096, 8192), splits(8191, 1 << 20)) == (2, 2, 4, 4)
    whole = [(8192, 5120), (4095, 5120), (5120, 4095), (34816, 5120), (248_320, 5120), (960, 576), (576, 1536)]
    assert {splits(*shape) for shape in whole} == {1}


@pytest.mark.parametrize(("k", "parts"), BORDERS)
def test_borders_are_multiples_of_256(k: int, parts: int) -> None:
    first_input = interpreted("parts").first_input.fn
    found = [int(first_input(part, k, parts)) for part in range(parts + 1)]
    assert [*found[:-1], min(found[-1], k)] == BORDERS[k, parts]
    assert shortest_part(k, parts) == min(b - a for a, b in pairwise(BORDERS[k, parts]))


@given(blocks=st.integers(1, 200), parts=st.integers(1, 16), tail=st.integers(0, 255))
def test_parts_are_as_even_as_borders_allow(blocks: int, parts: int, tail: int) -> None:
    k = 256 * blocks - tail
    first_input = interpreted("parts").first_input.fn
    found = [int(first_input(part, k, parts)) for part in range(parts + 1)]
    sizes = [b - a for a, b in pairwise(found)]
    assert found[0] == 0 and found[-1] == 256 * blocks and max(sizes) - min(sizes) <= 256
    assert shortest_part(k, parts) == min([*sizes[:-1], sizes[-1] - tail])


@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("n", "k", "parts", "count"), [(70, 1300, 5, 3), (24, 1300, 2, 1), (33, 1024, 3, 17)])
def test_each_part_is_one_chain_over_its_own_inputs(
    n: int, k: int, parts: int, count: int, bias: bool, dtype: torch.dtype
) -> None:
    x, weight, start = drawn(count, k, dtype=dtype), drawn(n, k, dtype=dtype), drawn(n) if bias else None
    wanted = _chains(x, weight, start, parts)
    found = _call(x, weight, start, 32, parts)
    assert torch.equal(found, torch.stack(wanted, 1))
    assert torch.equal(_call(x, weight, start, 64, parts)[:, 0], _in_order(wanted))
    assert not torch.equal(_in_order(wanted), chain(x, weight, start))  # a split moves bits, so it must be everywhere


def test_a_row_has_its_bits_in_every_bucket_at_every_place() -> None:
    x, weight = drawn(64, 1300, dtype=BF16), drawn(20, 1300, dtype=BF16)
    alone = _in_order([*_call(x[:1], weight, None, 1, 5).unbind(1)])
    for rows in (2, 8, 24, 32, 64, 128):
        count = min(rows - 1, 40)
        y = _in_order([*_call(x.roll(count - 1, 0)[:count], weight, None, rows, 5).unbind(1)])
        assert torch.equal(y[count - 1], alone[0]), rows


FEW = st.builds(
    FewTiles,
    bm=st.sampled_from([16, 32]), bn=st.sampled_from([8, 16, 32]), bk=st.sampled_from([32, 64, 128, 256]),
    num_warps=st.just(4), num_stages=st.just(3), weight_left=st.booleans(), prefetch=st.just(0),
    rest=st.sampled_from([0, 8]),
)  # fmt: skip
CHUNK = st.builds(
    ChunkTiles,
    bm=st.sampled_from([8, 16, 32]), bn=st.sampled_from([8, 16, 32]), bk=st.sampled_from([32, 64, 128, 256]),
    num_warps=st.just(4), num_stages=st.just(3), group=st.sampled_from([1, 2, 16]),
)  # fmt: skip


@settings(max_examples=12, deadline=None)
@given(
    n=st.integers(1, 40), shape=st.sampled_from([(1300, 5), (1300, 3), (1024, 3)]), rows=st.integers(1, 40), few=FEW,
    chunk=CHUNK, bias=st.booleans(),
)  # fmt: skip
def test_no_tile_moves_a_bit(
    n: int, shape: tuple[int, int], rows: int, few: FewTiles, chunk: ChunkTiles, bias: bool
) -> None:
    (k, parts), count = shape, min(rows, few.bm)
    with chained_dots():
        x, weight, start = drawn(rows, k, dtype=BF16), drawn(n, k, dtype=BF16), drawn(n) if bias else None
        wanted = _chains(x, weight, start, parts)
        assert torch.equal(_call(x[:count], weight, start, count, parts, few), torch.stack(wanted, 1)[:count])
        assert torch.equal(_call(x, weight, start, rows, parts, chunk)[:, 0], _in_order(wanted))


@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize(("width", "parts"), [(1, 2), (1030, 5)])
def test_parts_are_added_in_their_order(width: int, parts: int, dtype: torch.dtype) -> None:
    count, rows, x_stride, y_stride = 3, 4, parts * width + 3, width + 2
    parted = drawn(count, parts, width) * 10.0 ** torch.arange(parts)[:, None].flip(0)
    x, y = torch.full((rows, x_stride), torch.nan), torch.full((rows, y_stride), torch.nan, dtype=dtype)
    x[:count, : parts * width] = parted.flatten(1)
    work = add_parts_work(rows, width, parts, x_stride, y_stride)
    run(interpreted("parts").add_parts, work, x=x, count=_count(count), y=y)
    wanted = _in_order([*parted.unbind(1)])
    if dtype == BF16:  # the interpreter cuts off where a GPU rounds
        wanted = (wanted.contiguous().view(torch.int32) & -(1 << 16)).view(FP32)
    assert torch.equal(y[:count, :width].float(), wanted)
    assert y[count:].isnan().all() and y[:, width:].isnan().all()


@pytest.mark.parametrize("tiles", [(64, 128), (64, 64), (32, 256)])
@pytest.mark.parametrize(("n", "k"), REAL)
def test_nothing_is_asked_for_ahead_beyond_a_part(n: int, k: int, tiles: tuple[int, int]) -> None:
    bn, bk = tiles
    work = FewTiles(16, bn, bk, 4, 4, True, 1 << 20).work(Matrix(n, k, False, 2, k, 5 * n, 5))
    assert work.grid == (n // bn, 5, 1)
    assert dict(work.constants)["PREFETCH"] == {6144: 2048, 17408: 4096}[k]  # of 2,048 and 6,656 bytes


def _compiled(kernel: str, pointers: list[Pointer | None], work: Work, folder: Path) -> str:
    """Resources that a kernel takes on sm_90, in cuobjdump's words."""
    cubin = compile_variant(Variant.of(kernel, pointers, work), 90)
    assert cubin.shared <= SHARED
    (folder / "x.cubin").write_bytes(cubin.data)
    tool = triton.knobs.nvidia.cuobjdump.path
    found = subprocess.run([tool, "--dump-resource-usage", folder / "x.cubin"], capture_output=True, text=True)
    return found.stdout


@pytest.mark.parametrize("rows", [1, 32, 64, 2048])
@pytest.mark.parametrize(("n", "k"), REAL)
def test_it_compiles_without_spills(n: int, k: int, rows: int, tmp_path: Path) -> None:
    matrix, full, whole = Pointer("bf16", True), Pointer("fp32", True), Pointer("int32", True)
    count = splits(n, k)
    name, work = linear_work(n, k, rows, False, 2, k, count * n if rows <= 32 else n, count)
    usage = _compiled(name, [matrix, matrix, None, whole, full], work, tmp_path)
    assert "STACK:0 " in usage and "LOCAL:0 " in usage


def test_readers_of_parts_compile_without_spills(tmp_path: Path) -> None:
    full, whole = Pointer("fp32", True), Pointer("int32", True)
    n, sums = 5120, {}
    norm = add_rms_norm_work(32, n, 1e-6, n, 5 * n, n, n, 5)
    sums["norm"] = _compiled("add_rms_norm", [full, full, full, None, whole, full, full], norm, tmp_path)
    sums["alone"] = _compiled("add_parts", [full, whole, full], add_parts_work(32, n, 5, 5 * n, n), tmp_path)
    assert all("STACK:0 " in usage and "LOCAL:0 " in usage for usage in sums.values())
