"""Embedding rows read back from packed panels: the round trip of `tandem.compile.quantise.pack`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from tandem import kernels
from tandem.compile.quantise import pack, packed_shape
from tests.kernels.harness import (
    LEVELS,
    ROWS,
    assert_bits,
    assert_one_arithmetic,
    call,
    canvas,
    library,
    normal,
    written,
)

DTYPES = {torch.float32: "embedding_fp32", torch.bfloat16: "embedding_bf16"}


def embed(
    token: np.ndarray, table: np.ndarray, dtype: torch.dtype, path: Path | None = None, threads: int = 1
) -> np.ndarray:
    """`table` are panels [ceil(V / 32), H, 32]."""
    count, width = len(token), table.shape[1]
    y = canvas(count, width + 3)
    call(
        path or library(),
        DTYPES[dtype],
        threads,
        count=count,
        token=token,
        weight=table,
        y=y,
        y_stride=width + 3,
        k=width,
    )
    return written(y, count, width)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", ((1, 1), (31, 7), (32, 16), (33, 17), (97, 5), (300, 33)))
@pytest.mark.parametrize("level", LEVELS)
def test_every_row_comes_back_as_it_was_rounded(level: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    weight = torch.from_numpy(normal(*shape))
    table = pack(weight, dtype)
    assert table.shape == packed_shape(shape)
    token = np.random.default_rng(0).permutation(shape[0]).astype(np.int32)
    found = embed(token, table, dtype, library(level), 2)
    assert_bits(found, weight.to(dtype).float().numpy()[token])
    assert_bits(found, kernels.embedding(torch.from_numpy(token), weight.to(dtype)).numpy())


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_that_fill_the_last_panel_are_zero(dtype: torch.dtype) -> None:
    table = pack(torch.from_numpy(normal(70, 9)), dtype)
    fill = np.arange(70, 96, dtype=np.int32)
    assert_bits(embed(fill, table, dtype), np.zeros((26, 9), np.float32))


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_arithmetic(dtype: torch.dtype) -> None:
    table = pack(torch.from_numpy(normal(77, 65)), dtype)
    token = np.random.default_rng(1).integers(0, 77, ROWS, dtype=np.int32)

    def rows_of(ids: Sequence[int], path: Path, threads: int) -> np.ndarray:
        return embed(token[ids], table, dtype, path, threads)

    assert_one_arithmetic(rows_of)
