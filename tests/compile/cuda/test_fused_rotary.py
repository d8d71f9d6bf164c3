"""Where the product that makes q, k and v turns and writes them itself, and where it is launched as ever."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from tandem.compile.assembly import Launch, Operand
from tandem.compile.cuda.entries import Shape
from tandem.compile.cuda.programs import lower
from tandem.kernels import attention, kv_write, linear, rms_norm, rotary
from tandem.keys import Kind
from tests.compile.cuda.lowered import HEAD_DIM, Function, Inputs, Weights, composer, launches, names

# Two query heads, a key head and a value head of 16, out of the 64 columns of `wide`.
Q, K, V = slice(0, 32), slice(32, 48), slice(48, 64)
APART = ["linear", "rotary_kv_write", "attention_split", "attention_merge"]


def heads(x: Tensor) -> Tensor:
    return x.view(x.shape[0], -1, HEAD_DIM)


def turned(i: Inputs, x: Tensor) -> Tensor:
    return rotary(x, i.cos, i.sin, i.position)


def attended(i: Inputs, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """From heads that are not turned yet."""
    q, k = turned(i, q), turned(i, k)
    kv_write(k, v, i.k_cache, i.v_cache, i.lane, i.slot, i.block_table)
    where = (i.position, i.lane, i.prefix, i.ancestor, i.block_table)
    return attention(q, i.k_cache, i.v_cache, *where, 0.25, False)


def block(i: Inputs, w: Weights, bias: Tensor | None = None, parts: tuple[slice, slice, slice] = (Q, K, V)) -> Tensor:
    qkv = linear(rms_norm(i.x, w.vector, 1e-6), w.wide, bias)
    return attended(i, *(heads(qkv[:, part]) for part in parts))


def place(launch: Launch, name: str) -> tuple[Any, int]:
    value = launch.arguments[name]
    assert isinstance(value, Operand)
    return value.place, value.offset


@pytest.mark.parametrize("compute", ["bf16", "fp32"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 8, 32])
def test_a_product_turns_and_writes_its_heads(rows: int, bias: bool, compute: str) -> None:
    norm, first, split, _ = launches(lambda i, w: block(i, w, w.long if bias else None), rows, compute)
    assert first.kernel == "linear_rotary" and first.work is not None
    constants = dict(first.work.constants)
    sizes = {"HEADS": 2, "KV_HEADS": 1, "HALF": 8, "K": 32, "X_STRIDE": 32, "Y_STRIDE": 32}
    assert sizes.items() <= constants.items()
    assert constants["PAGE"] * (2 if compute == "bf16" else 4) == 2 * 64 * 2 * HEAD_DIM  # bytes of K's and V's planes
    assert place(first, "x") == place(norm, "y") and place(first, "y") == place(split, "q")
    assert [place(first, name) for name in ("weight", "cos", "sin", "k_cache", "v_cache")] == [
        *(("weights", 8192 * i) for i in (1, 4, 5)), ("kv", 0), ("kv", 2048)
    ]  # fmt: skip
    assert place(first, "bias") == ("weights", 8192 * 3) if bias else first.arguments["bias"] is None
    x, y = first.arguments["x"], first.arguments["y"]
    assert isinstance(x, Operand) and isinstance(y, Operand) and x.dtype == y.dtype == compute


def test_prefill_keeps_two_launches() -> None:
    assert names(launches(block, 64)) == ["rms_norm", "linear_chunk", "rotary_kv_write", "attention_chunk"]


def read_elsewhere(i: Inputs, w: Weights) -> Any:
    qkv = linear(i.x, w.wide, None)
    return attended(i, *(heads(qkv[:, part]) for part in (Q, K, V))), rms_norm(qkv, w.long, 1e-6)


def returned(i: Inputs, w: Weights) -> Any:
    qkv = linear(i.x, w.wide, None)
    return attended(i, *(heads(qkv[:, part]) for part in (Q, K, V))), qkv


def returned_in_part(i: Inputs, w: Weights) -> Any:
    qkv = linear(i.x, w.wide, None)
    return attended(i, *(heads(qkv[:, part]) for part in (Q, K, V))), qkv[:, V]


def values_from_elsewhere(i: Inputs, w: Weights) -> Tensor:
    qkv = linear(i.x, w.wide, None)
    return attended(i, heads(qkv[:, Q]), heads(qkv[:, K]), heads(i.z[:, :HEAD_DIM]))


ELSEWHERE: dict[str, Function] = {
    "values before keys": lambda i, w: block(i, w, parts=(Q, V, K)),
    "keys before queries": lambda i, w: block(i, w, parts=(slice(16, 48), slice(0, 16), V)),
    "one key as the value": lambda i, w: block(i, w, parts=(Q, K, K)),
    "not all columns": lambda i, w: block(i, w, parts=(slice(0, 16), slice(16, 32), slice(32, 48))),
    "read elsewhere": read_elsewhere,
    "returned": returned,
    "returned in part": returned_in_part,
    "values from elsewhere": values_from_elsewhere,
}


@pytest.mark.parametrize("case", ELSEWHERE)
def test_a_product_is_launched_once_where_it_is_not_all_and_only_that(case: str) -> None:
    found = [launch for launch in launches(ELSEWHERE[case]) if launch.kernel != "rms_norm"]
    assert names(found) == APART
    product, turning, *_ = found
    assert {place(turning, name)[0] for name in "qk"} == {place(product, "y")[0]}


@pytest.mark.parametrize(
    ("family", "a_layer"), [("llama", 8), ("smollm2", 8), ("qwen2", 8), ("mistral", 8), ("qwen3", 11)]
)
def test_launches_of_a_layer_in_every_family(tmp_path: Path, family: str, a_layer: int) -> None:
    """Norms of heads stand between product and rotation: Qwen3 keeps both, and has the two norms."""
    model = composer(tmp_path, family)
    layers, fused = model.spec.num_hidden_layers, a_layer == 8
    for kind in (Kind.EXTEND, Kind.VERIFY_TREE):
        for rows in (1, 32):
            found = names(list(lower(model, Shape((kind,), 256, rows)).launches))
            # Embedding and first norm before the layers; the last one ends in the norm of the head, which adds three.
            assert len(found) == 2 + a_layer * layers + 3
            assert found.count("linear_rotary") == layers * fused
            assert found.count("rotary_kv_write") == layers * (not fused)
    chunk = names(list(lower(model, Shape((Kind.EXTEND,), 0, 64)).launches))
    assert "linear_rotary" not in chunk and chunk.count("rotary_kv_write") == layers
