"""What every executor offers the engine, whatever the device.

Letters: R rows of a pass, O output rows, L lanes, B blocks per lane, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tandem.artifacts.io import Geometry
from tandem.keys import Kind
from tandem.runtime.executor.snapshot import Snapshot


@dataclass(slots=True)
class Wishes:
    """What output rows want drawn on the device, where `Geometry.draws`; docs/sampling.md defines the draw.

    Penalties look at what the device keeps of a lane's text, `seen`: twice how often the answer has an id, and 1 more
    if the prompt has it. It is brought whole once, then id by id, before the draw; `said` are the drafted tokens behind
    it on the path to a row, its own last.
    """

    row: np.ndarray  # [O, WISH] int64, see `tandem.wish.Wish`
    said: Sequence[Sequence[int]]  # [O][0..31]
    seen: Sequence[tuple[int, np.ndarray]] = ()  # lanes, and int32 [V] of each
    fresh: Sequence[tuple[int, int]] = ()  # at most FRESH: lanes, and an id that the answer of each has now


@dataclass(slots=True)
class Rows:
    """The rows of one pass. Rows of one lane stand together; `output_row` names rows whose logits are wanted.

    `ancestor` is given for `verify-tree` only: ancestor[r][i] is the logical slot of position prefix[r] + i, up to
    and including the row's own. In the other kinds prefix = position + 1. A block table is never changed once handed
    over: the same array is the same table, so an executor need not look at it again.

    A model with recurrent layers is also told where each lane's state lies and which row of the pass each follows; a
    parent stands before its children. What follows nothing, at position 0, begins from zeros, whatever its slot holds.
    """

    token: Sequence[int]  # [R]
    position: Sequence[int]  # [R]
    lane: Sequence[int]  # [R], index into block_table
    slot: Sequence[int]  # [R], logical KV slot written
    prefix: Sequence[int]  # [R]
    output_row: Sequence[int]  # [O], ascending
    block_table: np.ndarray  # [L, B] int32 page numbers
    ancestor: Sequence[Sequence[int]] | None = None  # [R][1..32]
    parent: Sequence[int] = ()  # [R], -1 for what follows the lane's state
    state_slot: Sequence[int] = ()  # [L]
    tap_out: Sequence[int] = ()  # [R], the row of `taps` that each leaves what a drafter reads in, -1 or () for none
    wishes: Callable[[], Wishes | None] | None = None  # asked once the pass is under way; None: no draws


@dataclass(slots=True)
class DraftRows:
    """The rows of one pass of a drafter. Rows of one lane stand together and rise; slot and prefix as in `Rows`.

    An MTP layer's row at position p is given the token at p + 1 and the tap of position p, and guesses p + 2: the
    target's tap, or behind the text the one that the drafter's own row before left (`tap_out`). A sync, that only
    writes K and V, takes no `tap_out` and no `output_row`.

    A block drafter's sync is given the tap of position p and the token there. Its draft is whole blocks: the anchor,
    the lane's last token, at position p and `mask_token` at those behind it, prefix p on all of them, all below p
    synced; `output_row` are all rows but anchors. It reads no tap, so all of them are -1, and leaves none.

    Up to `DraftGeometry.chain` guesses in a line may be asked for: behind its own guess an output's lane goes on from
    the tap that its row left, which then is there, and leaves its own in that place.
    """

    token: Sequence[int]  # [R]
    position: Sequence[int]  # [R]
    lane: Sequence[int]  # [R], index into block_table
    slot: Sequence[int]  # [R], logical slot of the drafter's KV written
    prefix: Sequence[int]  # [R]
    tap: Sequence[int]  # [R], the row of `taps` that each reads
    block_table: np.ndarray  # [L, B] int32, the very pages of the target
    output_row: Sequence[int] = ()  # [O], ascending
    tap_out: Sequence[int] = ()  # [R], the row of `taps` that each leaves its own in, -1 or () for none
    chain: int = 1  # guesses in a line behind each output


@dataclass(slots=True)
class Moves:
    """A commit: in lane `lane[i]`, KV of logical slot `source[i]` becomes that of `target[i]`, in order.

    With recurrent layers, each lane's state is moved on by row `row[i]` of the last verify, which becomes position
    `target[i]`: every row of an accepted path is there, in order, those whose KV is in place already among them.
    """

    lane: Sequence[int]
    source: Sequence[int]
    target: Sequence[int]
    block_table: np.ndarray
    row: Sequence[int] = ()
    state_slot: Sequence[int] = ()  # [L]


@dataclass(slots=True)
class Outcome:
    """What comes back from a pass: ids and top-two gaps per output row, its wall time, and what it was to draw."""

    argmax: list[int]  # [O]
    gap: list[float]  # [O], fp32
    ms: float
    drawn: Sequence[int] = ()  # [O], -1 where a row wished no draw; empty where none did


@dataclass(slots=True)
class DraftOutcome:
    """A drafter's guesses: per output row the `Geometry.drafter.top` likeliest tokens, falling, the lower id first
    among equals; their logits; and the log of the sum of all tokens' exponentials. Of a sync there are none.

    Of blocks also a lattice: `score[o, p, c]` is how likely guess c is behind guess p of the row before, whatever p
    behind an anchor, as a logit; `walk[o]` is the guess that the drafter itself takes there.

    Of a chain these are the first guesses; those `behind` follow depth by depth, in the time of all.
    """

    token: np.ndarray  # [O, top] int32
    logit: np.ndarray  # [O, top] float32
    lse: np.ndarray  # [O] float32
    ms: float
    score: np.ndarray | None = None  # [O, top, top] float32
    walk: np.ndarray | None = None  # [O] int32
    behind: Sequence[DraftOutcome] = ()


Entry = tuple[Kind, int, int]
"""A program's kind, context class and most rows, 0 where it serves any: see `tandem.keys.EntryKey`."""


