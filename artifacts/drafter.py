"""What a manifest says of a drafter that is a model: what it is, and which model its guesses are meant for.

Knows nothing of its programs; what it takes of memory stands in the geometry.
"""

from __future__ import annotations

from typing import Literal

from tandem.artifacts.record import Capacity, Count, Digest, Record


class DrafterRecord(Record, frozen=True):
    """`length` is how many tokens a chain, or a block behind its anchor, guesses. It reads what enters the layers
    `tap_layers` of the model, the number of layers standing for what leaves the last, or, where there are none, what
    the final norm gives. `weights` is the digest of the checkpoint that it was read from, `target` that of the
    checkpoint that it was made for."""

    kind: Literal["mtp", "dflash2"]
    length: Capacity
    tap_layers: tuple[Count, ...]
    vocab_size: Capacity
    weights: Digest
    target: Digest

    def fault(self, checkpoint: str, vocab_size: int, block: int | None) -> str | None:
        """Why it cannot draft for the model of `checkpoint`, a digest, with as many ids, or None.

        `block` is how many rows its geometry says that a block has, None where it drafts none.
        """
        if self.target != checkpoint:
            return f"made for checkpoint {self.target[:12]}, the model is of {checkpoint[:12]}"
        if self.vocab_size != vocab_size:
            return f"guesses {self.vocab_size} ids, the model has {vocab_size}"
        if self.kind == "mtp" and (self.tap_layers or self.weights != self.target):
            return "mtp is a part of its model's checkpoint and reads its final norm, no layers"
        if self.kind == "dflash2" and (not self.tap_layers or self.tap_layers != tuple(sorted({*self.tap_layers}))):
            return f"dflash2 reads layers in ascending order, not {list(self.tap_layers)}"
        if block != (self.length + 1 if self.kind == "dflash2" else None):
            return f"{self.kind} of {self.length} guesses, its geometry has blocks of {block} rows"
        return None
