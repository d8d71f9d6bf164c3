"""The `io` region: what a pass is told and what it gives back, at offsets that programs bake in.

All integers are int32, but for those that say what to draw, all reals float32. On a CPU host and kernels read the same
memory, a GPU has its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from tandem.keys import DRAFTER_KINDS, MAX_TREE_ROWS, TARGET_KINDS, Kind
from tandem.wish import FRESH, WISH

ALIGNMENT = 64
NUM_COUNTS = 16
"""Places of `counts`; 0 is rows, 1 outputs, 2 moves, 3 fresh ids, the rest are zero."""


@dataclass(frozen=True, slots=True)
class BlockGeometry:
    """Of a drafter that guesses whole blocks: how many `rows` one has, the anchor first and `mask_token` on the others,
    and the longest text that it was made for, which may be shorter than the target's."""

    rows: int
    mask_token: int
    context_length: int


@dataclass(frozen=True, slots=True)
class DraftGeometry:
    """What a drafter that is a model takes of memory, and gives back.

    `taps` is a ring of `tap_rows` rows of `tap_width` fp32: what it reads of the target's rows, and of its own. Its K
    and V lie in `draft_kv`, drawn as the target's, in pages of the same numbers and tokens. Of every output row it
    gives the `top` likeliest tokens, of a `block` also how well each follows those of the row before.
    """

    tap_rows: int
    tap_width: int
    page_bytes: int
    kv_planes: tuple[tuple[int, int], ...]
    top: int
    block: BlockGeometry | None = None

    @property
    def tap_bytes(self) -> int:
        """Bytes of the ring."""
        return 4 * self.tap_rows * self.tap_width


