"""The product that turns and writes by itself, on the GPU: the bits of two launches, of a step and of prefill."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
import torch

from tests.gpu.launching import launch
from tests.kernels.cuda import turning
from tests.kernels.cuda.turning import BF16, FP32, Case, Heads, apart, assert_same, fused


@pytest.fixture(autouse=True)
def _on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(module: str) -> ModuleType:
        return importlib.import_module(f"tandem.kernels.cuda.{module}")

    monkeypatch.setattr(turning, "interpreted", compiled)
    monkeypatch.setattr(turning, "run", launch)


@pytest.mark.parametrize(
    ("shape", "dtype", "bias", "pad"),
    [
        (Heads(24, 4, 128, 5120), BF16, False, 0),
        (Heads(9, 3, 32, 576), BF16, False, 0),
        (Heads(9, 3, 32, 576), FP32, False, 0),
        (Heads(14, 2, 32, 896), BF16, True, 0),
        (Heads(8, 2, 48, 512), BF16, True, 8),
        (Heads(2, 1, 10, 50), BF16, True, 3),
        (Heads(6, 3, 4, 40), FP32, True, 3),
    ],
)
def test_bits_are_those_of_two_launches_in_every_bucket_and_of_prefill(
    shape: Heads, dtype: torch.dtype, bias: bool, pad: int
) -> None:
    for bucket, count in ((1, 1), (2, 2), (4, 3), (8, 8), (16, 13), (24, 24), (32, 32)):
        case = Case(shape, count, dtype, bias, pad=pad)
        y, memory = fused(case, bucket)
        assert_same((y, memory), apart(case, bucket))
        chunk_y, chunk_memory = apart(case, 64)
        assert_same((y[:count], memory), (chunk_y[:count], chunk_memory))
