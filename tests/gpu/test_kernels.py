"""Kernels on the GPU: right to float64, and the same bits in every row bucket, tree or chain, step or chunk."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
import torch
from torch import Tensor

from tandem.kernels.cuda import linear, norm
from tests.gpu.launching import launch
from tests.kernels.cuda import attending
from tests.kernels.cuda.attending import Branch, attend, attend_chunk, chain, laid_out
from tests.kernels.cuda.paged import Paged

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 64, 256, 2048)
BF16 = torch.bfloat16
CONTEXT = 4096
"""What attention is compiled for in every pass, so that no kernel is compiled twice."""


def random(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


def product(x: Tensor, weight: Tensor, rows: int, gated: bool = False) -> Tensor:
    """y fp32 of the first rows, all that `rows` has room for."""
    n, k = weight.shape[0] // (1 + gated), weight.shape[1]
    name, work = linear.linear_work(n, k, rows, gated, weight.itemsize, k, n)
    y = torch.full((rows, n), torch.nan)
    count = torch.tensor([rows], dtype=torch.int32)
    launch(getattr(linear, name), work, x=x[:rows].contiguous(), weight=weight, bias=None, count=count, y=y)
    return y


@pytest.mark.parametrize(
    ("n", "k", "dtype"),
    [(960, 576, BF16), (1000, 200, BF16), (5120, 1024, BF16), (960, 576, torch.float32), (70, 100, torch.float32)],
)
def test_a_product_has_the_bits_of_its_first_row_in_every_bucket(n: int, k: int, dtype: torch.dtype) -> None:
    x, weight = random(BUCKETS[-1], k).to(dtype), (random(n, k, seed=1) / k**0.5).to(dtype)
    whole = product(x, weight, BUCKETS[-1])
    wanted = x.double() @ weight.double().T
    assert ((whole - wanted).norm() / wanted.norm()).item() < 1e-5
    for rows in BUCKETS[:-1]:
        assert torch.equal(product(x, weight, rows), whole[:rows]), f"{rows} rows"


def test_a_gated_product_has_the_bits_of_its_first_row_in_every_bucket() -> None:
    x, weight = random(256, 576).to(BF16), (random(2 * 1536, 576, seed=1) / 24).to(BF16)
    whole = product(x, weight, 256, gated=True)
    gate, value = (x.double() @ weight.double().T).chunk(2, -1)
    wanted = torch.nn.functional.silu(gate) * value
    assert ((whole - wanted).norm() / wanted.norm()).item() < 1e-5
    for rows in (rows for rows in BUCKETS if rows < 256):
        assert torch.equal(product(x, weight, rows, gated=True), whole[:rows]), f"{rows} rows"


@pytest.mark.parametrize("width", [48, 576, 5120])
def test_a_norm_is_right_and_does_not_look_at_its_neighbours(width: int) -> None:
    x, weight = random(40, width), random(width, seed=1)

    def normed(rows: int) -> Tensor:
        y = torch.full((rows, width), torch.nan)
        count = torch.tensor([rows], dtype=torch.int32)
        work = norm.rms_norm_work(rows, 1, width, 1e-6, width, width)
        launch(norm.rms_norm, work, x=x[:rows].contiguous(), weight=weight, row=None, count=count, y=y)
        return y

    wanted = x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + 1e-6) * weight.double()
    torch.testing.assert_close(normed(40).double(), wanted, rtol=1e-5, atol=1e-5)
    assert torch.equal(normed(1), normed(40)[:1])


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attention passes of the interpreter's tests, on the GPU."""

    def compiled(module: str) -> ModuleType:
        return importlib.import_module(f"tandem.kernels.cuda.{module}")

    monkeypatch.setattr(attending, "interpreted", compiled)
    monkeypatch.setattr(attending, "run", launch)


TREE = (0, 0, 1, 1, 3, 0, 5, 6, 6, 8, 5, 10, 0, 12, 13, 13, 15)
HEADS = [(6, 1, 64), (24, 4, 256), (9, 3, 64), (3, 1, 80)]


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), HEADS)
@pytest.mark.parametrize("prefix", [1, 63, 700, 2300])
def test_a_tree_row_has_the_bits_of_a_step_at_its_own_prefix(
    heads: int, kv_heads: int, head_dim: int, prefix: int
) -> None:
    branch, blocks = Branch(prefix, TREE), prefix // 64 + 2
    cache = Paged(kv_heads, head_dim, BF16, blocks=blocks)
    rows = laid_out(cache, [branch], heads)
    scale = head_dim**-0.5
    found = attend(cache, rows, tree=True, bucket=24, context=CONTEXT, scale=scale)
    wanted = cache.reference(rows.q.to(BF16), rows.position, rows.lane, rows.prefix, rows.ancestor, scale, True)
    assert ((found - wanted).norm() / wanted.norm()).item() < 1e-2
    for node in (0, 4, 9, 16):
        path = [prefix + i for i in branch.path(node)]
        alone = Paged(kv_heads, head_dim, BF16, blocks=blocks, seed=5)
        attending.filled(alone, 0, range(prefix + len(path)), [*range(prefix), *path])
        row = rows.row(node)
        row = attending.Pass(row.q, row.position, row.lane, row.position, row.ancestor)
        step = attend(alone, row, tree=False, bucket=1, context=CONTEXT, scale=scale)
        assert torch.equal(step[0], found[node]), f"node {node}"


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), HEADS)
def test_chunks_chains_and_steps_agree_beside_other_lanes(heads: int, kv_heads: int, head_dim: int) -> None:
    branches = [chain(200, 12), chain(2100, 9), chain(0, 11)]
    cache = Paged(kv_heads, head_dim, BF16, lanes=3, blocks=36)
    rows = laid_out(cache, branches, heads)
    scale = head_dim**-0.5
    together = attend(cache, rows, tree=False, bucket=32, context=CONTEXT, scale=scale)
    assert torch.equal(attend_chunk(cache, rows, 64, scale=scale), together)
    assert torch.equal(attend_chunk(cache, rows, 256, scale=scale), together)
    for index in (0, 11, 12, 20, 21, 31):
        alone = attend(cache, rows.row(index), tree=False, bucket=1, context=CONTEXT, scale=scale)
        assert torch.equal(alone[0], together[index]), f"row {index}"
