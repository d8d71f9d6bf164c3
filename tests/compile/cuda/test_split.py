"""Linears whose K is split: who takes parts as they are, who gets a sum, and that no bucket splits differently."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tandem.compile.assembly import Launch, Operand
from tandem.compile.cuda import products
from tandem.compile.cuda.entries import Shape
from tandem.compile.cuda.programs import lower
from tandem.compile.trace import export_part
from tandem.kernels import add_rms_norm, gather_rows, linear, rms_norm, swiglu
from tandem.keys import Kind
from tests.compile.cuda.lowered import (
    Function,
    Inputs,
    Weights,
    Wrapped,
    argument,
    composer,
    constant,
    example,
    launches,
    lowering,
    names,
    operands,
)

EPS, PARTS = 1e-6, 3
EXTEND, TREE = (Kind.EXTEND,), (Kind.VERIFY_TREE,)


@pytest.fixture(autouse=True)
def _all_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "splits", lambda n, k: PARTS)


def residual(i: Inputs, w: Weights) -> Any:
    return add_rms_norm(i.z, linear(i.x, w.square, None), w.vector, EPS)


@pytest.mark.parametrize("rows", [1, 8, 32])
def test_a_norm_takes_the_parts_of_its_delta(rows: int) -> None:
    product, norm = launches(residual, rows)
    assert (product.kernel, norm.kernel) == ("linear", "add_rms_norm")
    assert product.work is not None and product.work.grid[1] == PARTS
    assert (constant(product, "SPLIT"), constant(product, "Y_STRIDE")) == (PARTS, PARTS * 32)
    assert (constant(norm, "PARTS"), constant(norm, "DELTA_STRIDE"), constant(norm, "X_STRIDE")) == (PARTS, 96, 32)
    assert argument(product, "y") is argument(norm, "delta")
    assert argument(norm, "delta").extent == rows * PARTS * 32 * 4


def test_a_chunk_has_no_parts_though_it_walks_them() -> None:
    product, norm = launches(residual, 64)
    assert (product.kernel, norm.kernel) == ("linear_chunk", "add_rms_norm")
    assert product.work is not None and product.work.grid[1] == 1
    assert (constant(product, "SPLIT"), constant(product, "Y_STRIDE")) == (PARTS, 32)
    assert (constant(norm, "PARTS"), constant(norm, "DELTA_STRIDE")) == (1, 32)
    assert argument(norm, "delta").extent == 64 * 32 * 4


def test_a_norm_that_gathers_takes_parts_too() -> None:
    def last(i: Inputs, w: Weights) -> Any:
        delta = linear(i.x, w.square, None)
        return add_rms_norm(gather_rows(i.z, i.output_row), gather_rows(delta, i.output_row), w.vector, EPS)[1]

    product, norm = launches(last)
    assert (product.kernel, norm.kernel) == ("linear", "add_rms_norm")
    assert isinstance(norm.arguments["row"], Operand) and constant(norm, "PARTS") == PARTS


@pytest.mark.parametrize("heads", [1, 2])
def test_a_norm_takes_the_parts_of_a_product_whose_columns_are_shown_whole(heads: int) -> None:
    def normed(i: Inputs, w: Weights) -> Any:
        weight = w.square if heads == 1 else w.wide
        return rms_norm(linear(i.x, weight, None).view(-1, heads, 32), w.vector, EPS)

    product, norm = launches(normed)
    assert names([product, norm]) == ["linear", "rms_norm"] and argument(norm, "x") is argument(product, "y")
    assert (constant(norm, "PARTS"), constant(norm, "X_STRIDE")) == (PARTS, PARTS * heads * 32)
    assert (constant(norm, "GROUPS"), constant(norm, "WIDTH")) == (heads, 32)
    _product, whole = launches(normed, 64)
    assert (constant(whole, "PARTS"), constant(whole, "X_STRIDE")) == (1, heads * 32)


OTHERS: dict[str, tuple[Function, list[str]]] = {
    "a product": (lambda i, w: residual(i._replace(x=linear(i.x, w.square, None)), w), ["linear", "add_rms_norm"]),
    "a gate": (lambda i, w: swiglu(linear(i.x, w.wide, w.long)), ["swiglu"]),
    "a gather": (lambda i, w: gather_rows(linear(i.x, w.square, None), i.output_row), ["gather_rows"]),
    "columns": (lambda i, w: rms_norm(linear(i.x, w.wide, None)[:, 32:], w.vector, EPS), ["rms_norm"]),
    "the residual": (lambda i, w: add_rms_norm(linear(i.x, w.square, None), i.z, w.vector, EPS), ["add_rms_norm"]),
}


@pytest.mark.parametrize("reader", OTHERS)
def test_other_readers_get_a_sum(reader: str) -> None:
    function, rest = OTHERS[reader]
    product, total, *others = launches(function)
    assert names([product, total]) == ["linear", "add_parts"] and names(others) == rest
    assert argument(product, "y") is argument(total, "x")
    width = 64 if reader in ("a gate", "columns") else 32
    assert total.work is not None and total.work.grid == (8, 1, 1)
    sizes = {name: constant(total, name) for name in ("PARTS", "WIDTH", "X_STRIDE", "Y_STRIDE")}
    assert sizes == {"PARTS": PARTS, "WIDTH": width, "X_STRIDE": PARTS * width, "Y_STRIDE": width}
    places = {"a product": "x", "the residual": "x", "a gate": "x", "a gather": "x", "columns": "x"}
    assert argument(others[0], places[reader]).place is argument(total, "y").place
    y = argument(total, "y")
    assert y.dtype == ("bf16" if reader == "a product" else "fp32")  # as the product would round it anyway
    assert argument(product, "y").dtype == "fp32" and y.parts == 1
    assert "add_parts" not in names(launches(function, 64))


def test_glue_gets_a_sum() -> None:
    product, total, glue = launches(lambda i, w: torch.sigmoid(linear(i.x, w.square, None)))
    assert names([product, total]) == ["linear", "add_parts"]
    assert argument(total, "y").place in [value.place for value in glue.operands("in")]


def test_one_sum_serves_all_who_need_one() -> None:
    def several(i: Inputs, w: Weights) -> Any:
        y = linear(i.x, w.square, None)
        normed = add_rms_norm(i.z, y, w.vector, EPS)[1], rms_norm(y, w.vector, EPS)
        return *normed, gather_rows(y, i.output_row), swiglu(y)

    product, first, second, total, *others = launches(several)
    assert names([product, first, second, total, *others]) == [
        "linear", "add_rms_norm", "rms_norm", "add_parts", "swiglu", "gather_rows"
    ]  # fmt: skip
    assert constant(first, "PARTS") == constant(second, "PARTS") == PARTS
    assert {argument(other, "x").place for other in others} == {argument(total, "y").place}


def test_a_place_chosen_beforehand_gets_the_sum() -> None:
    with torch.device("meta"):
        part = export_part(Wrapped(lambda i, w: linear(i.x, w.square, None), torch.bfloat16), example(torch.bfloat16))
    low, given = lowering(8), operands(8, "bf16")
    chosen = replace(given["z"], offset=0)
    assert low.lower(part, given, [chosen]) == [chosen]
    product, total = low.assembly.launches
    assert argument(product, "y").parts == PARTS and argument(total, "y") is chosen


def test_a_gate_is_never_split() -> None:
    for rows in (8, 64):
        (product,) = launches(lambda i, w: swiglu(linear(i.x, w.wide, None)), rows)
        assert (constant(product, "GATED"), constant(product, "SPLIT")) == (True, 1)
        assert product.work is not None and product.work.grid[1] == 1


def chains(found: list[Launch]) -> dict[tuple[int, str], int]:
    """Parts of K of each product, by where its weight lies and how many rows it has."""
    return {
        (argument(launch, "weight").offset, argument(launch, "x").count): int(str(dict(launch.work.constants)["SPLIT"]))
        if launch.kernel != "linear_rotary"
        else 1
        for launch in found
        if launch.kernel.startswith("linear") and launch.work
    }


@pytest.mark.parametrize("family", ["llama", "smollm2", "qwen2", "qwen3"])
def test_every_program_of_a_model_splits_alike(tmp_path: Path, family: str) -> None:
    model = composer(tmp_path, family)
    layers = model.spec.num_hidden_layers
    shapes = [Shape(kinds, 256, rows) for kinds in (EXTEND, TREE) for rows in (1, 32)]
    programs = [list(lower(model, shape).launches) for shape in (*shapes, Shape(EXTEND, 0, 64))]
    first, *others = map(chains, programs)
    turned = family != "qwen3"  # its product leaves heads to norms, which read a sum
    assert sorted(first.values()) == [1] * layers * (1 + turned) + [PARTS] * (layers * (3 - turned) + 1)
    assert all(other == first for other in others)
    for program in programs:
        chunk = program is programs[-1]
        norms = [constant(launch, "PARTS") for launch in program if launch.kernel == "add_rms_norm"]
        assert norms == [1 if chunk else PARTS] * 2 * layers
        # The head's rows are few in prefill too, and what chooses among its logits takes no parts.
        assert names(program).count("add_parts") == 1 + layers * (not turned and not chunk)
        total = next(launch for launch in reversed(program) if launch.kernel == "add_parts")
        assert argument(total, "y").place == "io"


def test_the_real_rule_leaves_small_models_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    found = list(lower(composer(tmp_path), Shape(EXTEND, 256, 8)).launches)
    assert "add_parts" not in names(found) and set(chains(found).values()) == {1}
