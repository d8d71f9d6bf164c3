"""Checkpoints that are Hugging Face folders: config, tokenizer, and weights in safetensors files.

Knows nothing of the network.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tandem.compile.checkpoints.base import Checkpoint, Stored, check_head
from tandem.compile.checkpoints.tensor_folder import TensorFolder
from tandem.compile.checkpoints.tokenizer import read_facts, read_json
from tandem.errors import CheckpointError

CONFIG = "config.json"
TEXT_FILES = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


class HfCheckpoint(Checkpoint):
    """A folder with config.json, tokenizer.json and model.safetensors or model.safetensors.index.json with its shards.

    CheckpointError if anything is missing, truncated, extra or named twice; the weights themselves are not read.
    """

    def __init__(self, folder: Path, *, origin: str | None = None, revision: str | None = None) -> None:
        origin = origin or str(folder)
        config = read_config(folder, origin)
        self._tensors = TensorFolder(folder, origin)
        check_head(self.names(), config, origin)
        super().__init__(origin, config, read_facts(folder, config, origin), revision=revision)

    def names(self) -> list[str]:
        return self._tensors.names()

    def stored(self, name: str) -> Stored:
        return self._tensors.stored(name)

    def read(self, name: str) -> torch.Tensor:
        return self._tensors.read(name)

    def content(self, name: str) -> memoryview:
        return self._tensors.content(name)


def read_config(folder: Path, origin: str) -> dict[str, Any]:
    """The folder's config.json. CheckpointError if it is missing, malformed, or of weights that are quantised."""
    if not (folder / CONFIG).is_file():
        raise CheckpointError(f"{origin}: {CONFIG} is missing: give the folder of a Hugging Face checkpoint")
    config = read_json(folder / CONFIG)
    if quantised := config.get("quantization_config"):
        method = quantised.get("quant_method", "unknown") if isinstance(quantised, dict) else "unknown"
        raise CheckpointError(
            f"{origin}: weights are quantised already (quant_method {method}): start from the unquantised checkpoint"
        )
    return config
