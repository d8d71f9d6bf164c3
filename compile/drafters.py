"""What drafts for the model of a bundle, as a build sees it: where its weights come from and what they are called.

Knows no device, and nothing of how passes are composed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import numpy as np
from torch import Tensor

from tandem.artifacts.drafter import DrafterRecord
from tandem.compile.checkpoints.drafter import DrafterCheckpoint
from tandem.compile.models import dflash2_weights as weights
from tandem.compile.models.dflash2_config import Dflash2Spec, require_target, resolve_drafter
from tandem.compile.models.qwen3_5_mtp import LENGTH
from tandem.compile.models.rope import rope_tables
from tandem.compile.models.sources import Source, TensorSource
from tandem.compile.models.spec import LlamaSpec
from tandem.compile.models.weights import load_mtp, mtp_sources
from tandem.errors import CheckpointError, CompileError

TRAINED_FOR = "target_digest"
"""Field of a drafter's config that says which checkpoint it was trained for; published ones have none."""


class Drafter(Protocol):
    """A model that drafts for the one of `spec`."""

    @property
    def block(self) -> Dflash2Spec | None:
        """What it is, where it drafts whole blocks."""
        ...

    def record(self, spec: LlamaSpec, target: str) -> DrafterRecord:
        """What the manifest says of it; `target` is the digest of the model's checkpoint."""
        ...

    def sources(self, spec: LlamaSpec) -> dict[str, Source]:
        """Its parameters by their names in the weights file, in the order of `load`."""
        ...

    def load(self, spec: LlamaSpec, checkpoint: TensorSource) -> Iterator[tuple[str, Tensor]]:
        """The same read, one at a time; `checkpoint` is the model's. CheckpointError for what is not finite."""
        ...

    def tables(self, positions: int) -> dict[str, np.ndarray]:
        """Tables of its own rotary positions, fp32 [positions, half], by name; none where it shares the model's."""
        ...


class Mtp:
    """The layer for multi-token prediction that the model's checkpoint brings."""

    KIND: ClassVar[Literal["mtp"]] = "mtp"

    @property
    def block(self) -> None:
        return None

    def record(self, spec: LlamaSpec, target: str) -> DrafterRecord:
        return DrafterRecord(
            kind=self.KIND, length=LENGTH, tap_layers=(), vocab_size=spec.vocab_size, weights=target, target=target
        )

    def sources(self, spec: LlamaSpec) -> dict[str, Source]:
        return mtp_sources(spec)

    def load(self, spec: LlamaSpec, checkpoint: TensorSource) -> Iterator[tuple[str, Tensor]]:
        return load_mtp(spec, checkpoint)

    def tables(self, positions: int) -> dict[str, np.ndarray]:
        return {}


@dataclass(frozen=True, slots=True)
class Dflash2:
    """A block drafter, whose parameters `checkpoint` holds; `digest` is the checkpoint's."""

    KIND: ClassVar[Literal["dflash2"]] = "dflash2"
    block: Dflash2Spec
    checkpoint: TensorSource
    digest: str = ""

    @classmethod
    def open(cls, checkpoint: DrafterCheckpoint, spec: LlamaSpec, target: str) -> Dflash2:
        """The drafter of `checkpoint`, held against the model of `spec` whose checkpoint's digest is `target`.

        CompileError for a drafter of another kind, CheckpointError for one of another model, or with tensors that are
        missing, misshapen or unknown; no weights are read but for the digest.
        """
        try:
            block = resolve_drafter(checkpoint.config)
        except (CompileError, CheckpointError) as error:  # who reads it has given two checkpoints
            raise type(error)(f"{checkpoint.origin}: {error}") from None
        require_target(block, spec, checkpoint.origin)
        made_for = checkpoint.config.get(TRAINED_FOR, target)
        if made_for != target:
            raise CheckpointError(
                f"{checkpoint.origin}: a drafter for another model: its {TRAINED_FOR} is {str(made_for)[:12]}, this "
                f"target's is {target[:12]}; give the drafter that was made for this target, or take {TRAINED_FOR} out "
                "of its config.json to try it all the same"
            )
        weights.require_drafter_tensors(block, checkpoint)
        return cls(block, checkpoint, checkpoint.digest())

    def record(self, spec: LlamaSpec, target: str) -> DrafterRecord:
        return DrafterRecord(
            kind=self.KIND,
            length=self.block.block_size - 1,
            tap_layers=self.block.taps,
            vocab_size=self.block.vocab_size,
            weights=self.digest,
            target=target,
        )

    def sources(self, spec: LlamaSpec) -> dict[str, Source]:
        return {weights.weight_name(spec, name): s for name, s in weights.drafter_sources(self.block).items()}

    def load(self, spec: LlamaSpec, checkpoint: TensorSource) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in weights.load_drafter(self.block, self.checkpoint):
            yield weights.weight_name(spec, name), tensor

    def tables(self, positions: int) -> dict[str, np.ndarray]:
        cos, sin = rope_tables(self.block.rope, self.block.head_dim, positions)
        return {weights.COS: cos, weights.SIN: sin}
