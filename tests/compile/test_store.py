"""The weights file: what a checkpoint holds comes back through the map, fused, rounded and in panels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from tandem.artifacts.weights import MappedWeights
from tandem.compile.checkpoints.open import open_checkpoint
from tandem.compile.cpu import panels
from tandem.compile.cpu.panels import SAFETENSORS, pack, stored_shape, unpack
from tandem.compile.drafters import Mtp
from tandem.compile.models.families import resolve
from tandem.compile.profile import PROFILES, find_profile
from tandem.compile.store import weight_bytes, write_weights
from tandem.errors import CheckpointError
from tests.compile.models import oracle
from tests.tiny import make_checkpoint
from tests.tiny_hybrid import add_mtp

NUMPY = {"fp32": np.float32, "bf16": np.uint16, "int8": np.uint8, "int4": np.uint8}
AWAY = {"fp32": 0.0, "bf16": 2.0**-8, "int8": 0.51 / 127, "int4": 1.5 / 15}
"""Of a tensor's largest number."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("store") / "checkpoint", "qwen2", num_hidden_layers=1)


@pytest.mark.parametrize("profile", PROFILES)
def test_every_parameter_comes_back(folder: Path, tmp_path: Path, profile: str) -> None:
    checkpoint, path, written = open_checkpoint(str(folder)), tmp_path / "weights", list[int]()
    spec, chosen = resolve(checkpoint.config), find_profile(profile)
    write_weights(spec, chosen, checkpoint, path, layout=panels, context_length=100, advance=written.append)
    weights, tensors = MappedWeights(path), oracle.read_tensors(folder).tensors
    prefix = "model.layers.0."
    attention = [tensors[f"{prefix}self_attn.{p}_proj.weight"] for p in "qkv"]
    biases = [tensors[f"{prefix}self_attn.{p}_proj.bias"] for p in "qkv"]
    gate_up = [tensors[f"{prefix}mlp.{p}_proj.weight"] for p in ("gate", "up")]
    wanted = {
        "embedding": tensors["model.embed_tokens.weight"],
        "layers.0.input_norm": tensors[f"{prefix}input_layernorm.weight"],
        "layers.0.qkv": torch.cat(attention),
        "layers.0.qkv_bias": torch.cat(biases),
        "layers.0.o": tensors[f"{prefix}self_attn.o_proj.weight"],
        "layers.0.post_norm": tensors[f"{prefix}post_attention_layernorm.weight"],
        "layers.0.gate_up": torch.cat(gate_up),
        "layers.0.down": tensors[f"{prefix}mlp.down_proj.weight"],
        "final_norm": tensors["model.norm.weight"],
    }
    named = {name for name in weights.spans if not name.startswith("pad.")}
    assert named == {*wanted, "rope.cos", "rope.sin"}
    for name, tensor in wanted.items():
        form, shape = chosen.format(name, tuple(tensor.shape)), tuple(tensor.shape)
        assert (weights.dtype(name), weights.shape(name)) == (SAFETENSORS[form], stored_shape(shape, form))
        stored = weights.bytes(name).view(NUMPY[form])
        rounded = unpack(pack(tensor, form), form, shape)
        assert torch.equal(unpack(stored, form, shape), rounded), name
        assert (rounded - tensor).abs().max() <= AWAY[form] * tensor.abs().max(), name
    assert sum(written) == sum(weights.spans[name].nbytes for name in wanted)


@pytest.mark.parametrize("profile", PROFILES)
def test_a_drafter_lies_behind_the_model(tmp_path: Path, profile: str) -> None:
    """All of the model is where it was; the layer that drafts comes after it, its product as two halves."""
    folder = make_checkpoint(tmp_path / "hybrid", "qwen3_5-tied")
    stored = add_mtp(folder)
    checkpoint, sizes = open_checkpoint(str(folder)), list[int]()
    spec, chosen = resolve(checkpoint.config), find_profile(profile)
    for drafter in (None, Mtp()):
        path = tmp_path / str(bool(drafter))
        write_weights(spec, chosen, checkpoint, path, layout=panels, context_length=64, drafter=drafter)
        sizes.append(weight_bytes(spec, chosen, panels, drafter=drafter))
    plain, drafting = (MappedWeights(tmp_path / str(drafter)) for drafter in (False, True))
    names = [name for name in plain.spans if not name.startswith(("pad.", "rope."))]
    assert all(np.array_equal(plain.bytes(name), drafting.bytes(name)) for name in names)
    more = [name for name in drafting.spans if not name.startswith("pad.") and name not in plain.spans]
    assert len(more) == 13 and all(name.startswith("mtp.") for name in more)
    assert sizes[1] - sizes[0] == sum(drafting.spans[name].nbytes for name in more)
    width = spec.hidden_size
    for half, name in enumerate(("mtp.fc_embedding", "mtp.fc_hidden")):
        part, form = stored["mtp.fc.weight"][:, half * width : (half + 1) * width], chosen.format(name, (width, width))
        found = unpack(drafting.bytes(name).view(NUMPY[form]), form, (width, width))
        assert torch.equal(found, unpack(pack(part, form), form, (width, width)))
    norm = drafting.bytes("mtp.hidden_norm").view(np.float32)
    assert np.array_equal(norm, (1 + stored["mtp.pre_fc_norm_hidden.weight"]).numpy())


def test_angles_reach_every_position_a_row_may_stand_at(folder: Path, tmp_path: Path) -> None:
    """The last of 32 verify rows behind a full context stands at position context + 31."""
    checkpoint = open_checkpoint(str(folder))
    spec = resolve(checkpoint.config)
    write_weights(spec, find_profile("bf16"), checkpoint, tmp_path / "w", layout=panels, context_length=100)
    weights = MappedWeights(tmp_path / "w")
    assert weights.shape("rope.cos") == weights.shape("rope.sin") == (132, 4)
    frequency = 1e6 ** (-np.arange(4) / 4)
    cos = weights.bytes("rope.cos").view(np.float32).reshape(132, 4)
    assert np.abs(cos - np.cos(np.arange(132)[:, None] * frequency)).max() < 1e-7


def test_any_safetensors_reader_opens_it(folder: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(folder))
    write_weights(
        resolve(checkpoint.config), find_profile("bf16"), checkpoint, tmp_path / "w", layout=panels, context_length=64
    )
    with safe_open(tmp_path / "w", "numpy") as opened:
        assert opened.get_tensor("final_norm").shape == (48,)


def test_a_misshapen_tensor_is_named(folder: Path, tmp_path: Path) -> None:
    tensors = oracle.read_tensors(folder)
    tensors.tensors["model.norm.weight"] = torch.zeros(47)
    spec = resolve(oracle.read_config(folder))
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight has shape \(47,\)"):
        write_weights(spec, find_profile("fp32"), tensors, tmp_path / "w", layout=panels, context_length=64)
