"""Configs of tiny hybrids (qwen3_5), and a text checkpoint put into one with vision and a drafting layer.

Shapes are awkward on purpose: more value heads than key heads, widths that differ, attention in odd places.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

_PLAIN: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 112,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 24,
    "rope_theta": 1e7,
    "rope": {"partial_rotary_factor": 0.25},
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 20,
}
_TIED = {
    "tie_word_embeddings": True,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rope": {"partial_rotary_factor": 0.5},
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
_ODD = {
    "num_hidden_layers": 5,
    "layer_types": [f"{kind}_attention" for kind in ("full", "linear", "linear", "full", "linear")],
    "attention_bias": True,
    "rope": {"partial_rotary_factor": 1.0},
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 3,
    "linear_key_head_dim": 20,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 3,
}
MODELS = {
    name: ("Qwen3_5", "Qwen3_5Text", _PLAIN | more)
    for name, more in (("qwen3_5", {}), ("qwen3_5-tied", _TIED), ("qwen3_5-odd", _ODD))
}
_VISION = {
    "depth": 1,
    "hidden_size": 16,
    "num_heads": 2,
    "intermediate_size": 16,
    "num_position_embeddings": 16,
    "patch_size": 4,
}


def wrap(folder: Path) -> Path:
    """Turn the text checkpoint in `folder` into a vision-language one of the same text model; returns it."""
    import transformers

    text = json.loads((folder / "config.json").read_text())
    vision = _VISION | {"out_hidden_size": text["hidden_size"]}
    tied = text["tie_word_embeddings"]
    config = transformers.Qwen3_5Config(text_config=text, vision_config=vision, tie_word_embeddings=tied)
    tensors = load_file(folder / "model.safetensors")
    model = transformers.Qwen3_5ForConditionalGeneration(config)
    renamed = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in tensors.items()}
    missing, unexpected = model.load_state_dict(renamed, strict=False)
    assert not unexpected and all(".visual." in name or (tied and "lm_head" in name) for name in missing)
    model.save_pretrained(folder)
    return folder


def add_mtp(folder: Path) -> dict[str, Tensor]:
    """Add a drafting layer to the checkpoint in `folder`, named as published; returns its tensors.

    Transformers reads past it. Its block has the shapes of the last attention layer.
    """
    file = folder / "model.safetensors"
    tensors = load_file(file)
    block, hidden = _last_attention(tensors), tensors[next(name for name in tensors if name.endswith("norm.weight"))]
    width = next(t for name, t in tensors.items() if name.endswith("embed_tokens.weight")).shape[1]
    norm = torch.zeros(width, dtype=hidden.dtype)
    added = {f"mtp.{name}.weight": norm.clone() for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")}
    added["mtp.fc.weight"] = torch.zeros(width, 2 * width, dtype=hidden.dtype)
    added |= {f"mtp.layers.0.{name}": tensor.clone() for name, tensor in block.items()}
    generator = torch.Generator().manual_seed(7)
    added = {name: 0.1 * torch.randn(t.shape, generator=generator).to(t.dtype) for name, t in added.items()}
    save_file(tensors | added, file, metadata={"format": "pt"})
    return added


def _last_attention(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    prefix = max(name for name in tensors if name.endswith("self_attn.q_proj.weight")).removesuffix(
        "self_attn.q_proj.weight"
    )
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
