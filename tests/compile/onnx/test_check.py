"""The check after an export: what computes something else, or is no ONNX, is refused in one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from tandem.compile.onnx.check import check_rules, compare, reference_logits
from tandem.compile.onnx.export import data_file, write_model
from tandem.errors import CompileError
from tests.compile.models import oracle
from tests.compile.onnx.lowered import stored
from tests.tiny import VOCAB_SIZE, make_checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("check") / "checkpoint", "qwen3")


@pytest.fixture
def model(folder: Path, tmp_path: Path) -> Path:
    write_model(stored(folder, "bf16"), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def edit(path: Path, change: Callable[[onnx.GraphProto], None]) -> None:
    proto = onnx.load(str(path), load_external_data=False)
    change(proto.graph)
    path.write_bytes(proto.SerializeToString())


def test_the_definitions_are_those_of_transformers(folder: Path) -> None:
    ids = list(range(5, VOCAB_SIZE, 29))
    wanted = oracle.logits(oracle.transformers_model(folder, torch.float32), ids)
    found = reference_logits(stored(folder, "fp32"), ids)
    assert (found - wanted).abs().max() <= 2e-5 * wanted.abs().max()


def test_a_sound_model_passes(folder: Path, model: Path) -> None:
    check_rules(model)
    found = compare(model, stored(folder, "bf16"))
    assert found.rows == 12
    assert 0 <= found.difference < 0.05 * found.largest


def swap_turns(graph: onnx.GraphProto) -> None:
    node = next(node for node in graph.node if node.name == "layers.1/rotary/Sub")
    node.input[:] = reversed(node.input)


def forget_the_mask(graph: onnx.GraphProto) -> None:
    node = next(node for node in graph.node if node.op_type == "LessOrEqual")
    node.op_type = "GreaterOrEqual"
    node.input[1] = next(tensor.name for tensor in graph.initializer if tensor.data_type == onnx.TensorProto.INT64)


@pytest.mark.parametrize("change", [swap_turns, forget_the_mask])
def test_another_computation_is_refused(folder: Path, model: Path, change: Callable[[onnx.GraphProto], None]) -> None:
    edit(model, change)
    with pytest.raises(CompileError, match=r"model\.onnx: logits by ONNX Runtime are up to .* off the operators'"):
        compare(model, stored(folder, "bf16"))


def test_other_weights_are_refused(folder: Path, model: Path) -> None:
    content = np.fromfile(data_file(model), np.float32)
    content[-1] = np.nan  # the head's
    content.tofile(data_file(model))
    with pytest.raises(CompileError, match="up to nan off"):
        compare(model, stored(folder, "bf16"))


def test_what_is_no_onnx_is_refused(model: Path) -> None:
    edit(model, lambda graph: graph.node[0].ClearField("input"))
    with pytest.raises(CompileError, match=r"model\.onnx: no valid ONNX: "):
        check_rules(model)
