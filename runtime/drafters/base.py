"""What every drafter offers a lane.

A drafter guesses; it never decides a token. It knows nothing of prices, other lanes or the target model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tandem.artifacts.io import Geometry
from tandem.errors import UsageError
from tandem.tree import DraftTree

MTP, BLOCK = "mtp", "block"
WORDED = {MTP: "a drafting layer", BLOCK: "a block drafter"}
"""What a user is told that these are."""
MODELS = frozenset(WORDED)
"""Sources of drafters that are models, which a round has to ask and wait for; all others copy, and cost nothing."""


class Drafter(Protocol):
    """One instance per lane, dropped with it. The anchor is the last token of `begin` or `observe`.

    Each round calls `propose`, then `sync`, then `observe`; a round that has no use for guesses leaves `propose` out.
    One that copies rests in rounds that leave out all three, whose tokens it is told before the next `propose`.
    A pass over a stretch of the prompt calls `sync`, and behind the last one `observe` brings the first token. One of
    others' prompts, in which the lane takes a step, is a round without `propose`.
    An exception costs the lane its drafter, never its text.
    """

    def begin(self, prompt: Sequence[int]) -> None:
        """A new text starts with these ids."""
        ...

    def propose(self, max_nodes: int) -> list[DraftTree]:
        """Candidate trees over the anchor, each of at most `max_nodes` drafted nodes; [] declines."""
        ...

    def sync(self, rows: Sequence[int]) -> None:
        """Indices in the last pass of the rows that are in the text now: of the accepted path, the anchor's first."""
        ...

    def observe(self, tokens: Sequence[int]) -> None:
        """Newly committed ids, in order."""
        ...

    def end(self) -> None:
        """The text is over, whatever ended it; nothing more is asked."""
        ...


def model_of(geometry: Geometry) -> str | None:
    """The source of the drafter that a bundle has of its own, one of MODELS, or None."""
    if geometry.drafter is None:
        return None
    return BLOCK if geometry.drafter.block else MTP


def require_model(asked: str, geometry: Geometry) -> None:
    """UsageError where a user asks one of MODELS to draft that a bundle of `geometry` does not have."""
    own = model_of(geometry)
    if asked in MODELS and asked != own:
        there = f"{WORDED[own]}: give --drafter {own}, or leave it out" if own else "none of its own; leave it out"
        raise UsageError(f"--drafter {asked} is for bundles with {WORDED[asked]} and this one has {there}")
