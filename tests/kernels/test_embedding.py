"""Embedding rows read back from packed panels: the round trip of `tandem.compile.cpu.panels.pack`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from tandem import kernels
from tandem.compile.cpu.panels import pack, stored_shape, unpack
from tandem.compile.profile import Format
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
from tests.kernels.layer import spoiled
from tests.kernels.products import int8_weights

TABLES: tuple[Format, ...] = ("fp32", "bf16", "int8")


def embed(
    token: np.ndarray, table: np.ndarray, width: int, form: Format, path: Path | None = None, threads: int = 1
) -> np.ndarray:
    """`table` are panels of rows of `width`."""
    count = len(token)
    y = canvas(count, width + 3)
    call(
        path or library(), f"embedding_{form}", threads, count=count, token=token, weight=table, y=y,
        y_stride=width + 3, k=width,
    )  # fmt: skip
    return written(y, count, width)


@pytest.mark.parametrize("form", TABLES)
@pytest.mark.parametrize("shape", ((1, 1), (31, 7), (32, 16), (33, 17), (97, 5), (300, 33)))
@pytest.mark.parametrize("level", LEVELS)
def test_every_row_comes_back_as_it_was_rounded(level: str, shape: tuple[int, int], form: Format) -> None:
    weight = torch.from_numpy(normal(*shape))
    table = pack(weight, form)
    assert table.shape == stored_shape(shape, form)
    token = np.random.default_rng(0).permutation(shape[0]).astype(np.int32)
    found, rounded = embed(token, table, shape[1], form, library(level), 2), unpack(table, form, shape)
    assert_bits(found, rounded.numpy()[token])
    assert_bits(found, kernels.embedding(torch.from_numpy(token), rounded).numpy())
    assert_bits(embed(token, spoiled(weight, form), shape[1], form, library(level)), found)


def test_int8_rows_are_whole_numbers_times_their_scale() -> None:
    table = pack(torch.from_numpy(normal(70, 50)), "int8")
    whole, scale = int8_weights(table)
    wanted = whole.astype(np.float32) * scale[:, None]
    assert_bits(embed(np.arange(70, dtype=np.int32), table, 50, "int8"), wanted[:70, :50])


@pytest.mark.parametrize("form", TABLES)
def test_rows_that_fill_the_last_panel_are_zero(form: Format) -> None:
    table = pack(torch.from_numpy(normal(70, 9)), form)
    fill = np.arange(70, 96, dtype=np.int32)
    assert_bits(embed(fill, table, 9, form), np.zeros((26, 9), np.float32))


@pytest.mark.parametrize("form", TABLES)
def test_one_arithmetic(form: Format) -> None:
    table = pack(torch.from_numpy(normal(77, 65)), form)
    token = np.random.default_rng(1).integers(0, 77, ROWS, dtype=np.int32)

    def rows_of(ids: Sequence[int], path: Path, threads: int) -> np.ndarray:
        return embed(token[ids], table, 65, form, path, threads)

    assert_one_arithmetic(rows_of)
