"""Hugging Face folders: every tensor as Transformers reads it, and one clear line for each kind of damage."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tandem.compile.checkpoints.hf import HfCheckpoint
from tandem.errors import CheckpointError
from tests.tiny import FAMILIES, make_checkpoint

SHARD = "model-00002-of-00003.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def _whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("whole"), "llama")


@pytest.fixture(scope="module")
def _sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("sharded"), "llama", shards=3)


@pytest.fixture
def whole(_whole: Path, tmp_path: Path) -> Path:
    """A folder of one file, for the test to damage."""
    return Path(shutil.copytree(_whole, tmp_path / "whole"))


@pytest.fixture
def sharded(_sharded: Path, tmp_path: Path) -> Path:
    """A folder of three shards, for the test to damage."""
    return Path(shutil.copytree(_sharded, tmp_path / "sharded"))


def _message(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        HfCheckpoint(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def _edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_reads_as_in_transformers(family: str, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, family, dtype="bfloat16" if family == "qwen2" else "float32")
    checkpoint = HfCheckpoint(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    wanted = dict(model.named_parameters())  # a tied head is named once, as it is stored
    assert checkpoint.names() == sorted(wanted)
    for name, parameter in wanted.items():
        tensor = checkpoint.read(name)
        assert tensor.dtype == parameter.dtype and torch.equal(tensor, parameter)
        assert checkpoint.shape(name) == tuple(parameter.shape)
    assert checkpoint.config["num_hidden_layers"] == model.config.num_hidden_layers
    assert checkpoint.stop_ids == (0, 2)
    assert (checkpoint.bos_token, checkpoint.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert checkpoint.revision is None


def test_shards_hold_what_one_file_holds(sharded: Path, whole: Path) -> None:
    checkpoint = HfCheckpoint(sharded)
    tensors = load_file(whole / "model.safetensors")
    assert checkpoint.names() == sorted(tensors)
    assert all(torch.equal(checkpoint.read(name), tensor) for name, tensor in tensors.items())


def test_an_unknown_tensor_is_named(whole: Path) -> None:
    checkpoint = HfCheckpoint(whole)
    for ask in (checkpoint.read, checkpoint.shape, checkpoint.stored):
        with pytest.raises(CheckpointError, match=r"has no tensor model\.layers\.9\.mlp\.up_proj\.weight"):
            ask("model.layers.9.mlp.up_proj.weight")


def test_missing_shard(sharded: Path) -> None:
    (sharded / SHARD).unlink()
    message = _message(sharded)
    assert SHARD in message and "wants 3 shards, found 2" in message


def test_truncated_shard(sharded: Path) -> None:
    path = sharded / SHARD
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-1])
    assert f"{path}: truncated: wanted {size} bytes, found {size - 1}" in _message(sharded)


def test_a_tensor_of_the_index_that_its_shard_lacks(sharded: Path) -> None:
    _edit(sharded / INDEX, lambda index: index["weight_map"].update({"model.layers.3.input_layernorm.weight": SHARD}))
    message = _message(sharded)
    assert f"{sharded / SHARD}: has no tensor model.layers.3.input_layernorm.weight" in message


def test_a_tensor_that_the_index_does_not_know(sharded: Path) -> None:
    tensors = load_file(sharded / SHARD)
    save_file(tensors | {"model.extra.weight": torch.zeros(3)}, sharded / SHARD)
    message = _message(sharded)
    assert f"{sharded / SHARD}: holds tensor model.extra.weight, but {INDEX} does not place it there" in message


def test_a_tensor_in_two_shards(sharded: Path) -> None:
    first, name = load_file(sharded / "model-00001-of-00003.safetensors"), "lm_head.weight"
    assert name in first
    save_file(load_file(sharded / SHARD) | {name: first[name]}, sharded / SHARD)
    message = _message(sharded)
    assert f"{sharded / SHARD}: holds tensor {name}, but model-00001-of-00003.safetensors holds it too" in message


@pytest.mark.parametrize("place", ["../elsewhere.safetensors", "/etc/passwd", 7, "model.bin"])
def test_an_index_that_points_outside(sharded: Path, place: object) -> None:
    _edit(sharded / INDEX, lambda index: index["weight_map"].update({"lm_head.weight": place}))
    assert "wanted a .safetensors file beside the index" in _message(sharded)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {}}'])
def test_a_damaged_index(sharded: Path, content: str) -> None:
    (sharded / INDEX).write_text(content)
    assert str(sharded / INDEX) in _message(sharded)


def test_a_head_is_stored_or_tied(tmp_path: Path, whole: Path) -> None:
    tied = HfCheckpoint(make_checkpoint(tmp_path / "tied", "smollm2"))
    assert "lm_head.weight" not in tied.names()
    tensors = load_file(whole / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, whole / "model.safetensors")
    assert "tensor lm_head.weight is missing" in _message(whole)
    _edit(whole / "config.json", lambda config: config.update(tie_word_embeddings=True))
    assert HfCheckpoint(whole).names() == sorted(tensors)


def test_pickles_are_refused(whole: Path) -> None:
    (whole / "model.safetensors").rename(whole / "pytorch_model.bin")
    message = _message(whole)
    assert "pytorch_model.bin" in message and "convert to safetensors" in message


@pytest.mark.parametrize("found", [SHARD, "consolidated.safetensors", "model.gguf"])
def test_other_weights_are_named(whole: Path, found: str) -> None:
    (whole / "model.safetensors").rename(whole / found)
    assert found in _message(whole)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_is_named(whole: Path, name: str) -> None:
    (whole / name).unlink()
    message = _message(whole)
    assert str(whole) in message and name in message


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_a_file_that_is_not_json_is_named(whole: Path, name: str) -> None:
    (whole / name).write_bytes((whole / name).read_bytes()[:-9])
    assert str(whole / name) in _message(whole)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_json_nested_without_end_is_named(whole: Path, name: str) -> None:
    (whole / name).write_text("[" * 100_000)
    assert str(whole / name) in _message(whole)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "chat_template.jinja"])
def test_a_file_that_is_not_text_is_named(whole: Path, name: str) -> None:
    (whole / name).write_bytes(b"\xff\xfe{}")
    assert str(whole / name) in _message(whole)


def test_quantised_weights_are_refused_by_method(whole: Path) -> None:
    _edit(whole / "config.json", lambda config: config.update(quantization_config={"quant_method": "gptq", "bits": 4}))
    assert "quant_method gptq" in _message(whole)


def test_weights_are_mapped_not_loaded(whole: Path) -> None:
    checkpoint = HfCheckpoint(whole)
    tensor = checkpoint.read("lm_head.weight")
    maps = Path("/proc/self/maps").read_text()
    assert str(whole / "model.safetensors") in maps
    assert torch.equal(tensor, load_file(whole / "model.safetensors")["lm_head.weight"])
