"""Rows for the product that turns and writes by itself, and both ways to launch them: in one kernel, and in two."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tandem.kernels.cuda.launch import Work
from tandem.kernels.cuda.linear_rotary import linear_rotary_work
from tests.kernels.cuda.interpreter import interpreted, run
from tests.kernels.cuda.paged import BEYOND, Paged, ints

BF16, FP32 = torch.bfloat16, torch.float32
CONTEXT = 256
MAX_ROWS = 32


@dataclass(frozen=True)
class Heads:
    """Query heads, key heads, pairs of dimensions of each, and inputs."""

    heads: int
    kv_heads: int
    half: int
    k: int

    @property
    def head_dim(self) -> int:
        return 2 * self.half

    @property
    def width(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_dim


class Case:
    """Random inputs of `count` rows, spread over lanes and pages; what lies around and behind them is NaN or BEYOND."""

    def __init__(
        self, shape: Heads, count: int, dtype: torch.dtype, bias: bool, *, pad: int = 3, seed: int = 0
    ) -> None:
        self.shape, self.count, self.dtype, self.pad = shape, count, dtype, pad
        self.random = torch.Generator().manual_seed(seed)
        self.x = self._normal(count, shape.k).to(dtype)
        self.weight = (self._normal(shape.width, shape.k) / shape.k**0.5).to(dtype)
        self.bias = self._normal(shape.width) if bias else None
        angle = torch.outer(torch.arange(CONTEXT), 10000.0 ** (-torch.arange(shape.half) / shape.half))
        self.cos, self.sin = angle.cos().float(), angle.sin().float()
        self.position = torch.randint(CONTEXT, (count,), generator=self.random).tolist()
        places = torch.randperm(2 * CONTEXT, generator=self.random)[:count]
        self.lane, self.slot = (places // CONTEXT).tolist(), (places % CONTEXT).tolist()

    def _normal(self, *size: int) -> Tensor:
        return torch.randn(*size, generator=self.random)

    def rows(self, bucket: int) -> Tensor:
        padded = torch.full((bucket, self.shape.k + self.pad), torch.nan, dtype=self.dtype)
        padded[: self.count, : self.shape.k] = self.x
        return padded

    def fresh(self, bucket: int) -> tuple[Tensor, Paged]:
        s = self.shape
        y = torch.full((bucket, s.heads * s.head_dim + 7), torch.nan, dtype=self.dtype)
        return y, Paged(s.kv_heads, s.head_dim, self.dtype, lanes=2)

    def told(self, name: str) -> Tensor:
        return ints([*getattr(self, name), *[BEYOND] * (MAX_ROWS - self.count)])

    def shared(self, cache: Paged) -> dict[str, Tensor]:
        tables = {"cos": self.cos, "sin": self.sin, "block_table": cache.table, "count": ints([self.count])}
        caches = {"k_cache": cache.plane(0), "v_cache": cache.plane(1)}
        return tables | caches | {name: self.told(name) for name in ("position", "lane", "slot")}

    def weights(self) -> dict[str, Tensor | None]:
        held = torch.full((self.weight.numel() + 64 * self.shape.k,), torch.nan, dtype=self.dtype)
        held[: self.weight.numel()] = self.weight.flatten()
        return {"weight": held, "bias": self.bias}


def work_of(case: Case, bucket: int) -> Work:
    s, (y, cache) = case.shape, case.fresh(1)
    return linear_rotary_work(
        rows=bucket, heads=s.heads, kv_heads=s.kv_heads, head_dim=s.head_dim, half=s.half, k=s.k,
        itemsize=case.dtype.itemsize, x_stride=s.k + case.pad, y_stride=y.stride(0), table_stride=cache.table.shape[1],
        page=cache.page,
    )  # fmt: skip


def fused(case: Case, bucket: int, work: Work | None = None) -> tuple[Tensor, Tensor]:
    """y and the cache's memory behind one launch."""
    y, cache = case.fresh(bucket)
    kernel = interpreted("linear_rotary").linear_rotary
    run(kernel, work or work_of(case, bucket), x=case.rows(bucket), y=y, **case.shared(cache), **case.weights())
    return y, cache.memory


def apart(case: Case, bucket: int) -> tuple[Tensor, Tensor]:
    """As `fused`, by `linear` and `rotary_kv_write`."""
    s, (y, cache), x = case.shape, case.fresh(bucket), case.rows(bucket)
    qkv, linear, rotary = torch.full((bucket, s.width), torch.nan), interpreted("linear"), interpreted("rotary")
    name, work = linear.linear_work(s.width, s.k, bucket, False, case.dtype.itemsize, x.stride(0), s.width)
    run(getattr(linear, name), work, x=x, count=ints([case.count]), y=qkv, **case.weights())
    work = rotary.rotary_kv_write_work(
        rows=bucket, heads=s.heads, kv_heads=s.kv_heads, head_dim=s.head_dim, half=s.half, q_stride=s.width,
        k_stride=s.width, v_stride=s.width, y_stride=y.stride(0), table_stride=cache.table.shape[1], page=cache.page,
    )  # fmt: skip
    q, k, v = (part.as_strided(part.shape, (s.width, 1)) for part in parts(qkv, s))
    run(rotary.rotary_kv_write, work, q=q, k=k, v=v, y=y, **case.shared(cache))
    return y, cache.memory


def parts(qkv: Tensor, s: Heads) -> tuple[Tensor, ...]:
    return qkv.split([n * s.head_dim for n in (s.heads, s.kv_heads, s.kv_heads)], -1)


def assert_same(found: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor]) -> None:
    """Bit for bit, NaN where NaN was: nothing beside the rows was written."""
    for one, other in zip(found, wanted, strict=True):
        integer = torch.int16 if one.dtype == BF16 else torch.int32
        assert torch.equal(one.view(integer), other.view(integer))
