"""The Triton embedding: exact rows of the table, and nothing for tokens that no one asked about."""

from __future__ import annotations

import pytest
import torch

from tandem.kernels.cuda.embedding import embedding_work
from tests.kernels.cuda.interpreter import interpreted, run


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [1, 96, 1025])
def test_embedding_is_a_row_of_the_table_per_token(width: int, dtype: torch.dtype) -> None:
    weight = torch.randn(7, width, generator=torch.Generator().manual_seed(width)).to(dtype)
    token = torch.tensor([6, 0, 6, 1 << 30], dtype=torch.int32)
    y = torch.full((4, width), torch.nan)
    run(
        interpreted("embedding").embedding,
        embedding_work(4, width),
        token=token,
        weight=weight,
        count=torch.tensor([3], dtype=torch.int32),
        y=y,
    )
    assert torch.equal(y[:3], weight[[6, 0, 6]].float())
    assert y[3:].isnan().all()