class Executor(Protocol):
    """Runs a bundle's programs over its regions. Not thread safe: one thread owns it.

    `entries` are those among which a pass picks by its length and rows; none where one program a kind serves all.
    `num_slots` are the places of recurrent states, 0 for a model without: it takes no `Rows.parent`, no slots, and
    commits only what has to move.
    """

    geometry: Geometry
    num_pages: int
    num_slots: int

    @property
    def entries(self) -> Sequence[Entry]: ...

    def run(self, kind: Kind, rows: Rows) -> Outcome:
        """One pass of kind extend, verify-chain or verify-tree, and what its rows wish drawn behind it."""
        ...

    def commit(self, moves: Moves) -> float:
        """Move accepted KV into place, and recurrent states on by an accepted path; returns milliseconds."""
        ...

    def draft(self, kind: Kind, rows: DraftRows) -> DraftOutcome:
        """One pass of the drafter, of kind draft or sync; UsageError where the bundle has none.

        It changes nothing that the target reads, but logits of the pass before are gone.
        """
        ...

    def logits(self, output: int) -> np.ndarray:
        """fp32 logits [V] of output row `output` of the last pass: a view, valid until the next pass."""
        ...

    def kv(self, block_table: Sequence[int], length: int) -> bytes:
        """K and V of all layers for slots 0..length-1 in order, as bytes; for checks."""
        ...

    def save(self, slot: int, position: int) -> Snapshot:
        """A copy of the recurrent state in `slot`, that of a lane with `position` committed tokens.

        UsageError for a slot that is not there.
        """
        ...

    def restore(self, slot: int, snapshot: Snapshot) -> None:
        """Makes `slot` hold `snapshot`: a lane with KV of as many tokens goes on from there as if nothing had been.

        BundleMismatch for a snapshot of another bundle, UsageError for a slot that is not there.
        """
        ...

    def close(self) -> None: ...
