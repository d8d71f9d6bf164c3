"""Parameters come out of a bundle's layout as they went in; a spec and weights that do not fit are refused by name."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tandem.compile.models.families import resolve
from tandem.compile.models.weights import load
from tandem.compile.onnx import parameters
from tandem.compile.onnx.parameters import Parameters, read_spec
from tandem.errors import BundleCorrupt, BundleMismatch
from tests.compile.models import oracle
from tests.compile.onnx.lowered import CONTEXT_LENGTH, stored
from tests.tiny import make_checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("parameters") / "checkpoint", "qwen2", num_hidden_layers=2)


@pytest.mark.parametrize("block_bytes", [1, 8192, 1 << 20])
@pytest.mark.parametrize("profile", ["fp32", "bf16"])
def test_every_parameter_comes_back_in_blocks_of_any_size(
    folder: Path, profile: str, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parameters, "BLOCK_BYTES", block_bytes)
    found = stored(folder, profile)
    for name, tensor in load(found.spec, oracle.read_tensors(folder)):
        wanted = tensor.bfloat16() if profile == "bf16" and tensor.dim() == 2 else tensor
        read = found.read(name)
        assert read.dtype is found.dtype(name) is wanted.dtype
        assert torch.equal(read, wanted), name


@pytest.mark.parametrize(("profile", "steps"), [("int8", 127), ("int4", 15)])
def test_low_bit_parameters_come_back_to_within_a_step(folder: Path, profile: str, steps: int) -> None:
    found = stored(folder, profile)
    for name, tensor in load(found.spec, oracle.read_tensors(folder)):
        step = 2 * tensor.abs().max() / steps
        assert (found.read(name) - tensor).abs().max() <= step, name


def test_tables_end_with_the_context(folder: Path) -> None:
    found = stored(folder, "fp32")
    assert found.table("cos").shape == (CONTEXT_LENGTH, found.spec.head_dim // 2)
    assert torch.allclose(found.table("cos") ** 2 + found.table("sin") ** 2, torch.ones(()), atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": 3}, r"layers\.2\.input_norm is missing, the model asks for F32 \[48\]"),
        ({"vocab_size": 999}, r"embedding is F32 \[11, 48, 32\], the model asks for F32 \[32, 48, 32\]"),
        ({"tie_word_embeddings": False}, "head is missing"),
    ],
)
def test_weights_that_are_not_the_models_are_refused(folder: Path, change: dict[str, Any], message: str) -> None:
    sound = stored(folder, "fp32")
    with pytest.raises(BundleCorrupt, match=message):
        Parameters(replace(sound.spec, **change), sound.profile, CONTEXT_LENGTH, sound.weights)


def test_a_context_longer_than_the_tables_is_refused(folder: Path) -> None:
    sound = stored(folder, "fp32")
    with pytest.raises(BundleCorrupt, match=r"rope\.cos is F32 \[128, 4\], the model asks for F32 \[129, 4\]"):
        Parameters(sound.spec, sound.profile, 129, sound.weights)


def test_a_spec_comes_back_from_a_manifest(folder: Path) -> None:
    spec = resolve(oracle.read_config(folder))
    assert read_spec(asdict(spec)) == spec


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head_dim": "8"}, r"resolved\.spec: Expected `int`, got `str` - at `\$\.head_dim`"),
        ({"rope": {"rope_type": "default"}}, "missing required field `rope_theta`"),
        ({"experts": 8}, "has the unknown experts"),
    ],
)
def test_a_spec_of_another_version_is_refused(folder: Path, change: dict[str, Any], message: str) -> None:
    fields = asdict(resolve(oracle.read_config(folder)))
    with pytest.raises(BundleMismatch, match=message):
        read_spec(fields | change)
