"""What every checkpoint offers, whatever it is stored as: config, tensors by Hugging Face name, tokenizer, digest.

Knows nothing of model families: which tensors a model needs, and their shapes, are for `compile/models` to check.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tandem.errors import CheckpointError

if TYPE_CHECKING:
    import torch

Progress = Callable[[int, int], None]  # bytes done, bytes in all

_DIGEST_FORMAT = b"tandem checkpoint digest 1"
_NOT_CONTENT = ("_name_or_path", "transformers_version")  # config fields that say who saved it, not what it is


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """The text side of a checkpoint. `tokenizer_json` is the content of a Hugging Face tokenizer.json."""

    tokenizer_json: str
    chat_template: str | None
    bos_token: str | None
    eos_token: str | None
    stop_ids: tuple[int, ...]  # ascending, no repeats


@dataclass(frozen=True, slots=True)
class Stored:
    """How one tensor lies in its file: `dtype` in the file's own words, `num_bytes` on disk."""

    dtype: str
    shape: tuple[int, ...]
    num_bytes: int


class Checkpoint(ABC):
    """Weights, config and tokenizer of one model, read lazily.

    `origin` names it in messages; `revision` is the resolved commit of a hub id, else None; `config` has the fields of
    a Hugging Face config.json; the remaining attributes are those of `TokenizerFacts`.
    """

    def __init__(
        self, origin: str, config: dict[str, Any], facts: TokenizerFacts, *, revision: str | None = None
    ) -> None:
        self.origin = origin
        self.revision = revision
        self.config = config
        self.tokenizer_json = facts.tokenizer_json
        self.chat_template = facts.chat_template
        self.bos_token = facts.bos_token
        self.eos_token = facts.eos_token
        self.stop_ids = facts.stop_ids

    @abstractmethod
    def names(self) -> list[str]:
        """Hugging Face names of all stored tensors, sorted."""

    @abstractmethod
    def stored(self, name: str) -> Stored:
        """How the tensor is stored; its shape is that of `read`. CheckpointError if there is no such tensor."""

    @abstractmethod
    def read(self, name: str) -> torch.Tensor:
        """The tensor: stored dtype from safetensors (a view of the mapped file), fp32 from GGUF. Not to be written to.

        CheckpointError if there is no such tensor.
        """

    @abstractmethod
    def content(self, name: str) -> memoryview:
        """The bytes of the tensor as stored: what the digest is over."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of the tensor without reading it. CheckpointError if there is no such tensor."""
        return self.stored(name).shape

    def dtype(self, name: str) -> str:
        """What the tensor is stored as, in the file's own words. CheckpointError if there is no such tensor."""
        return self.stored(name).dtype

    def digest(self, progress: Progress | None = None) -> str:
        """sha256 (hex) of weights, config and tokenizer: the same wherever it lies and however it is sharded.

        Reads every byte of the weights once; calls `progress(bytes done, bytes in all)` after each tensor.
        """
        total = sum(self.stored(name).num_bytes for name in self.names())
        facts = [self.tokenizer_json, self.chat_template, self.bos_token, self.eos_token, list(self.stop_ids)]
        config = {key: value for key, value in self.config.items() if key not in _NOT_CONTENT}
        whole = hashlib.sha256(_DIGEST_FORMAT)
        whole.update(json.dumps([config, facts], sort_keys=True).encode())
        done = 0
        for name in self.names():
            stored = self.stored(name)
            tensor = hashlib.sha256(self.content(name)).hexdigest()
            whole.update(json.dumps([name, stored.dtype, stored.shape, tensor]).encode())
            done += stored.num_bytes
            if progress is not None:
                progress(done, total)
        return whole.hexdigest()


def check_head(names: list[str], config: dict[str, Any], origin: str) -> None:
    """A model without a head of its own must say that it shares the embedding; CheckpointError otherwise."""
    if "lm_head.weight" in names or config.get("tie_word_embeddings", False):
        return
    if "model.embed_tokens.weight" in names:
        raise CheckpointError(
            f"{origin}: tensor lm_head.weight is missing and config.json does not set tie_word_embeddings: "
            "fetch the checkpoint again, or set tie_word_embeddings to true if the head is the embedding"
        )


def missing_tensor(origin: str, name: str) -> CheckpointError:
    return CheckpointError(f"{origin}: has no tensor {name}: fetch the checkpoint again, or check its config's sizes")
