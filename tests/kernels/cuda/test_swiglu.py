"""The Triton swiglu against float64, with rows of the pass that no one asked for and poison behind each row."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.cuda.interpreter import interpreted, run


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [1, 96, 1025])
def test_swiglu_is_silu_of_the_first_half_times_the_second(width: int, dtype: torch.dtype) -> None:
    module = interpreted("swiglu")
    stride, rows, count = 2 * width + 3, 4, 3
    x = torch.full((rows, stride), torch.nan)
    x[:, : 2 * width] = torch.randn(rows, 2 * width, generator=torch.Generator().manual_seed(width))
    y = torch.full((rows, width), torch.nan, dtype=dtype)
    run(
        module.swiglu,
        module.swiglu_work(rows, width, stride),
        x=x,
        count=torch.tensor([count], dtype=torch.int32),
        y=y,
    )
    gate, value = x[:count, : 2 * width].double().chunk(2, -1)
    wanted = torch.nn.functional.silu(gate) * value
    torch.testing.assert_close(
        y[:count].double(), wanted, rtol=1e-6 if dtype is torch.float32 else 2**-7, atol=1e-6
    )  # the interpreter cuts off where a GPU rounds
    assert y[count:].isnan().all()
