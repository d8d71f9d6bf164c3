"""Exported models by ONNX Runtime: every family's logits beside Transformers, and the interface ONNX loops expect."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from tandem.compile.models.reference import ReferenceModel
from tandem.compile.onnx.check import Session, check_rules, compare, runtime_logits
from tandem.compile.onnx.export import data_file, write_model
from tandem.compile.onnx.graph import ALIGNMENT, IR_VERSION, OPSET
from tests.compile.models import oracle
from tests.compile.onnx.lowered import CONTEXT_LENGTH, stored
from tests.tiny import FAMILIES, VOCAB_SIZE, make_checkpoint

VARIANTS = {
    "llama-bias": ("llama", {"attention_bias": True}),
    "qwen3-bias": ("qwen3", {"attention_bias": True, "num_key_value_heads": 1}),
    "qwen2-one-layer": ("qwen2", {"num_hidden_layers": 1, "tie_word_embeddings": False}),
}
IDS = torch.randint(VOCAB_SIZE, (40,), generator=torch.Generator().manual_seed(3)).tolist()


def close(found: np.ndarray, wanted: np.ndarray, tolerance: float) -> None:
    assert np.abs(found - wanted).max() <= tolerance * np.abs(wanted).max()


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("llama") / "checkpoint", "smollm2")


@pytest.mark.parametrize("name", [*FAMILIES, *VARIANTS])
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    family, overrides = VARIANTS.get(name, (name, {}))
    folder = make_checkpoint(tmp_path / "checkpoint", family, **overrides)
    write_model(stored(folder, "fp32"), tmp_path / "model.onnx")
    check_rules(tmp_path / "model.onnx")
    session = Session(tmp_path / "model.onnx")
    passes = IDS[:23], IDS[23:30], *([token] for token in IDS[30:])
    found = np.concatenate([session.extend(tokens) for tokens in passes])
    close(found, oracle.logits(oracle.transformers_model(folder, torch.float32), IDS).numpy(), 2e-5)


@pytest.mark.parametrize(("profile", "tolerance"), [("fp32", 1e-5), ("bf16", 3e-2), ("int8", 1e-2), ("int4", 1e-2)])
def test_profiles_keep_their_weights(llama: Path, tmp_path: Path, profile: str, tolerance: float) -> None:
    """Beside float64 over the same weights and cache: what is left is rounding."""
    parameters = stored(llama, profile)
    write_model(parameters, tmp_path / "model.onnx")
    tensors = {name: parameters.read(name) for name in parameters.shapes}
    cache = parameters.profile.cache
    exact = ReferenceModel(parameters.spec, tensors, torch.float64, context_length=64, cache_dtype=cache)
    close(runtime_logits(tmp_path / "model.onnx", IDS), exact.forward(IDS).numpy(), tolerance)
    assert compare(tmp_path / "model.onnx", parameters).rows == 12


def test_weights_in_bf16_take_half_the_room_and_change_no_bit(llama: Path, tmp_path: Path) -> None:
    parameters, wide, narrow = stored(llama, "bf16"), tmp_path / "wide.onnx", tmp_path / "narrow.onnx"
    write_model(parameters, wide)
    write_model(parameters, narrow, bf16=True)
    matrices = sum(4 * shape[0] * shape[1] for shape in parameters.shapes.values() if len(shape) == 2)
    saved = data_file(wide).stat().st_size - data_file(narrow).stat().st_size
    assert abs(saved - matrices // 2) < ALIGNMENT * len(parameters.shapes)
    assert np.array_equal(runtime_logits(wide, IDS), runtime_logits(narrow, IDS))


def test_interface_is_that_of_decoders_with_past(llama: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    write_model(stored(llama, "bf16"), path, metadata={"tandem.bundle": "tiny"})
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    layers = [f"{layer}.{part}" for layer in range(3) for part in ("key", "value")]
    past = [1, 2, "past_sequence_length", 16]
    inputs = {value.name: (value.type, value.shape) for value in session.get_inputs()}
    assert inputs == {
        "input_ids": ("tensor(int64)", [1, "sequence_length"]),
        **{f"past_key_values.{layer}": ("tensor(float)", past) for layer in layers},
    }
    outputs = {value.name: (value.type, value.shape) for value in session.get_outputs()}
    total = [1, 2, "past_sequence_length + sequence_length", 16]
    assert outputs == {
        "logits": ("tensor(float)", [1, "sequence_length", VOCAB_SIZE]),
        **{f"present.{layer}": ("tensor(float)", total) for layer in layers},
    }
    assert list(inputs)[1:] == [name.replace("present", "past_key_values") for name in list(outputs)[1:]]
    assert session.get_modelmeta().custom_metadata_map["tandem.bundle"] == "tiny"


def test_the_file_is_plain_onnx_with_weights_at_whole_pages(llama: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    write_model(stored(llama, "fp32"), path)
    model = onnx.load(str(path), load_external_data=False)
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", OPSET)]
    assert model.ir_version == IR_VERSION
    assert {node.domain for node in model.graph.node} == {""}
    external = [tensor for tensor in model.graph.initializer if tensor.external_data]
    places = [{entry.key: entry.value for entry in tensor.external_data} for tensor in external]
    assert {place["location"] for place in places} == {"model.onnx.data"}
    assert all(int(place["offset"]) % ALIGNMENT == 0 for place in places)
    # The tied head is the embedding's one copy.
    assert {tensor.name for tensor in external} == {*stored(llama, "fp32").shapes, "rope.cos", "rope.sin"}
    assert path.stat().st_size < 64_000


def test_two_exports_are_one_file(llama: Path, tmp_path: Path) -> None:
    digests = set()
    for number in range(2):
        path = tmp_path / str(number) / "model.onnx"
        path.parent.mkdir()
        write_model(stored(llama, "fp32"), path)
        digests.add(tuple(hashlib.sha256(file.read_bytes()).hexdigest() for file in (path, data_file(path))))
    assert len(digests) == 1


def test_positions_end_with_the_context(llama: Path, tmp_path: Path) -> None:
    write_model(stored(llama, "fp32"), tmp_path / "model.onnx")
    session = Session(tmp_path / "model.onnx")
    session.extend([1] * CONTEXT_LENGTH)
    with pytest.raises(Exception, match="indices element out of data bounds"):
        session.extend([1])
