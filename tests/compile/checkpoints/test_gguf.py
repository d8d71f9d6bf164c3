"""GGUF files of architecture llama: the tensors and config they were written from, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from tandem.compile.checkpoints import gguf as gguf_module
from tandem.compile.checkpoints.base import Checkpoint
from tandem.compile.checkpoints.gguf import GgufCheckpoint, hf_name, unpermuted
from tandem.compile.checkpoints.gguf_config import llama3_factors
from tandem.errors import CheckpointError
from tests.tiny import make_checkpoint, make_gguf
from tests.tiny_gguf import permuted

LLAMAS = ("llama", "llama-linear", "llama-llama3", "llama-yarn", "smollm2")
IDS = torch.arange(300).reshape(2, 150) % 333


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {family: make_checkpoint(tmp_path_factory.mktemp(family), family) for family in LLAMAS}


def _logits(checkpoint: GgufCheckpoint) -> torch.Tensor:
    """Transformers' logits from what the checkpoint hands out: its config and its tensors."""
    model = LlamaForCausalLM(LlamaConfig(**checkpoint.config))
    tensors = {name: checkpoint.read(name) for name in checkpoint.names()}
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}
    with torch.no_grad():
        return model.eval()(IDS).logits


def _message(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        GgufCheckpoint(path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("family", LLAMAS)
def test_the_file_gives_back_the_folder_it_was_made_from(family: str, folders: dict[str, Path], tmp_path: Path) -> None:
    folder = folders[family]
    checkpoint = GgufCheckpoint(make_gguf(tmp_path / "model.gguf", folder))
    tensors = load_file(folder / "model.safetensors")
    assert checkpoint.names() == sorted(tensors)
    for name, tensor in tensors.items():
        assert checkpoint.shape(name) == tuple(tensor.shape)
        assert torch.equal(checkpoint.read(name), tensor), name
    with torch.no_grad():
        wanted = AutoModelForCausalLM.from_pretrained(folder)(IDS).logits
    assert torch.equal(_logits(checkpoint), wanted)


@pytest.mark.parametrize("family", LLAMAS)
def test_the_config_is_the_one_it_was_made_from(family: str, folders: dict[str, Path], tmp_path: Path) -> None:
    checkpoint = GgufCheckpoint(make_gguf(tmp_path / "model.gguf", folders[family]))
    found = LlamaConfig(**checkpoint.config).to_dict()
    wanted = LlamaConfig.from_pretrained(folders[family]).to_dict()
    del wanted["pad_token_id"], found["pad_token_id"]  # the one field that says nothing about the model
    assert found == wanted


def test_heads_left_permuted_give_other_logits(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = GgufCheckpoint(make_gguf(tmp_path / "model.gguf", folders["smollm2"]))
    right = _logits(checkpoint)
    monkeypatch.setattr(gguf_module, "unpermuted", lambda values, heads: values)
    assert not torch.allclose(_logits(checkpoint), right, atol=0.1)


@given(heads=st.integers(1, 5), half=st.integers(1, 6), columns=st.one_of(st.none(), st.integers(1, 3)))
def test_unpermuting_undoes_the_converter(heads: int, half: int, columns: int | None) -> None:
    shape = (heads * half * 2,) if columns is None else (heads * half * 2, columns)
    values = np.arange(np.prod(shape)).reshape(shape)
    assert np.array_equal(unpermuted(permuted(values, heads), heads), values)
    if heads == 1:  # by hand: pairs (0, half), (1, half + 1), ... stand side by side
        assert (
            permuted(values, 1).reshape(half, 2, -1)[:, 1, 0].tolist() == values[half:].reshape(half, -1)[:, 0].tolist()
        )


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_every_type_is_near_what_was_stored(kind: str, folders: dict[str, Path], tmp_path: Path) -> None:
    """Error bounds are the formats' own: half a step of the type, a step where Q4_0 clips its positive end."""
    checkpoint = GgufCheckpoint(make_gguf(tmp_path / "model.gguf", folders["smollm2"], weight_type=kind))
    for name, tensor in load_file(folders["smollm2"] / "model.safetensors").items():
        found = checkpoint.read(name)
        assert found.dtype == torch.float32 and found.shape == tensor.shape
        if tensor.ndim == 1:
            assert torch.equal(found, tensor)
            continue
        if kind in ("F16", "BF16"):
            assert torch.equal(found, tensor.to(torch.float16 if kind == "F16" else torch.bfloat16).float())
            continue
        blocks, error = tensor.reshape(-1, 32), (found - tensor).reshape(-1, 32).abs().amax(1)
        largest, spread = blocks.abs().amax(1), blocks.amax(1) - blocks.amin(1)
        step = {"Q8_0": largest / 127 / 2, "Q4_0": largest / 8, "Q4_1": spread / 15 / 2}[kind]
        assert (error <= step * 1.01 + largest * 2**-9).all()  # scales and minima are fp16
        assert (error > 0).any()
        assert checkpoint.stored(name).dtype == kind


def test_blocks_by_hand(tmp_path: Path) -> None:
    """One block of each quantised type, decoded by the published layout, not by the package."""
    numbers = torch.arange(-16.0, 16.0)
    folder = make_checkpoint(tmp_path / "folder", "smollm2")
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    tensors[name][0, :32] = numbers
    save_file(tensors, folder / "model.safetensors")
    for kind, decode in {"Q8_0": _decode_q8_0, "Q4_0": _decode_q4_0, "Q4_1": _decode_q4_1}.items():
        checkpoint = GgufCheckpoint(make_gguf(tmp_path / f"{kind}.gguf", folder, weight_type=kind))
        wanted = decode(bytes(checkpoint.content(name)))
        assert checkpoint.read(name)[0, :32].tolist() == wanted
        assert np.abs(np.array(wanted) - numbers.numpy()).max() <= 2.1


def _halves(block: bytes) -> list[int]:
    """Sixteen bytes hold 32 numbers of 4 bits: first all low halves, then all high ones."""
    return [byte & 15 for byte in block] + [byte >> 4 for byte in block]


def _decode_q8_0(block: bytes) -> list[float]:
    scale = np.frombuffer(block[:2], "<f2").astype(np.float32)[0]
    return (scale * np.frombuffer(block[2:34], np.int8).astype(np.float32)).tolist()


def _decode_q4_0(block: bytes) -> list[float]:
    scale = np.frombuffer(block[:2], "<f2").astype(np.float32)[0]
    return (scale * (np.array(_halves(block[2:18]), np.float32) - 8)).tolist()


def _decode_q4_1(block: bytes) -> list[float]:
    scale, low = np.frombuffer(block[:4], "<f2").astype(np.float32)
    return (scale * np.array(_halves(block[4:20]), np.float32) + low).tolist()


def test_biases_come_in_order(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "folder", "smollm2", attention_bias=True, mlp_bias=True)
    checkpoint = GgufCheckpoint(make_gguf(tmp_path / "model.gguf", folder))
    assert checkpoint.config["attention_bias"] and checkpoint.config["mlp_bias"]
    for name, tensor in load_file(folder / "model.safetensors").items():
        assert torch.equal(checkpoint.read(name), tensor), name


@pytest.mark.parametrize("eps", [1e-5, 1e-6, 3e-5, 0.00002345])
def test_eps_is_the_decimal_that_was_meant(eps: float, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "folder", "llama", rms_norm_eps=eps)
    checkpoint = GgufCheckpoint(make_gguf(tmp_path / "model.gguf", folder))
    assert checkpoint.config["rms_norm_eps"] == eps
    assert float(np.float32(eps)) != eps  # the header itself holds another number


@given(
    st.sampled_from([32, 64, 128]),
    st.sampled_from([1e4, 5e5]),
    st.sampled_from([2.0, 8.0, 32.0]),
    st.sampled_from([1024, 8192, 65536]),
)
def test_llama3_factors_are_transformers_own(head_dim: int, theta: float, factor: float, original: int) -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": original,
    }
    config = LlamaConfig(hidden_size=head_dim, num_attention_heads=1, rope_parameters=rope)
    frequencies, scale = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = theta ** (-np.arange(0, head_dim, 2) / head_dim)
    assert scale == 1.0
    np.testing.assert_allclose(plain / llama3_factors(head_dim, theta, factor, original), frequencies, rtol=2e-6)


def test_what_is_not_a_dense_llama_is_refused_by_name(folders: dict[str, Path], tmp_path: Path) -> None:
    path, folder = tmp_path / "model.gguf", folders["smollm2"]
    for architecture in ("qwen2", "gemma3"):
        assert f"architecture '{architecture}'" in _message(make_gguf(path, folder, architecture=architecture))
    for kind in ("Q5_0", "Q5_1"):
        message = _message(make_gguf(path, folder, weight_type=kind))
        assert f"has type {kind}" in message and "Q4_1" in message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("llama.expert_count", 8),
        ("llama.attention.sliding_window", 4096),
        ("llama.logit_scale", 0.5),
        ("llama.rope.scaling.attn_factor", 1.5),
        ("llama.rope.dimension_count", 8),
        ("llama.attention.value_length", 32),
        ("llama.rope.scaling.type", "longrope"),
        ("llama.attention.head_count_kv", [2, 2, 1]),
        ("split.count", 3),
    ],
)
def test_what_would_change_the_arithmetic_is_refused(
    field: str, value: Any, folders: dict[str, Path], tmp_path: Path
) -> None:
    message = _message(make_gguf(tmp_path / "model.gguf", folders["smollm2"], fields={field: value}))
    assert {"llama.rope.scaling.type": "'longrope'", "split.count": "3 parts"}.get(field, field) in message


