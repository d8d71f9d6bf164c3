"""What a manifest says of a drafter that is a model: what it is, and which model its guesses are meant for.

Knows nothing of its programs; what it takes of memory stands in the geometry.
"""

from __future__ import annotations

from typing import Literal

from tandem.artifacts.record import Capacity, Count, Digest, Record


class DrafterRecord(Record, frozen=True):
    """`length` is how many tokens a chain guesses. It reads what enters the layers `tap_layers` of the model, or, where
    there are none, what its final norm gives. `weights` is the digest of the checkpoint that it was read from, `target`
    that of the checkpoint that it was made for."""

    kind: Literal["mtp"]
    length: Capacity
    tap_layers: tuple[Count, ...]
    vocab_size: Capacity
    weights: Digest
    target: Digest

    def fault(self, checkpoint: str, vocab_size: int) -> str | None:
        """Why it cannot draft for the model of `checkpoint`, a digest, with as many ids, or None."""
        if self.target != checkpoint:
            return f"made for checkpoint {self.target[:12]}, the model is of {checkpoint[:12]}"
        if self.vocab_size != vocab_size:
            return f"guesses {self.vocab_size} ids, the model has {vocab_size}"
        if self.kind == "mtp" and (self.tap_layers or self.weights != self.target):
            return "mtp is a part of its model's checkpoint and reads its final norm, no layers"
        return None
