"""The checkpoint of a model that only drafts: a folder with config.json and safetensors files, no tokenizer of its own.

Knows nothing of what the config says: which tensors a drafter needs is for `compile/models` to check.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from tandem.compile.checkpoints.hf import CONFIG, read_config
from tandem.compile.checkpoints.tensor_folder import TensorFolder
from tandem.errors import CheckpointError

_DIGEST_FORMAT = b"tandem drafter digest 1"
_NOT_CONTENT = ("_name_or_path", "transformers_version")


class DrafterCheckpoint(TensorFolder):
    """A drafter's config and weights, read lazily; `origin` names it in messages.

    CheckpointError if the folder or anything in it is missing, truncated, extra or named twice.
    """

    def __init__(self, folder: Path, origin: str = "") -> None:
        origin = origin or str(folder)
        if not folder.is_dir():
            raise CheckpointError(f"{origin}: no such folder: give the folder of a drafter, with {CONFIG} in it")
        if not (folder / CONFIG).exists():
            raise CheckpointError(f"{origin}: {CONFIG} is missing: give the folder of a drafter")
        self.config = read_config(folder, origin)
        super().__init__(folder, origin)

    def digest(self) -> str:
        """sha256 (hex) of config and weights: the same wherever it lies and however it is sharded."""
        config = {key: value for key, value in self.config.items() if key not in _NOT_CONTENT}
        whole = hashlib.sha256(_DIGEST_FORMAT + json.dumps(config, sort_keys=True).encode())
        for name in self.names():
            stored, tensor = self.stored(name), hashlib.sha256(self.content(name)).hexdigest()
            whole.update(json.dumps([name, stored.dtype, stored.shape, tensor]).encode())
        return whole.hexdigest()
