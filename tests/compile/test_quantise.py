"""Weights in kernel layout, against the layout worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tandem.compile.quantise import pack, packed_shape, stored_dtype

FP32, BF16 = torch.float32, torch.bfloat16


def test_a_matrix_lies_in_panels_of_32_outputs() -> None:
    weight = torch.arange(40 * 3, dtype=FP32).view(40, 3)  # weight[n, k] = 3 n + k
    packed = pack(weight, FP32)
    assert packed.shape == packed_shape((40, 3)) == (2, 3, 32) and packed.dtype == np.float32
    assert packed[0, 0].tolist() == [3 * n for n in range(32)]
    assert packed[0, 2].tolist() == [3 * n + 2 for n in range(32)]
    assert packed[1, 1].tolist() == [3 * n + 1 for n in range(32, 40)] + [0] * 24


def test_a_bf16_panel_row_holds_outputs_16_apart_as_neighbours() -> None:
    weight = torch.arange(33, dtype=FP32).view(33, 1)
    packed = pack(weight, BF16)
    assert packed.shape == (2, 1, 32) and packed.dtype == np.uint16
    values = (packed.astype(np.uint32) << 16).view(np.float32)
    assert values[0, 0].tolist() == [n for pair in zip(range(16), range(16, 32), strict=True) for n in pair]
    assert values[1, 0].tolist() == [32] + [0] * 31


@pytest.mark.parametrize(
    ("value", "bits"),
    [
        (1.0, 0x3F80),
        (-2.5, 0xC020),
        (1.0 + 2**-8, 0x3F80),  # a tie goes to the even neighbour, below
        (1.0 + 3 * 2**-8, 0x3F82),  # and above
        (1.0 + 2**-8 + 2**-20, 0x3F81),
        (3.4e38, 0x7F80),
        (1e-40, 0x0001),  # a subnormal stays one
    ],
)
def test_values_are_rounded_to_the_nearest_bf16(value: float, bits: int) -> None:
    packed = pack(torch.full((1, 1), value, dtype=FP32), BF16)
    assert packed[0, 0].tolist() == [bits] + [0] * 31


@pytest.mark.parametrize("matrix", [FP32, BF16])
def test_vectors_stay_fp32_in_their_own_order(matrix: torch.dtype) -> None:
    vector = torch.tensor([1.0, 1.0 + 2**-20, -3.0])
    assert stored_dtype((3,), matrix) == FP32 and packed_shape((3,)) == (3,)
    assert pack(vector, matrix).tolist() == vector.tolist()
    assert pack(vector.to(BF16), matrix).dtype == np.float32


def test_half_precision_checkpoints_are_widened_exactly() -> None:
    weight = torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
    for dtype in (torch.float16, BF16):
        narrow = weight.to(dtype)
        assert (pack(narrow, FP32) == pack(narrow.float(), FP32)).all()
    assert (pack(weight.to(BF16), BF16) == pack(weight, BF16)).all()
