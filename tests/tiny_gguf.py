"""GGUF files written from tiny llama folders by the `gguf` package, in the way llama.cpp's converter writes them.

Knows nothing of Tandem. Tests import `make_gguf` from `tests.tiny`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file


def permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """Reorder the rows of a q or k projection as llama.cpp's converter does: halves of each head interleaved."""
    rows = weight.shape[0]
    return weight.reshape(heads, 2, rows // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def make_gguf(
    path: Path,
    folder: Path,
    *,
    weight_type: str = "F32",
    architecture: str = "llama",
    pre: str = "smollm",
    fields: Mapping[str, Any] = {},
    drop: tuple[str, ...] = (),
) -> Path:
    """Write the tiny llama checkpoint in `folder` (one file, not sharded) as a GGUF file; returns `path`.

    Matrices are stored as `weight_type` (F32, F16, BF16, Q8_0, Q4_0, Q4_1; a row no multiple of 32 stays F16 as in
    llama.cpp), vectors as F32. `fields` adds header fields, replacing those of the same name; `drop` leaves out
    header fields and tensors by name.
    """
    import gguf

    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, architecture)
    header = _header(config, architecture, folder) | {"tokenizer.ggml.pre": pre} | dict(fields)
    for key, value in header.items():
        if key not in drop:
            _add_field(writer, key, value)
    for name, values in _tensors(config, folder):
        if name in drop:
            continue
        kind = gguf.GGMLQuantizationType["F32" if values.ndim == 1 else weight_type]
        if kind.name.startswith("Q") and values.shape[1] % 32:
            kind = gguf.GGMLQuantizationType.F16
        writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _header(config: dict[str, Any], architecture: str, folder: Path) -> dict[str, Any]:
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    tokens = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].__getitem__)
    special = {entry["content"] for entry in tokenizer["added_tokens"] if entry["special"]}
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    rope = config["rope_parameters"]
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    header = {
        f"{architecture}.block_count": config["num_hidden_layers"],
        f"{architecture}.context_length": config["max_position_embeddings"],
        f"{architecture}.embedding_length": config["hidden_size"],
        f"{architecture}.feed_forward_length": config["intermediate_size"],
        f"{architecture}.attention.head_count": heads,
        f"{architecture}.attention.head_count_kv": config["num_key_value_heads"],
        f"{architecture}.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        f"{architecture}.rope.freq_base": rope["rope_theta"],
        f"{architecture}.rope.dimension_count": head_dim,
        f"{architecture}.attention.key_length": head_dim,
        f"{architecture}.attention.value_length": head_dim,
        f"{architecture}.vocab_size": config["vocab_size"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in special else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in tokenizer["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.chat_template": settings["chat_template"],
    }
    if rope["rope_type"] in ("linear", "yarn"):
        header[f"{architecture}.rope.scaling.type"] = rope["rope_type"]
        header[f"{architecture}.rope.scaling.factor"] = rope["factor"]
    if rope["rope_type"] == "yarn":
        header[f"{architecture}.rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    return header


def _add_field(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_array(key, value)


def _tensors(config: dict[str, Any], folder: Path) -> list[tuple[str, np.ndarray]]:
    renamed = {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    whole = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
    }
    tensors = []
    for name, tensor in load_file(folder / "model.safetensors").items():
        stem, _, kind = name.rpartition(".")
        values = tensor.float().numpy()
        if "q_proj" in stem or "k_proj" in stem:
            values = permuted(
                values,
                config["num_attention_heads" if "q_proj" in stem else "num_key_value_heads"],
            )
        if stem not in whole:
            _, _, layer, part = stem.split(".", 3)
            tensors.append((f"blk.{layer}.{renamed[part]}.{kind}", values))
        else:
            tensors.append((f"{whole[stem]}.{kind}", values))
    if config["rope_parameters"]["rope_type"] == "llama3":
        tensors.append(("rope_freqs.weight", _llama3_factors(config)))
    return tensors


def _llama3_factors(config: dict[str, Any]) -> np.ndarray:
    """What llama.cpp's converter stores for llama3 rope: by how much each frequency is divided, fp32 [head_dim / 2]."""
    rope, factors = config["rope_parameters"], []
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    context = rope["original_max_position_embeddings"]
    for i in range(0, head_dim, 2):
        wavelength = 2 * np.pi * rope["rope_theta"] ** (i / head_dim)
        smooth = (context / wavelength - low) / (high - low)
        factors.append(1 / ((1 - smooth) / rope["factor"] + smooth) if 0 <= smooth <= 1 else 0)
        if wavelength < context / high:
            factors[-1] = 1.0
        elif wavelength > context / low:
            factors[-1] = rope["factor"]
    return np.array(factors, dtype=np.float32)
