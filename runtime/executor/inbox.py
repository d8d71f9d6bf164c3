"""The host's side of `io`: writes rows, moves and block tables of a pass, reads what it gives back.

Between two passes the caches hold weights, not Python: what a round touches is what it costs. So rows are written
through plain views, and block tables only when they have changed. Knows nothing of devices.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from tandem.artifacts.io import BlockGeometry
from tandem.keys import MAX_TREE_ROWS
from tandem.runtime.executor.base import DraftOutcome, DraftRows, Moves, Outcome, Rows, Wishes

GUESSES = ("token", "logit", "lse", "score", "walk")
"""Fields of a drafter's outcome, the last two of blocks alone, as they follow each other in it."""


class Inbox:
    """Fields of `io` by name, as `IoLayout.views` gives them; `logits` is not needed."""

    def __init__(self, fields: dict[str, np.ndarray]) -> None:
        views = {name: memoryview(field.reshape(-1).data) for name, field in fields.items() if name != "logits"}
        self._parent, self._move_row, self._state_slot = map(views.get, ("parent", "move_row", "state_slot"))
        self._counts, self._output_row, self._ancestor = views["counts"], views["output_row"], views["ancestor"]
        self._tap, self._tap_out = map(views.get, ("tap", "tap_out"))
        self._row_views = tuple(views[name] for name in ("token", "position", "lane", "slot", "prefix"))
        self._move_views = tuple(views[name] for name in ("move_lane", "move_source", "move_target"))
        self._argmax, self._gap = views["argmax"], views["gap"]
        self._guesses = [fields[f"draft_{name}"] for name in GUESSES if f"draft_{name}" in fields]
        self._chain = [fields[f"chain_{name}"] for name in GUESSES if f"chain_{name}" in fields]
        self._drawn, self._fields = views.get("drawn"), fields
        self._block_table = fields["block_table"]
        self._table: np.ndarray | None = None

    def set_rows(self, rows: Rows) -> None:
        """ValueError where they are more than a pass takes."""
        self._set_common(rows)
        for row, line in enumerate(rows.ancestor or ()):
            _put(self._ancestor[row * MAX_TREE_ROWS : (row + 1) * MAX_TREE_ROWS], line)
        self._set_recurrent(self._parent, rows.parent, rows.state_slot, len(rows.token))

    def set_draft(self, rows: DraftRows) -> None:
        """The same of a drafter's pass. ValueError also where there is none."""
        if self._tap is None or len(rows.tap) != len(rows.token):
            raise ValueError(f"{len(rows.token)} rows of a drafter with {len(rows.tap)} taps")
        self._set_common(rows)
        _put(self._tap, rows.tap)
        if rows.chain > 1:
            self._require_chain(rows)
        self._counts[4] = 0

    def _require_chain(self, rows: DraftRows) -> None:
        """ValueError for a longer chain than is kept, or one that has no tap to go on from."""
        kept = len(self._chain[0]) if self._chain else 0
        if rows.chain > kept + 1 or not rows.tap_out or min(rows.tap_out[row] for row in rows.output_row) < 0:
            raise ValueError(f"a chain of {rows.chain} behind taps {list(rows.tap_out)}; {kept + 1} are made here")

    def _set_common(self, rows: Rows | DraftRows) -> None:
        self._set_counts(len(rows.token), len(rows.output_row), 0)
        for view, values in zip(
            self._row_views, (rows.token, rows.position, rows.lane, rows.slot, rows.prefix), strict=True
        ):
            _put(view, values)
        _put(self._output_row, rows.output_row)
        if self._tap_out is not None:
            taps = rows.tap_out or [-1] * len(rows.token)
            if len(taps) != len(rows.token):
                raise ValueError(f"{len(rows.token)} rows that leave {len(taps)} taps")
            _put(self._tap_out, taps)

    def set_wishes(self, wishes: Wishes) -> None:
        """What the rows of the pass want drawn. ValueError where no device draws, or for more than it takes."""
        if self._drawn is None:
            raise ValueError("draws are wished of a bundle that has no programs of kind sample")
        self._fields["wish"][: len(wishes.row)] = wishes.row
        said, fresh = self._fields["said"], self._fields["fresh"]
        said[: len(wishes.said)] = -1
        for row, tokens in enumerate(wishes.said):
            if tokens:
                said[row, : len(tokens)] = tokens
        if wishes.fresh:
            fresh[: len(wishes.fresh)] = wishes.fresh
        self._counts[3] = len(wishes.fresh)

    def set_moves(self, moves: Moves) -> None:
        self._set_counts(0, 0, len(moves.lane))
        for view, values in zip(self._move_views, (moves.lane, moves.source, moves.target), strict=True):
            _put(view, values)
        if moves.row and not 0 <= min(moves.row) <= max(moves.row) < len(self._move_views[0]):
            raise ValueError(f"rows {list(moves.row)} are moved; a verify has {len(self._move_views[0])}")
        self._set_recurrent(self._move_row, moves.row, moves.state_slot, len(moves.lane))

    def _set_recurrent(self, view: memoryview | None, values: Sequence[int], slots: Sequence[int], count: int) -> None:
        """What only models with recurrent layers have a `view` of: a value per row or move, and lanes' slots."""
        if view is None or self._state_slot is None:
            return
        if len(values) != count or not slots:
            raise ValueError(f"{count} rows with {len(values)} parents or places, and slots {list(slots)}")
        _put(view, values)
        _put(self._state_slot, slots)

    def set_table(self, block_table: np.ndarray) -> bool:
        """Whether `block_table` [L, B] is another than the last one, and so was written."""
        if block_table is self._table:
            return False
        lanes, blocks = block_table.shape
        self._block_table[:lanes, :blocks] = block_table
        self._table = block_table
        return True

    def outcome(self, num_outputs: int, ms: float, *, drew: bool = False) -> Outcome:
        """What a pass that took `ms`, and `drew` tokens, gave back."""
        drawn = _take(self._drawn, num_outputs) if drew and self._drawn is not None else ()
        return Outcome(_take(self._argmax, num_outputs), _take(self._gap, num_outputs), ms, drawn)

    def guesses(self, num_outputs: int, ms: float, chain: int = 1) -> DraftOutcome:
        """What a drafter's pass, or passes of a `chain`, that took `ms` gave back."""
        depths = [[field[depth, :num_outputs] for field in self._chain] for depth in range(chain - 1)]
        depths.append([field[:num_outputs] for field in self._guesses])
        made = list[DraftOutcome]()
        for fields in depths:
            token, logit, lse, *lattice = (field.copy() for field in fields)
            score, walk = lattice or (None, None)
            made.append(DraftOutcome(token, logit, lse, 0.0 if made else ms, score, walk))
        made[0].behind = made[1:]
        return made[0]

    def _set_counts(self, rows: int, outputs: int, moves: int) -> None:
        counts = self._counts
        counts[0], counts[1], counts[2] = rows, outputs, moves


def require_blocks(rows: DraftRows, block: BlockGeometry) -> None:
    """ValueError unless `rows` are whole blocks in order, of which all rows but anchors are wanted: kernels look at the
    rows before one's own."""
    count = len(rows.token)
    whole = count % block.rows == 0 and list(rows.output_row) == [row for row in range(count) if row % block.rows]
    places = [position - start for position, start in zip(rows.position, rows.prefix, strict=True)]
    if not whole or places != [row % block.rows for row in range(count)]:
        raise ValueError(f"{count} rows, {len(rows.output_row)} wanted, are no whole blocks of {block.rows}")


def _put(view: memoryview, values: Sequence[int]) -> None:
    """Writes int32 `values` to the start of `view`; ValueError when they are too many."""
    if len(values) == 1:
        view[0] = values[0]
    else:
        view[: len(values)] = array("i", values)


def _take(view: memoryview, count: int) -> list[Any]:
    """The first `count` values of `view`."""
    return [view[0]] if count == 1 else view[:count].tolist()