def test_neutral_fields_are_accepted(folders: dict[str, Path], tmp_path: Path) -> None:
    fields = {"llama.expert_count": 0, "llama.rope.scaling.type": "none", "llama.attention.head_count_kv": [2, 2, 2]}
    checkpoint = GgufCheckpoint(make_gguf(tmp_path / "model.gguf", folders["smollm2"], fields=fields))
    assert checkpoint.config["num_key_value_heads"] == 2


@pytest.mark.parametrize(
    "name",
    ["llama.block_count", "llama.attention.layer_norm_rms_epsilon", "tokenizer.ggml.tokens", "tokenizer.ggml.merges"],
)
def test_a_missing_field_is_named(name: str, folders: dict[str, Path], tmp_path: Path) -> None:
    assert f"{name} is missing" in _message(make_gguf(tmp_path / "model.gguf", folders["llama"], drop=(name,)))


def test_tensors_must_fit_the_header(folders: dict[str, Path], tmp_path: Path) -> None:
    path, folder = tmp_path / "model.gguf", folders["smollm2"]
    assert "has no tensor model.embed_tokens.weight" in _message(make_gguf(path, folder, drop=("token_embd.weight",)))
    message = _message(make_gguf(path, folder, fields={"llama.attention.head_count_kv": 4}))
    assert "k_proj.weight has 32 rows, wanted 4 heads of 16" in message
    tokens = [str(number) for number in range(334)]
    message = _message(make_gguf(path, folder, fields={"tokenizer.ggml.tokens": tokens}))
    assert "334 tokens but 333 rows" in message


