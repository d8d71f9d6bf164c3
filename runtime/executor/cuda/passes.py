"""One pass: rows into pinned memory, one copy in, one launch, one copy back, one wait; a draw adds a copy and a launch.

Knows nothing of programs; a graph is a handle.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np

from tandem.artifacts.io import Field, IoLayout
from tandem.driver import Driver
from tandem.runtime.executor.base import DraftOutcome, DraftRows, Moves, Outcome, Rows
from tandem.runtime.executor.cuda import owned
from tandem.runtime.executor.inbox import Inbox


class Passes:
    """Runs graphs on a stream of its own over the `io` region at `address`; pinned memory holds all but the logits.

    `seen` is the address of what is kept of lanes' texts, where draws are made.
    Both end with `stack`. The copies read pinned memory while a pass runs, so a pass ends before the next begins.
    """

    def __init__(self, stack: ExitStack, driver: Driver, layout: IoLayout, address: int, seen: int = 0) -> None:
        self._driver, self._address, self._seen = driver, address, seen
        fields = layout.fields
        table = fields["block_table"]  # behind the inbox and wishes: one copy takes as many as are wanted
        self._inbox_bytes, self._wishes_bytes = layout.inbox_bytes, table.offset
        self._told_bytes = table.offset + table.nbytes
        self._argmax, self._gap, self._logits = fields["argmax"], fields["gap"], fields["logits"]
        self._drawn = fields.get("drawn", self._argmax)
        last = fields.get("draft_score", fields.get("draft_lse"))
        self._guesses = (fields["draft_token"], last) if last else None
        self._chain = (fields["chain_token"], last) if last and "chain_token" in fields else None
        self._host = owned.pinned(stack, driver, self._logits.offset)
        self._host.array[:] = 0
        told = (field for field in fields.values() if field is not self._logits)
        self._inbox = Inbox(
            {f.name: self._host.array[f.offset : f.offset + f.nbytes].view(f.dtype).reshape(f.shape) for f in told}
        )
        self._stack = stack.enter_context(ExitStack())  # of what is pinned later, which the stream uses as well
        self.stream = owned.stream(stack, driver)
        self._rows: dict[int, np.ndarray] = {}  # logits of the last pass by output, views of `_pinned`
        self._pinned: list[owned.Pinned] = []
        self._texts: dict[int, owned.Pinned] = {}  # by lane, what is on its way to `seen`

    def run(self, graph: int, rows: Rows, sample: int | None = None) -> Outcome:
        """`sample` is the graph that draws what `rows` wishes, if it does."""
        self._inbox.set_rows(rows)
        num_outputs, start = len(rows.output_row), self._begin(graph, rows.block_table)
        drew = sample is not None and self._draw(sample, rows)
        ms = self._end(start, (self._drawn if drew else self._argmax, self._gap), num_outputs)
        return self._inbox.outcome(num_outputs, ms, drew=drew)

    def _draw(self, sample: int, rows: Rows) -> bool:
        """Has the pass under way followed by a draw, if one is wished: what is told of it takes the device no time."""
        try:
            if rows.wishes is None or (wishes := rows.wishes()) is None:
                return False
            self._inbox.set_wishes(wishes)
            for lane, counts in wishes.seen:
                self._bring(lane, counts)
        except BaseException:
            self._driver.synchronize(self.stream)  # no pass is left under way
            raise
        self._driver.to_device(self._address, self._host.address, self._wishes_bytes, self.stream)
        self._driver.launch(sample, self.stream)
        return True

    def commit(self, graph: int, moves: Moves) -> float:
        self._inbox.set_moves(moves)
        return self._end(self._begin(graph, moves.block_table))

    def draft(self, graph: int, rows: DraftRows, more: Sequence[int] = ()) -> DraftOutcome:
        """`more` are the graphs of the rest of a chain, in order."""
        self._inbox.set_draft(rows)
        num_outputs, back = len(rows.output_row), self._chain if more else self._guesses
        start = self._begin(graph, rows.block_table)
        for graph in more:
            self._driver.launch(graph, self.stream)
        ms = self._end(start, back, num_outputs)
        return self._inbox.guesses(num_outputs, ms, rows.chain)

    def logits(self, output: int) -> np.ndarray:
        """fp32 [V] of output row `output` of the last pass, copied when it is first asked for."""
        if output not in self._rows:
            nbytes = self._logits.nbytes // self._logits.shape[0]
            if len(self._pinned) == len(self._rows):
                self._pinned.append(owned.pinned(self._stack, self._driver, nbytes))
            buffer = self._pinned[len(self._rows)]
            source = self._address + self._logits.offset + output * nbytes
            self._driver.to_host(buffer.address, source, nbytes, self.stream)
            self._driver.synchronize(self.stream)
            self._rows[output] = buffer.array.view(self._logits.dtype)
        return self._rows[output]

    def _bring(self, lane: int, counts: np.ndarray) -> None:
        """What the text of `lane` has, int32 [V], on its way in front of the draw."""
        if lane not in self._texts:
            self._texts[lane] = owned.pinned(self._stack, self._driver, counts.nbytes)
        buffer = self._texts[lane]
        buffer.array.view(np.int32)[:] = counts
        self._driver.to_device(self._seen + lane * counts.nbytes, buffer.address, counts.nbytes, self.stream)

    def _begin(self, graph: int, block_table: np.ndarray) -> float:
        """Has a pass under way over what the inbox was told; when, by `perf_counter`."""
        self._rows.clear()
        start = time.perf_counter()
        nbytes = self._told_bytes if self._inbox.set_table(block_table) else self._inbox_bytes
        self._driver.to_device(self._address, self._host.address, nbytes, self.stream)
        self._driver.launch(graph, self.stream)
        return start

    def _end(self, start: float, back: tuple[Field, Field] | None = None, num_outputs: int = 0) -> float:
        """Milliseconds from `start` to the end of what is under way and of the copy behind it, which brings what lies
        from the first field of `back` to row `num_outputs` of the other."""
        if back and num_outputs:
            place, end = back[0].offset, back[1].offset + back[1].nbytes // back[1].shape[0] * num_outputs
            self._driver.to_host(self._host.address + place, self._address + place, end - place, self.stream)
        self._driver.synchronize(self.stream)
        return (time.perf_counter() - start) * 1e3
