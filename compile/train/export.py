"""A trained model as a folder that Transformers and Tandem read: weights, configs, tokenizer, card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tandem.compile.train.chat import CHAT_TEMPLATE
from tandem.compile.train.model import Model
from tandem.compile.train.tokenizer import END_OF_TURN, SEPARATOR


@torch.no_grad()
def round_weights(model: nn.Module) -> None:
    """Every weight becomes the one that is stored, so that what is measured from here on is what is shipped."""
    for parameter in model.parameters():
        parameter.copy_(parameter.to(torch.bfloat16))


def export(folder: Path, model: Model, config: dict[str, Any], tokenizer_json: str, card: str) -> int:
    """Writes the folder, weights in bfloat16; returns the bytes of the weights."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Tensor] = {
        name: tensor.to("cpu", torch.bfloat16).contiguous() for name, tensor in model.state_dict().items()
    }
    weights = folder / "model.safetensors"
    save_file(tensors, weights, metadata={"format": "pt"})
    write_json(folder / "config.json", config)
    special = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    write_json(folder / "generation_config.json", special)
    (folder / "tokenizer.json").write_text(tokenizer_json, encoding="utf-8")
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": SEPARATOR,
            "eos_token": SEPARATOR,
            "pad_token": SEPARATOR,
            "additional_special_tokens": [END_OF_TURN],
            "model_max_length": config["max_position_embeddings"],
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    )
    (folder / "README.md").write_text(card, encoding="utf-8")
    return weights.stat().st_size


def write_json(path: Path, content: dict[str, Any]) -> None:
    """`content` as an indented file."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
