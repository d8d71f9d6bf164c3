"""Graphs in the making: what is asked for twice stands once, names are unique, results bear the names given out."""

from __future__ import annotations

import io

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto

from tandem.compile.onnx.graph import ALIGNMENT, Graph
from tandem.compile.onnx.lowering import Lowering
from tandem.compile.onnx.rules import RULES
from tandem.compile.trace import ROWS, export_part
from tandem.errors import LoweringError
from tandem.kernels import swiglu
from tests.compile.onnx.lowered import Call


def test_a_node_asked_for_twice_stands_once() -> None:
    graph = Graph(io.BytesIO(), "data")
    x = graph.input("x", TensorProto.FLOAT, ["n"])
    graph.scope = "first"
    once = graph.emit("Add", x, x)
    graph.scope = "second"
    assert graph.emit("Add", x, x) == once == "first/Add"
    assert graph.emit("Mul", x, x) == "second/Mul"
    assert graph.emit("Mul", x, once) == "second/Mul_2"
    assert graph.emit("Cast", x, to=TensorProto.FLOAT) != graph.emit("Cast", x, to=TensorProto.INT64)
    assert graph.constant([1]) == graph.constant([1])
    assert len({graph.constant(1), graph.constant([1]), graph.constant(1, np.float32), graph.constant([1, 1])}) == 4


def test_results_bear_the_names_they_are_given_out_under() -> None:
    graph = Graph(io.BytesIO(), "data")
    x = graph.input("x", TensorProto.FLOAT, ["n"])
    total = graph.emit("Add", x, x)
    graph.output("square", graph.emit("Mul", total, total), TensorProto.FLOAT, ["n"])
    graph.output("total", total, TensorProto.FLOAT, ["n"])
    model = graph.model("1", {"b": "2", "a": "1"})
    onnx.checker.check_model(model, full_check=True)
    assert [list(node.output) for node in model.graph.node] == [["total"], ["square"]]
    assert list(model.graph.node[1].input) == ["total", "total"]
    assert {entry.key: entry.value for entry in model.metadata_props} == {"a": "1", "b": "2"}


def test_weights_lie_at_whole_pages_of_the_data_file() -> None:
    data = io.BytesIO()
    graph = Graph(data, "model.onnx.data")
    graph.weight("first", (3, 2), torch.float32, [torch.ones(1, 2), torch.zeros(2, 2)])
    graph.weight("second", (2,), torch.bfloat16, [torch.tensor([1.0, -2.0])])
    assert len(data.getvalue()) == ALIGNMENT + 4
    assert np.frombuffer(data.getvalue()[:24], np.float32).tolist() == [1, 1, 0, 0, 0, 0]
    assert data.getvalue()[ALIGNMENT:] == bytes.fromhex("803f00c0")
    places = [
        {entry.key: entry.value for entry in tensor.external_data} for tensor in graph.model("1", {}).graph.initializer
    ]
    assert places == [
        {"location": "model.onnx.data", "offset": "0", "length": "24"},
        {"location": "model.onnx.data", "offset": str(ALIGNMENT), "length": "4"},
    ]


def test_an_argument_that_a_plain_step_has_not_is_refused() -> None:
    part = export_part(Call(swiglu), torch.empty(ROWS, 8))
    with pytest.raises(LoweringError, match=r"operator tandem\.swiglu\.default .*: an argument has no place"):
        Lowering(Graph(io.BytesIO(), "data"), RULES).lower(part, {}, "part")
