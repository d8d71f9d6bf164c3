"""The operators that have one formula, held against numpy in float64 and hand-worked values."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tandem import kernels

FLOATS = (torch.float32, torch.float64)
TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-14}


def normal(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def close(found: torch.Tensor, wanted: np.ndarray, dtype: torch.dtype) -> None:
    assert found.dtype == dtype
    np.testing.assert_allclose(found.numpy(), wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_embedding_takes_rows_and_widens_bfloat16() -> None:
    weight = normal(7, 5, dtype=torch.bfloat16)
    found = kernels.embedding(int32(6, 0, 6), weight)
    assert found.dtype == torch.float32
    assert torch.equal(found, weight.float()[[6, 0, 6]])
    assert kernels.embedding(int32(1), weight.double()).dtype == torch.float64


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("bias", (False, True))
def test_linear(dtype: torch.dtype, bias: bool) -> None:
    x, weight = normal(5, 33, dtype=dtype), normal(7, 33, dtype=dtype, seed=1)
    b = normal(7, dtype=dtype, seed=2) if bias else None
    wanted = x.double().numpy() @ weight.double().numpy().T + (0.0 if b is None else b.double().numpy())
    found = kernels.linear(x, weight, b)
    assert found.dtype == dtype
    np.testing.assert_allclose(found.numpy(), wanted, atol=10 * TOLERANCE[dtype])


def test_linear_takes_inputs_as_its_weight_is_stored() -> None:
    """A bf16 weight meets inputs rounded to bf16, ties to even; an fp32 weight meets them as they are."""
    x = torch.tensor([[1.0 + 2.0**-20], [1.0 + 2.0**-8], [1.0 + 3 * 2.0**-8]])
    weight = torch.ones(1, 1)
    assert kernels.linear(x, weight, None).tolist() == x.tolist()
    for wide in (x, x.double()):
        assert kernels.linear(wide, weight.bfloat16(), None).tolist() == [[1.0], [1.0], [1.0 + 2.0**-6]]


@pytest.mark.parametrize("dtype", FLOATS)
def test_rms_norm_over_the_last_dimension(dtype: torch.dtype) -> None:
    x, weight = normal(3, 4, 10, dtype=dtype), normal(10, dtype=dtype, seed=1)
    wide = x.double().numpy()
    wanted = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 0.25) * weight.double().numpy()
    close(kernels.rms_norm(x, weight, 0.25), wanted, dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_add_rms_norm_gives_the_sum_and_its_norm(dtype: torch.dtype) -> None:
    x, delta, weight = normal(3, 10, dtype=dtype), normal(3, 10, dtype=dtype, seed=1), normal(10, dtype=dtype, seed=2)
    total, normed = kernels.add_rms_norm(x, delta, weight, 1e-5)
    assert torch.equal(total, x + delta)
    assert torch.equal(normed, kernels.rms_norm(x + delta, weight, 1e-5))


@pytest.mark.parametrize("dtype", FLOATS)
def test_rotary_turns_pairs_of_complex_numbers_and_leaves_the_rest(dtype: torch.dtype) -> None:
    x, position = normal(4, 3, 10, dtype=dtype), int32(0, 8, 3, 3)
    angle = normal(9, 3)
    found = kernels.rotary(x, angle.cos().to(dtype), angle.sin().to(dtype), position)
    wide = x.double().numpy()
    turned = (wide[..., :3] + 1j * wide[..., 3:6]) * np.exp(1j * angle.numpy()[position.numpy()])[:, None]
    wanted = np.concatenate((turned.real, turned.imag, wide[..., 6:]), axis=-1)
    close(found, wanted, dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_swiglu(dtype: torch.dtype) -> None:
    x = normal(3, 14, dtype=dtype)
    gate, up = x.double().numpy()[:, :7], x.double().numpy()[:, 7:]
    close(kernels.swiglu(x), gate / (1 + np.exp(-gate)) * up, dtype)


def test_gather_rows() -> None:
    x = normal(4, 3)
    assert torch.equal(kernels.gather_rows(x, int32(3, 1, 1)), x[[3, 1, 1]])


@given(st.lists(st.lists(st.integers(-3, 3), min_size=5, max_size=5), min_size=1, max_size=4))
def test_argmax_gap_gives_the_lowest_of_equal_ids(rows: list[list[int]]) -> None:
    argmax, gap = kernels.argmax_gap(torch.tensor(rows, dtype=torch.float32))
    assert argmax.dtype == torch.int32
    assert argmax.tolist() == [row.index(max(row)) for row in rows]
    assert gap.tolist() == [sorted(row)[-1] - sorted(row)[-2] for row in rows]


def _calls() -> dict[str, tuple[object, ...]]:
    cache = (torch.zeros(3, 2, 6, 4), torch.zeros(3, 2, 4, 6))
    table, ancestor = int32(2, 0, 1)[None], torch.zeros(2, 32, dtype=torch.int32)
    rows, heads = int32(0, 0), normal(2, 4, 6, dtype=torch.float32)
    flat, pair, past = heads[:, 0], heads[:, :2, 0], (int32(0), rows, int32(3, 4), int32(-1, 0))
    tail, raw, state = torch.zeros(2, 3, 6), torch.zeros(2, 6), torch.zeros(2, 2, 6, 6)
    delta, factors = (heads[:, :1], heads[:, 1:2], heads[:, 2:], pair, pair), (raw[:, None], torch.zeros(2, 2, 6))
    factors, moves = (*factors, torch.zeros(2, 2)), (int32(0), int32(0), int32(1), int32(3))
    block, book = (int32(0, 1), int32(0, 0)), normal(5, 3, dtype=torch.float32)
    return {
        "embedding": (int32(1), normal(3, 4, dtype=torch.bfloat16)),
        "linear": (heads[:, 0], normal(5, 6), None),
        "rms_norm": (heads, normal(6, dtype=torch.float32), 1e-6),
        "add_rms_norm": (heads[:, 0], heads[:, 1], normal(6, dtype=torch.float32), 1e-6),
        "rotary": (heads, normal(3, 3), normal(3, 3), rows),
        "kv_write": (heads[:, :2], heads[:, 2:], *cache, rows, int32(0, 1), table),
        "kv_move": (*cache, int32(0), int32(5), int32(4), table),
        "attention": (heads, *cache, int32(0, 1), rows, int32(1, 2), ancestor, table, 0.5, False),
        "swiglu": (heads[:, 0],),
        "sigmoid_gate": (flat, flat),
        "gated_rms_norm": (heads, heads, normal(6, dtype=torch.float32), 1e-6, True),
        "causal_conv": (flat, normal(24, dtype=torch.float32), tail, *past),
        "conv_verify": (flat, normal(24, dtype=torch.float32), tail, *past, raw, True),
        "conv_commit": (raw, tail, *moves),
        "delta_gates": (pair, pair, torch.zeros(2), torch.zeros(2)),
        "delta_rule": (*delta, state, *past),
        "delta_verify": (*delta, state, *past, *factors, True),
        "delta_commit": (*factors, state, *moves),
        "gather_rows": (heads[:, 0], int32(1)),
        "scatter_rows": (heads[:, 0], torch.zeros(4, 6), int32(3, -1)),
        "scatter_sum": (heads[:, 0], heads[:, 1], torch.zeros(4, 9)[:, 2:8], int32(3, -1)),
        "argmax_gap": (heads[:, 0],),
        "top_k": (heads[:, 0], 2),
        "block_attention": (heads, *cache, block[0], rows, block[1], table, 0.5, 2, 4),
        "block_conv": (flat, normal(2, 6, dtype=torch.float32), normal(12, dtype=torch.float32), *block, 2),
        "lattice_scores": (int32(1, 0)[None], flat[:1, :2], flat[:1, :3], rows, int32(1), *block, book, book),
        "lattice_walk": (heads[:1, :2, :2].contiguous(), int32(1), *block),
    }


def test_every_operator_is_called_below() -> None:
    assert set(_calls()) == set(kernels.__all__)


@pytest.mark.parametrize("name", kernels.__all__)
def test_registration_is_true(name: str) -> None:
    """Shapes, dtypes, mutation and aliasing are what the schema and the fake say, so that tracing tells the truth."""
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(getattr(torch.ops.tandem, name).default, _calls()[name], test_utils=tests)
