"""Tensors of a folder of safetensors files, whole or in shards, complete against their index.

Knows nothing of configs, tokenizers and the network. Tensors are read through a memory map, one at a time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tandem.compile.checkpoints.base import Stored, missing_tensor
from tandem.compile.checkpoints.safetensors_header import read_header
from tandem.compile.checkpoints.tokenizer import read_json
from tandem.errors import CheckpointError

WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


class TensorFolder:
    """What model.safetensors, or model.safetensors.index.json with its shards, holds; `origin` names it in messages.

    CheckpointError if anything is missing, truncated, extra or named twice; the weights themselves are not read.
    """

    def __init__(self, folder: Path, origin: str) -> None:
        self.origin = origin
        self._files: dict[str, Path] = {}  # by tensor name
        self._stored: dict[str, Stored] = {}
        self._handles: dict[Path, Any] = {}
        for path, wanted in _weight_files(folder, origin):
            self._add_file(path, wanted)

    def _add_file(self, path: Path, wanted: set[str] | None) -> None:
        """Take in the tensors of one file; `wanted` is what the index says it holds, None without an index."""
        found = read_header(path)
        if wanted is not None:
            if absent := sorted(wanted - found.keys()):
                raise CheckpointError(
                    f"{path}: has no tensor {absent[0]}, which {INDEX} says it holds{_more(absent)}: "
                    "fetch both files again"
                )
            if extra := sorted(found.keys() - wanted):
                twin = self._files.get(extra[0])
                where = f"{twin.name} holds it too" if twin else f"{INDEX} does not place it there"
                raise CheckpointError(
                    f"{path}: holds tensor {extra[0]}, but {where}{_more(extra)}: fetch all files from one revision"
                )
        self._stored |= found
        self._files |= dict.fromkeys(found, path)

    def names(self) -> list[str]:
        return sorted(self._stored)

    def stored(self, name: str) -> Stored:
        if name not in self._stored:
            raise missing_tensor(self.origin, name)
        return self._stored[name]

    def read(self, name: str) -> torch.Tensor:
        from safetensors import SafetensorError, safe_open

        self.stored(name)
        path = self._files[name]
        try:
            if path not in self._handles:
                self._handles[path] = safe_open(path, framework="pt")
            tensor: torch.Tensor = self._handles[path].get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path}: tensor {name} cannot be read ({error}): fetch the file again") from error
        return tensor

    def content(self, name: str) -> memoryview:
        return self.read(name).reshape(-1).view(torch.uint8).numpy().data

    def shape(self, name: str) -> tuple[int, ...]:
        return self.stored(name).shape

    def dtype(self, name: str) -> str:
        return self.stored(name).dtype


def no_weights(origin: str, files: list[str]) -> CheckpointError:
    """The error for a checkpoint whose file list has neither model.safetensors nor an index: says what is there."""
    pickles = [
        name for name in files if name.startswith("pytorch_model") and name.endswith((".bin", ".bin.index.json"))
    ]
    if pickles:
        return CheckpointError(
            f"{origin}: {sorted(pickles)[0]} is a pickle, which can run code when read: convert to safetensors with "
            "model.save_pretrained(FOLDER) in Transformers"
        )
    if ggufs := sorted(name for name in files if name.endswith(".gguf")):
        return CheckpointError(f"{origin}: holds no {WHOLE} but {ggufs[0]}: give the path of the .gguf file itself")
    if others := sorted(name for name in files if name.endswith(".safetensors")):
        return CheckpointError(f"{origin}: holds {others[0]} but neither {WHOLE} nor {INDEX}: fetch the missing file")
    return CheckpointError(f"{origin}: holds neither {WHOLE} nor {INDEX}: fetch the checkpoint's weights")


def shard_names(folder: Path) -> list[str]:
    """File names of the shards that the folder's index lists, sorted; CheckpointError if the index is damaged."""
    return sorted(set(_weight_map(folder / INDEX).values()))


def _weight_files(folder: Path, origin: str) -> list[tuple[Path, set[str] | None]]:
    """Each weight file with the tensors its index says it holds. A whole file goes first, as in Transformers."""
    if (folder / WHOLE).is_file():
        return [(folder / WHOLE, None)]
    if not (folder / INDEX).is_file():
        raise no_weights(origin, [path.name for path in folder.iterdir()])
    weight_map = _weight_map(folder / INDEX)
    shards = shard_names(folder)
    if absent := [shard for shard in shards if not (folder / shard).is_file()]:
        raise CheckpointError(
            f"{origin}: shard {absent[0]} is missing: {INDEX} wants {len(shards)} shards, found "
            f"{len(shards) - len(absent)}: fetch it again"
        )
    return [(folder / shard, {name for name, place in weight_map.items() if place == shard}) for shard in shards]


def _weight_map(path: Path) -> dict[str, str]:
    weight_map = read_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path}: has no weight_map from tensors to shards: fetch it again")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise CheckpointError(
                f"{path}: tensor {name} lies in {shard!r}, wanted a .safetensors file beside the index: fetch it again"
            )
    return weight_map


def _more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""
