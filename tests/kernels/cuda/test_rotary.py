"""The CUDA rotary against the definition, and fused with the write of K and V against the two apart."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tandem import kernels
from tests.kernels.cuda.interpreter import interpreted, run
from tests.kernels.cuda.paged import BEYOND, Paged, ints

POSITIONS = [4, 63, 0, 99]
SHAPES = [(1, 1, 16, 8), (6, 2, 64, 32), (3, 1, 80, 20), (5, 5, 20, 3)]


def angles(half: int) -> tuple[Tensor, Tensor]:
    angle = torch.outer(torch.arange(100), 10000.0 ** (-torch.arange(half) / half))
    return angle.cos().float(), angle.sin().float()


def wide(x: Tensor, bucket: int, pad: int) -> Tensor:
    """[rows, heads, D] -> [bucket, heads * D + pad], NaN around it."""
    out = torch.full((bucket, x[0].numel() + pad), torch.nan)
    out[: len(x), : x[0].numel()] = x.flatten(1)
    return out


def turned(x: Tensor, half: int, dtype: torch.dtype, bucket: int = 6) -> Tensor:
    """[rows, heads, D] by the single kernel; checks that rows and columns beyond stay untouched."""
    module, (cos, sin), (count, heads, head_dim) = interpreted("rotary"), angles(half), x.shape
    source, y = wide(x, bucket, 3), torch.full((bucket, heads * head_dim + 5), torch.nan, dtype=dtype)
    work = module.rotary_work(
        rows=bucket, heads=heads, head_dim=head_dim, half=half, x_stride=source.stride(0), y_stride=y.stride(0)
    )
    position = ints([*POSITIONS, *[BEYOND] * (bucket - count)])
    run(module.rotary, work, x=source, cos=cos, sin=sin, position=position, count=ints([count]), y=y)
    assert y[count:].isnan().all() and y[:, heads * head_dim :].isnan().all()
    return y[:count, : heads * head_dim].unflatten(1, (heads, head_dim))


@pytest.mark.parametrize("bucket", [6, 33])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "half"), SHAPES)
def test_pairs_are_turned_by_the_angle_of_their_position(
    heads: int, kv_heads: int, head_dim: int, half: int, bucket: int
) -> None:
    x, (cos, sin) = torch.randn(4, heads, head_dim), angles(half)
    wanted = kernels.rotary(x.double(), cos.double(), sin.double(), ints(POSITIONS))
    found = turned(x, half, torch.float32, bucket)
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=1e-6)
    assert torch.equal(found[..., 2 * half :], x[..., 2 * half :])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "half"), SHAPES)
def test_fused_with_the_write_it_gives_the_same_bits(
    heads: int, kv_heads: int, head_dim: int, half: int, dtype: torch.dtype
) -> None:
    q, k, v = (torch.randn(4, n, head_dim) for n in (heads, kv_heads, kv_heads))
    v = v.bfloat16().float()  # its rounding is the interpreter's affair
    (cos, sin), lane, slot, bucket = angles(half), [0, 1, 1, 0], [70, 63, 64, 0], 6
    cache, wanted = (Paged(kv_heads, head_dim, dtype, lanes=2) for _ in range(2))
    sources = {"q": wide(q, bucket, 1), "k": wide(k, bucket, 2), "v": wide(v, bucket, 3)}
    y = torch.full((bucket, heads * head_dim + 7), torch.nan, dtype=dtype)
    module, beyond = interpreted("rotary"), [BEYOND] * 2
    work = module.rotary_kv_write_work(
        rows=bucket, heads=heads, kv_heads=kv_heads, head_dim=head_dim, half=half, y_stride=y.stride(0),
        table_stride=cache.table.shape[1], page=cache.page,
        **{f"{name}_stride": source.stride(0) for name, source in sources.items()},
    )  # fmt: skip
    run(
        module.rotary_kv_write, work, cos=cos, sin=sin, position=ints(POSITIONS + beyond), lane=ints(lane + beyond),
        slot=ints(slot + beyond), block_table=cache.table, count=ints([4]), k_cache=cache.plane(0),
        v_cache=cache.plane(1), y=y, **sources,
    )  # fmt: skip
    k_turned = turned(k, half, dtype)
    for i in range(4):
        wanted.put(lane[i], [slot[i]], k_turned[i : i + 1], v[i : i + 1].to(dtype))
    torch.testing.assert_close(cache.memory, wanted.memory, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(y[:4, : heads * head_dim].unflatten(1, (heads, head_dim)), turned(q, half, dtype))
    assert y[4:].isnan().all() and y[:, heads * head_dim :].isnan().all()
