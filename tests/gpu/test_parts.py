"""Linears whose K is split, on the GPU: the parts of few rows, summed in order, are what prefill writes; a whole model.

The model's q, k and v have a shape that would be split too, but turn in the launch that makes them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tandem.kernels.cuda import linear, norm, parts
from tests.commands import Commands
from tests.gpu.launching import launch
from tests.tiny import make_checkpoint

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 64, 256, 2048)
BF16, FP32 = torch.bfloat16, torch.float32
REAL = [(5120, 6144), (5120, 17408)]
"""`o` and `down` of the 27B shape."""


def random(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


def counted(rows: int) -> Tensor:
    return torch.tensor([rows], dtype=torch.int32)


def product(x: Tensor, weight: Tensor, rows: int, bias: Tensor | None = None) -> Tensor:
    """y fp32 of the first rows, all that `rows` has room for: [rows, parts, n], or [rows, 1, n] of a chunk."""
    n, k = weight.shape
    count = parts.splits(n, k)
    left = count if rows <= 32 else 1
    name, work = linear.linear_work(n, k, rows, False, weight.itemsize, k, left * n, count)
    y = torch.full((rows, left, n), torch.nan)
    launch(getattr(linear, name), work, x=x[:rows].contiguous(), weight=weight, bias=bias, count=counted(rows), y=y)
    return y


def in_order(y: Tensor) -> Tensor:
    total, *others = y.unbind(1)
    for other in others:
        total = total + other
    return total


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("n", "k", "dtype"), [*((*shape, BF16) for shape in REAL), (4100, 4360, BF16), (4096, 4096, FP32)]
)
def test_parts_in_order_are_what_prefill_writes(n: int, k: int, dtype: torch.dtype, bias: bool) -> None:
    rows = BUCKETS[-1] if dtype == BF16 else 64
    x, weight = random(rows, k).to(dtype), (random(n, k, seed=1) / k**0.5).to(dtype)
    start = random(n, seed=2) if bias else None
    whole = product(x, weight, rows, start)[:, 0]
    wanted = x[:64].double() @ weight.double().T + (start.double() if start is not None else 0.0)
    assert ((whole[:64] - wanted).norm() / wanted.norm()).item() < 1e-5
    for fewer in (bucket for bucket in BUCKETS if bucket < rows):
        assert torch.equal(in_order(product(x, weight, fewer, start)), whole[:fewer]), f"{fewer} rows"


@pytest.mark.parametrize(("n", "k"), REAL)
def test_readers_of_parts_have_the_bits_of_readers_of_a_chunk(n: int, k: int) -> None:
    x, weight = random(64, k).to(BF16), (random(n, k, seed=1) / k**0.5).to(BF16)
    left, whole = product(x, weight, 32), product(x, weight, 64)
    summed = torch.full((32, n), torch.nan)
    work = parts.add_parts_work(32, n, left.shape[1], left.shape[1] * n, n)
    launch(parts.add_parts, work, x=left, count=counted(32), y=summed)
    assert torch.equal(summed, whole[:32, 0])
    h, gain = random(64, n, seed=3), 1 + random(n, seed=4) / 8

    def normed(delta: Tensor) -> tuple[Tensor, Tensor]:
        rows, count, _ = delta.shape
        total, y = torch.full((rows, n), torch.nan), torch.full((rows, n), torch.nan, dtype=BF16)
        work = norm.add_rms_norm_work(rows, n, 1e-6, n, count * n, n, n, count)
        launch(
            norm.add_rms_norm, work, x=h[:rows].contiguous(), delta=delta, weight=gain, row=None, count=counted(rows),
            sum=total, y=y,
        )  # fmt: skip
        return total, y

    for few, chunk in zip(normed(left), normed(whole), strict=True):
        assert torch.equal(few, chunk[:32])


@pytest.mark.timeout(600)
def test_a_model_whose_linears_are_split_is_proved(commands: Commands, tmp_path: Path) -> None:
    """The compile holds rows of every bucket, steps, trees and prefill against each other, bit by bit."""
    sizes = {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 4096}
    sizes |= {"num_hidden_layers": 2, "max_position_embeddings": 1024}
    made = make_checkpoint(tmp_path / "checkpoint", "llama", dtype="bfloat16", **sizes)
    q_k_v = (32 + 2 * 8) * 128
    assert parts.splits(4096, 4096) > 1 and parts.splits(q_k_v, 4096) > 1
    flags = ("--profile", "bf16", "--device", "cuda-sm90", "-o", str(tmp_path / "bundle"), "-q")
    commands.output("compile.cli", str(made), *flags)