def test_rope_factors_of_no_known_kind(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "folder", "llama-llama3")
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"]["high_freq_factor"] = 5.0
    (folder / "config.json").write_text(json.dumps(config))
    assert "rope_freqs.weight is not llama3" in _message(make_gguf(tmp_path / "model.gguf", folder))


@pytest.mark.parametrize(
    "name", ["blk.0.ffn_gate_exps.weight", "blk.0.attn_rot_embd.weight", "v.patch.weight", "output"]
)
def test_unknown_tensors_are_named(name: str) -> None:
    with pytest.raises(CheckpointError, match=f"x.gguf: tensor {name} is not part of a dense llama"):
        hf_name(name, "x.gguf")


@pytest.mark.smollm2
def test_the_real_smollm2(smollm2: Checkpoint) -> None:
    """Values from the model's published config.json."""
    checkpoint = smollm2
    assert len(checkpoint.names()) == 272
    published = {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100000,
        "rope_scaling": None,
        "max_position_embeddings": 8192,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    assert {field: checkpoint.config[field] for field in published} == published
    assert sum(int(np.prod(checkpoint.shape(name))) for name in checkpoint.names()) == 134_515_008
    assert checkpoint.stop_ids == (0, 2)
    assert (checkpoint.bos_token, checkpoint.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert "<|im_start|>" in (checkpoint.chat_template or "")
