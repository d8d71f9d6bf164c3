"""What a part becomes for a GPU: which values are kept rounded, and which operators take their neighbours along."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tandem.compile.assembly import Operand
from tandem.errors import LoweringError
from tandem.kernels import (
    add_rms_norm,
    argmax_gap,
    attention,
    gather_rows,
    kv_write,
    linear,
    rms_norm,
    rotary,
    swiglu,
)
from tests.compile.cuda.lowered import (
    HEAD_DIM,
    HEADS,
    IO,
    Function,
    Inputs,
    Weights,
    argument,
    constant,
    launches,
    names,
)

EPS = 1e-6


def heads(x: Tensor, count: int = HEADS) -> Tensor:
    return x[:, : count * HEAD_DIM].view(x.shape[0], count, HEAD_DIM)


def attend(i: Inputs, q: Tensor, tree: bool = False) -> Tensor:
    where = (i.position, i.lane, i.prefix, i.ancestor, i.block_table)
    return attention(q, i.k_cache, i.v_cache, *where, 0.25, tree)


def write(i: Inputs, k: Tensor) -> None:
    kv_write(k, heads(i.z, 1), i.k_cache, i.v_cache, i.lane, i.slot, i.block_table)


def norm(i: Inputs, w: Weights) -> Tensor:
    return rms_norm(i.x, w.vector, EPS)


ROUNDED: dict[str, Function] = {
    "read by a product": lambda i, w: linear(norm(i, w), w.square, None),
    "read by two products": lambda i, w: (linear(norm(i, w), w.square, None), linear(norm(i, w), w.wide, None)),
    "read by a product, reshaped": lambda i, w: linear(norm(i, w).view(-1, 2, 16).reshape(-1, 32), w.square, None),
    "a query of attention": lambda i, w: attend(i, norm(i, w).view(-1, HEADS, HEAD_DIM)),
}
WHOLE: dict[str, Function] = {
    "returned": norm,
    "read by a product and returned": lambda i, w: ((y := norm(i, w)), linear(y, w.square, None)),
    "read by a product and a norm": lambda i, w: (
        (y := norm(i, w)), linear(y, w.square, None), add_rms_norm(y, i.z, w.vector, EPS)
    ),
    "added to": lambda i, w: add_rms_norm(norm(i, w), i.z, w.vector, EPS),
    "returned in another shape": lambda i, w: norm(i, w).view(-1, HEADS, HEAD_DIM),
}  # fmt: skip


@pytest.mark.parametrize("case", [*ROUNDED, *WHOLE])
def test_what_only_products_read_is_kept_as_they_round_it(case: str) -> None:
    function = (ROUNDED | WHOLE)[case]
    first = launches(function)[0]
    assert first.kernel == "rms_norm"
    y = argument(first, "y")
    assert y.dtype == ("bf16" if case in ROUNDED else "fp32")
    assert y.extent == 8 * 32 * (2 if case in ROUNDED else 4)
    assert argument(launches(function, compute="fp32")[0], "y").dtype == "fp32"


def test_products_and_attention_make_fp32_unless_a_product_reads_it() -> None:
    alone, (*_, fold) = launches(lambda i, w: linear(i.x, w.square, None)), launches(lambda i, w: attend(i, heads(i.x)))
    assert argument(alone[0], "y").dtype == argument(fold, "y").dtype == "fp32"
    *_, fold, product = launches(lambda i, w: linear(attend(i, heads(i.x)).reshape(-1, 32), w.square, None))
    assert argument(fold, "y").dtype == argument(product, "x").dtype == "bf16"
    assert argument(fold, "y").place is argument(product, "x").place


@pytest.mark.parametrize(("rows", "kernel"), [(8, "linear"), (32, "linear"), (64, "linear_chunk")])
def test_a_gate_goes_along_with_its_product(rows: int, kernel: str) -> None:
    (product,) = launches(lambda i, w: swiglu(linear(i.x, w.wide, None)), rows)
    assert product.kernel == kernel
    assert (constant(product, "GATED"), constant(product, "N"), constant(product, "K")) == (True, 32, 32)
    assert argument(product, "y").extent == rows * 32 * 4


def twice(i: Inputs, w: Weights) -> Any:
    both = linear(i.x, w.wide, None)
    return swiglu(both), both


@pytest.mark.parametrize(
    ("function", "kernels"),
    [
        (twice, ["linear", "swiglu"]),
        (lambda i, w: swiglu(linear(i.x, w.wide, w.long)), ["linear", "swiglu"]),
        (lambda i, w: swiglu(linear(i.x, w.wide, None).view(-1, 64)), ["linear", "swiglu"]),
        (lambda i, w: swiglu(i.x), ["swiglu"]),
    ],
    ids=["read twice", "with a bias", "through a view", "of an input"],
)
def test_a_gate_stands_alone_where_its_product_is_not_its_own(function: Function, kernels: list[str]) -> None:
    found = launches(function)
    assert names(found) == kernels
    if len(found) == 2:
        assert not constant(found[0], "GATED") and argument(found[0], "y").place is argument(found[1], "x").place


def test_the_last_norm_gathers_its_rows_itself() -> None:
    (last,) = launches(
        lambda i, w: add_rms_norm(gather_rows(i.x, i.output_row), gather_rows(i.z, i.output_row), w.vector, EPS)[1]
    )
    assert last.kernel == "add_rms_norm" and last.arguments["sum"] is None
    assert argument(last, "row").offset == IO.fields["output_row"].offset
    assert argument(last, "count").offset == 4  # outputs, not rows
    assert argument(last, "y").count == "outputs" and argument(last, "y").extent == 8 * 32 * 4


def gathered_and_read(i: Inputs, w: Weights) -> Any:
    h = gather_rows(i.x, i.output_row)
    return h, add_rms_norm(h, gather_rows(i.z, i.output_row), w.vector, EPS)[1]


def gathered_twice(i: Inputs, w: Weights) -> Any:
    h = gather_rows(i.x, i.output_row)
    return add_rms_norm(h, gather_rows(i.z, i.output_row), w.vector, EPS)[1], h


@pytest.mark.parametrize(
    ("function", "gathers"),
    [
        (gathered_and_read, 2),
        (gathered_twice, 2),
        (lambda i, w: add_rms_norm(gather_rows(i.x, i.output_row), gather_rows(gather_rows(i.z, i.output_row),
                                                                              i.output_row), w.vector, EPS)[1], 1),
        (lambda i, w: gather_rows(i.x, i.output_row), 1),
    ],
    ids=["first read twice", "and returned", "of gathered rows", "alone"],
)  # fmt: skip
def test_rows_that_somebody_else_reads_are_gathered_once_and_kept(function: Function, gathers: int) -> None:
    found = launches(function)
    assert names(found).count("gather_rows") == gathers
    if found[-1].kernel == "add_rms_norm" and gathers == 2:
        assert found[-1].arguments["row"] is None
        assert [argument(found[-1], name).place for name in ("x", "delta")] == [
            argument(launch, "y").place for launch in found[:2]
        ]


def test_a_norms_sum_is_written_where_somebody_reads_it() -> None:
    both = launches(lambda i, w: add_rms_norm(i.x, i.z, w.vector, EPS))
    assert isinstance(both[0].arguments["sum"], Operand)
    one = launches(lambda i, w: add_rms_norm(i.x, i.z, w.vector, EPS)[1])
    assert one[0].arguments["sum"] is None and one[0].arguments["row"] is None


def turned(i: Inputs, x: Tensor) -> Tensor:
    return rotary(x, i.cos, i.sin, i.position)


def whole(i: Inputs, w: Weights) -> Any:
    q, k = turned(i, heads(i.x)), turned(i, heads(i.z, 1))
    write(i, k)
    return attend(i, q)


def test_rotations_go_along_with_the_caches_write() -> None:
    write_, *rest = launches(whole)
    assert write_.kernel == "rotary_kv_write" and names(rest) == ["attention_split", "attention_merge"]
    assert (constant(write_, "HEADS"), constant(write_, "KV_HEADS"), constant(write_, "HALF")) == (2, 1, 8)
    assert argument(write_, "y").place is argument(rest[0], "q").place
    assert argument(write_, "y").dtype == "bf16" and argument(launches(whole, compute="fp32")[0], "y").dtype == "fp32"
    assert (argument(write_, "k_cache").offset, argument(write_, "v_cache").offset) == (0, 2048)


def query_kept(i: Inputs, w: Weights) -> Any:
    q = turned(i, heads(i.x))
    write(i, turned(i, heads(i.z, 1)))
    return attend(i, q), q


def keys_kept(i: Inputs, w: Weights) -> Any:
    q, k = turned(i, heads(i.x)), turned(i, heads(i.z, 1))
    write(i, k)
    return attend(i, q), k


def other_angles(i: Inputs, w: Weights) -> Any:
    q, k = rotary(heads(i.x), i.sin, i.cos, i.position), turned(i, heads(i.z, 1))
    write(i, k)
    return attend(i, q)


def two_queries(i: Inputs, w: Weights) -> Any:
    one, two, k = turned(i, heads(i.x)), turned(i, heads(i.z)), turned(i, heads(i.z, 1))
    write(i, k)
    return attend(i, one), attend(i, two)


def no_query(i: Inputs, w: Weights) -> Any:
    write(i, turned(i, heads(i.z, 1)))
    return attend(i, heads(i.x))


@pytest.mark.parametrize(
    ("function", "rotations"), [(query_kept, 2), (keys_kept, 2), (other_angles, 2), (two_queries, 3), (no_query, 1)]
)
def test_rotations_stand_alone_where_it_is_not_one_query_beside_its_keys(function: Function, rotations: int) -> None:
    found = names(launches(function))
    assert found.count("rotary") == rotations and found.count("kv_write") == 1
    assert "rotary_kv_write" not in found


def test_a_write_comes_before_the_attention_that_reads_it() -> None:
    for function in (whole, query_kept, keys_kept, other_angles, two_queries, no_query):
        found = names(launches(function))
        write_ = next(i for i, name in enumerate(found) if name.endswith("kv_write"))
        assert write_ < found.index("attention_split")


@pytest.mark.parametrize(
    ("rows", "tree", "kernels"),
    [
        (8, False, ["attention_split", "attention_merge"]),
        (32, True, ["attention_split", "attention_tail"]),
        (64, False, ["attention_chunk"]),
    ],
)
def test_attention_by_rows_and_shape(rows: int, tree: bool, kernels: list[str]) -> None:
    found = launches(lambda i, w: attend(i, heads(i.x), tree), rows)
    assert names(found) == kernels
    if len(found) == 2:
        split, fold = found
        # 256 tokens and 32 rows of a verify behind them: three groups of 128.
        assert constant(split, "NUM_GROUPS") == 3
        sizes = [argument(split, name).extent for name in ("m", "l", "acc")]
        assert sizes == [rows * HEADS * 3 * 4, rows * HEADS * 3 * 4, rows * HEADS * 3 * HEAD_DIM * 4]
        assert [argument(split, name).place for name in ("m", "l", "acc")] == [
            argument(fold, name).place for name in ("m", "l", "acc")
        ]


def test_choosing_keeps_whole_numbers_and_gaps_apart() -> None:
    partial, last = launches(lambda i, w: argmax_gap(linear(gather_rows(i.x, i.output_row), w.square, None)))[-2:]
    assert (partial.kernel, last.kernel) == ("argmax_partial", "argmax_gap")
    types = [argument(last, name).dtype for name in ("value", "second", "index", "argmax", "gap")]
    assert types == ["fp32", "fp32", "int32", "int32", "fp32"]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda i, w: i.x.softmax(-1), r"operator aten\.softmax.* \(node softmax\) is neither a view nor pointwise"),
        (lambda i, w: torch.sigmoid(i.x) @ w.square, r"operator aten\.matmul.* \(node matmul\) is neither"),
        (lambda i, w: (i.x + i.z).sum(-1), r"operator aten\.sum.* \(node sum_1\) is neither"),
        (lambda i, w: i.x.chunk(2, 1)[0], r"no CUDA lowering for operator aten\.chunk.* \(node chunk\); add a rule"),
        (
            lambda i, w: linear(w.wide.float(), w.wide, None),
            r"operator aten\.to.* \(node to\) is made of weights alone",
        ),
        (lambda i, w: linear(i.x, i.x, None), r"tandem\.linear.*x is no weight"),
        (lambda i, w: rms_norm(i.x, i.x[:, 0], EPS), r"aten\.select|is no weight"),
        (lambda i, w: rms_norm(w.long.view(2, 32), w.vector, EPS), r"holds no rows of the pass"),
    ],
)
def test_what_has_no_lowering_is_named(function: Function, message: str) -> None:
    with pytest.raises(LoweringError, match=message):
        launches(function)