@dataclass(frozen=True, slots=True)
class Geometry:
    """Capacities a bundle is compiled for. `page_bytes` spans K and V of all layers for `page_tokens` tokens.

    `kv_planes` draws one layer's share of a page: arrays [groups, page_tokens, bytes], as (groups, bytes) each. Layers
    of recurrence have no share of it: `state_bytes` is what all of them keep of one lane, `factor_bytes` what a verify
    of MAX_TREE_ROWS rows leaves there for its commit; a model without such layers has 0 of each. `drafter` is
    there in a bundle that has one; where it `draws`, a bundle has programs of kind sample.
    """

    context_length: int
    vocab_size: int
    max_rows: int
    max_outputs: int
    max_lanes: int
    page_tokens: int
    page_bytes: int
    kv_planes: tuple[tuple[int, int], ...] = ()
    recurrent_layers: int = 0
    state_bytes: int = 0
    factor_bytes: int = 0
    drafter: DraftGeometry | None = None
    draws: bool = False

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What a bundle has programs of."""
        return (*TARGET_KINDS, *(DRAFTER_KINDS if self.drafter else ()), *((Kind.SAMPLE,) if self.draws else ()))

    @property
    def pool_bytes(self) -> int:
        """Bytes that a page takes in all pools: the model's K and V, and a drafter's."""
        return self.page_bytes + (self.drafter.page_bytes if self.drafter else 0)

    @property
    def draft_lanes(self) -> int:
        """Lanes that one draft has room for, a block or a row of each."""
        if self.drafter is None:
            return 0
        block, room = self.drafter.block, min(self.max_lanes, self.max_outputs)
        return min(room, self.max_rows // block.rows, self.max_outputs // (block.rows - 1)) if block else room

    @property
    def seen_bytes(self) -> int:
        """What is kept of the lanes' texts for penalties: a number for each lane and id."""
        return 4 * self.max_lanes * self.vocab_size if self.draws else 0

    @property
    def blocks_per_lane(self) -> int:
        """Blocks that hold a full context and the rows of one verify behind it."""
        return -(-(self.context_length + MAX_TREE_ROWS) // self.page_tokens)

    @property
    def verify_rows(self) -> int:
        """The most rows of a verify, so also the most moves of a commit."""
        return min(self.max_rows, MAX_TREE_ROWS)

    @property
    def num_layers(self) -> int:
        """Layers that a page spans."""
        return self.page_bytes // (self.page_tokens * sum(groups * nbytes for groups, nbytes in self.kv_planes))

    def fault(self) -> str | None:
        """Why its numbers do not go together, or None."""
        layer_bytes = self.page_tokens * sum(groups * nbytes for groups, nbytes in self.kv_planes)
        if not layer_bytes or self.page_bytes % layer_bytes:
            return f"page_bytes {self.page_bytes} is no multiple of the {layer_bytes} bytes that kv_planes draw"
        if self.max_outputs > self.max_rows:
            return f"max_outputs {self.max_outputs} is above max_rows {self.max_rows}"
        layers, kept = self.recurrent_layers, (self.state_bytes, self.factor_bytes)
        if any(bool(nbytes) is not bool(layers) or (layers and nbytes % (4 * layers)) for nbytes in kept):
            return f"{layers} recurrent layers do not share {kept[0]} bytes of state and {kept[1]} of factors"
        return self._drafter_fault(self.drafter) if self.drafter else None

    def _drafter_fault(self, drafter: DraftGeometry) -> str | None:
        layer_bytes = self.page_tokens * sum(groups * nbytes for groups, nbytes in drafter.kv_planes)
        if not layer_bytes or drafter.page_bytes % layer_bytes:
            return f"page_bytes {drafter.page_bytes} of drafts is no multiple of the {layer_bytes} that kv_planes draw"
        if drafter.tap_rows < self.max_rows:
            return f"tap_rows {drafter.tap_rows} is below max_rows {self.max_rows}"
        if drafter.top > self.vocab_size:
            return f"top {drafter.top} is above vocab_size {self.vocab_size}"
        return self._block_fault(drafter.block) if drafter.block else None

    def _block_fault(self, block: BlockGeometry) -> str | None:
        most = min(MAX_TREE_ROWS, self.max_rows, self.max_outputs + 1)
        if not 2 <= block.rows <= most:
            return f"a block has {block.rows} rows, a pass here holds 2 to {most}"
        if block.mask_token >= self.vocab_size:
            return f"mask_token {block.mask_token} is not below vocab_size {self.vocab_size}"
        return None


@dataclass(frozen=True, slots=True)
class Field:
    """A named array of the region: byte offset, numpy dtype name and shape."""

    name: str
    offset: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * np.dtype(self.dtype).itemsize


def _shapes(g: Geometry) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    # What a round writes comes first and lies together, then what changes rarely, then what comes back.
    yield "counts", "int32", (NUM_COUNTS,)
    # One entry per row of the pass.
    yield "token", "int32", (g.max_rows,)
    yield "position", "int32", (g.max_rows,)  # absolute position in the lane's text
    yield "lane", "int32", (g.max_rows,)  # row of `block_table`
    yield "slot", "int32", (g.max_rows,)  # logical KV slot in the lane where the row is written
    yield "prefix", "int32", (g.max_rows,)  # positions below it sit in the slot of their own number
    if g.recurrent_layers:
        yield "parent", "int32", (g.max_rows,)  # row of this pass that a row follows, -1 for what a lane holds
    if g.drafter:
        yield "tap", "int32", (g.max_rows,)  # row of the ring `taps` that a drafter's row reads
        yield "tap_out", "int32", (g.max_rows,)  # row of it that a row leaves its own in, -1 for none
    # ancestor[r, i] is the logical slot of position prefix[r] + i, up to and including the row itself.
    yield "ancestor", "int32", (g.verify_rows, MAX_TREE_ROWS)
    yield "output_row", "int32", (g.max_outputs,)  # rows whose logits are wanted, in order
    # A commit copies KV of logical slot `source` to `target`, in order.
    yield "move_lane", "int32", (g.verify_rows,)
    yield "move_source", "int32", (g.verify_rows,)
    yield "move_target", "int32", (g.verify_rows,)
    if g.recurrent_layers:
        yield "move_row", "int32", (g.verify_rows,)  # row of the last verify that a commit moves
        yield "state_slot", "int32", (g.max_lanes,)  # where each lane's recurrent state lies
    if g.draws:
        yield "wish", "int64", (g.max_outputs, WISH)  # of each output row: `tandem.wish.Wish`
        # Tokens of a draft on the path to an output row, itself among them, -1 behind the last.
        yield "said", "int32", (g.max_outputs, MAX_TREE_ROWS)
        yield "fresh", "int32", (FRESH, 2)  # a lane, and an id that its answer has now
    yield "block_table", "int32", (g.max_lanes, g.blocks_per_lane)
    # Given back, one per output row.
    if g.draws:
        yield "drawn", "int32", (g.max_outputs,)  # -1 where no draw was wished
    yield "argmax", "int32", (g.max_outputs,)
    yield "gap", "float32", (g.max_outputs,)  # largest logit minus the second largest
    yield "logits", "float32", (g.max_outputs, g.vocab_size)
    if g.drafter:  # a draft's, the likeliest first; the last is the log of the sum of all exponentials
        yield "draft_token", "int32", (g.max_outputs, g.drafter.top)
        yield "draft_logit", "float32", (g.max_outputs, g.drafter.top)
        yield "draft_lse", "float32", (g.max_outputs,)
        if g.drafter.block:  # by the guess before, then by guess; then the greedy walk's place in each row of guesses
            yield "draft_score", "float32", (g.max_outputs, g.drafter.top, g.drafter.top)
            yield "draft_walk", "int32", (g.max_outputs,)


class IoLayout:
    """Offsets of every field for a geometry; `nbytes` is the size of the region."""

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self.fields: dict[str, Field] = {}
        offset = 0
        for name, dtype, shape in _shapes(geometry):
            field = Field(name, offset, dtype, shape)
            self.fields[name] = field
            offset += -(-field.nbytes // ALIGNMENT) * ALIGNMENT
        self.nbytes = offset

    @property
    def inbox_bytes(self) -> int:
        """Bytes from the region's start that hold all that a pass is told, but for wishes and block table behind."""
        return self.fields["wish" if self.geometry.draws else "block_table"].offset

    def views(self, region: np.ndarray) -> dict[str, np.ndarray]:
        """Numpy views into `region` (uint8, at least `nbytes` long), by field name."""
        return {
            f.name: region[f.offset : f.offset + f.nbytes].view(f.dtype).reshape(f.shape) for f in self.fields.values()
        }
