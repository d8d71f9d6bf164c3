"""Rules: each operator's nodes compute its definition in PyTorch; what has no rule, or no such rule, is named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tandem.compile.trace import ROWS
from tandem.errors import LoweringError
from tandem.kernels import (
    add_rms_norm,
    argmax_gap,
    attention,
    embedding,
    gather_rows,
    kv_write,
    linear,
    rms_norm,
    rotary,
    swiglu,
)
from tests.compile.onnx.lowered import lower

GENERATOR = torch.Generator().manual_seed(5)
KV_HEADS, EACH, HEAD_DIM, PAST = 2, 3, 10, 6


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=GENERATOR)


def ids(rows: int, limit: int) -> Tensor:
    return torch.randint(limit, (rows,), generator=GENERATOR, dtype=torch.int32)


TABLE, BIAS, SCALE, WEIGHT, COS, SIN = noise(30, 12), noise(30), noise(12), noise(6), noise(50, 3), noise(50, 3)

Case = tuple[Callable[..., Any], Callable[[int], Sequence[Tensor]]]
CASES: dict[str, Case] = {
    "embedding": (embedding, lambda rows: (ids(rows, 30), TABLE)),
    "linear": (lambda x, w: linear(x, w, None), lambda rows: (noise(rows, 12), TABLE)),
    "linear with bias": (linear, lambda rows: (noise(rows, 12), TABLE, BIAS)),
    "rms_norm": (lambda x, w: rms_norm(x, w, 1e-5), lambda rows: (noise(rows, 12), SCALE)),
    "rms_norm of heads": (lambda x, w: rms_norm(x.view(-1, 2, 6), w, 0.5), lambda rows: (noise(rows, 12), WEIGHT)),
    "add_rms_norm": (
        lambda x, delta, w: add_rms_norm(x, delta, w, 1e-5),
        lambda rows: (noise(rows, 12), noise(rows, 12), SCALE),
    ),
    "rotary": (rotary, lambda rows: (noise(rows, 4, 6), COS, SIN, ids(rows, 50))),
    "rotary of some dimensions": (rotary, lambda rows: (noise(rows, 4, 9), COS, SIN, ids(rows, 50))),
    "swiglu": (swiglu, lambda rows: (4 * noise(rows, 24),)),
    "gather_rows": (gather_rows, lambda rows: (noise(rows, 12), ids(rows, rows))),
    "slices and glue": (
        lambda x: (x[:, :4] * x[:, 4:-4] + x[:, -4:]).reshape(-1, 2, 2),
        lambda rows: (noise(rows, 12),),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_nodes_compute_the_definition(name: str) -> None:
    function, inputs = CASES[name]
    lowered = lower(function, inputs(ROWS))
    for rows in (1, 4, ROWS):
        given = inputs(rows)
        wanted = function(*given)
        for y, found in zip((wanted,) if isinstance(wanted, Tensor) else wanted, lowered(*given), strict=True):
            np.testing.assert_allclose(found, y.numpy(), rtol=1e-5, atol=1e-5)


def test_a_bf16_weight_takes_rounded_inputs() -> None:
    x, weight = noise(ROWS, 12), TABLE.bfloat16()
    (found,) = lower(linear, (x, TABLE, BIAS), bf16=["x_1"])(x, weight.float(), BIAS)
    np.testing.assert_allclose(found, linear(x, weight, BIAS).numpy(), rtol=1e-5, atol=1e-5)
    assert np.abs(found - linear(x, weight.float(), BIAS).numpy()).max() > 1e-3


def attended(q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, *rest: Tensor) -> Tensor:
    position, lane, slot, prefix, ancestor, block_table = rest
    kv_write(k, v, k_cache, v_cache, lane, slot, block_table)
    return attention(q, k_cache, v_cache, position, lane, prefix, ancestor, block_table, 0.3, False)


def inputs_of_attention(rows: int, page_tokens: int, cache: torch.dtype) -> list[Tensor]:
    """Rows behind PAST tokens of one lane, in one page."""
    position = torch.arange(PAST, PAST + rows, dtype=torch.int32)
    lane, block_table = torch.zeros_like(position), torch.zeros(1, 1, dtype=torch.int32)
    new = (noise(rows, heads, HEAD_DIM) for heads in (KV_HEADS * EACH, KV_HEADS, KV_HEADS))
    caches = (
        noise(1, KV_HEADS, HEAD_DIM, page_tokens).to(cache),
        noise(1, KV_HEADS, page_tokens, HEAD_DIM).to(cache),
    )
    return [*new, *caches, position, lane, position, position, torch.zeros(rows, 32, dtype=torch.int32), block_table]


@pytest.mark.parametrize("cache", [torch.float32, torch.bfloat16])
def test_attention_appends_to_a_dense_cache_and_sees_all_of_it(cache: torch.dtype) -> None:
    lowered = lower(attended, inputs_of_attention(ROWS, 64, cache))
    for rows in (1, 4):
        q, k, v, k_cache, v_cache, position, *rest = inputs_of_attention(rows, PAST + rows, cache)
        past = k_cache.transpose(2, 3)[:, :, :PAST].float(), v_cache[:, :, :PAST].float()
        slots = torch.arange(PAST + rows, dtype=torch.int32)[None]
        mixed, keys, values = lowered(q, k, v, *past, position, *rest[:-1], slots)

        wanted = attended(q, k, v, k_cache, v_cache, position, *rest)  # writes into the caches
        np.testing.assert_allclose(mixed, wanted.numpy(), rtol=1e-5, atol=1e-5)
        assert np.array_equal(keys, k_cache.transpose(2, 3).float().numpy())
        assert np.array_equal(values, v_cache.float().numpy())


def test_only_what_the_wanted_outputs_need_is_lowered() -> None:
    def head(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        logits = linear(x, weight, None)
        return logits, *argmax_gap(logits)

    x = noise(ROWS, 12)
    (logits,) = lower(head, (x, TABLE), outputs=1)(x, TABLE)
    np.testing.assert_allclose(logits, (x @ TABLE.T).numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: torch.sin(x), r"no ONNX lowering for operator aten\.sin\.default \(node sin\); add a rule"),
        (lambda x: argmax_gap(x)[1], r"no ONNX lowering for operator tandem\.argmax_gap\.default"),
        (lambda x: torch.add(x, x, alpha=2), r"aten\.add\.Tensor \(node add\): alpha has no lowering"),
        (lambda x: x.view(12, -1), r"a view from \(13, 12\) to \(12, 13\) mixes rows"),
        (lambda x: x[1:], r"only plain slices of a row's columns"),
        (lambda x: x[:, ::2], r"only plain slices of a row's columns"),
    ],
)
def test_what_has_no_lowering_is_named(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(LoweringError, match=message):
        lower(function, (noise(ROWS, 12),))


def test_a_tree_has_no_place_in_a_plain_step() -> None:
    def of_a_tree(q: Tensor, k_cache: Tensor, v_cache: Tensor, *rest: Tensor) -> Tensor:
        return attention(q, k_cache, v_cache, *rest, 0.3, True)

    q, _, _, k_cache, v_cache, position, lane, _, *rest = inputs_of_attention(ROWS, 64, torch.float32)
    with pytest.raises(LoweringError, match="a tree has no place"):
        lower(of_a_tree, (q, k_cache, v_cache, position, lane, *rest))
