"""Whole passes of a lowered model by Triton's interpreter: an executor whose launches run one after another, no GPU.

Every region is poisoned at first, so that a read of anything never written shows. Products are chains, as on a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tandem.artifacts.io import IoLayout
from tandem.compile.assembly import Buffer, Launch, Operand
from tandem.compile.compose import Composer
from tandem.compile.cuda.check import DTYPES
from tandem.compile.cuda.entries import BUCKETS, Shape, shapes
from tandem.compile.cuda.programs import Lowered, lower
from tandem.keys import Kind
from tandem.runtime.executor.base import DraftOutcome, DraftRows, Entry, Moves, Outcome, Rows
from tandem.runtime.executor.cuda.shelf import choose
from tandem.runtime.executor.inbox import Inbox
from tandem.runtime.executor.regions import kv_bytes
from tandem.runtime.executor.snapshot import Snapshot
from tests.kernels.cuda.chain import chained_dots
from tests.kernels.cuda.interpreter import interpreted, run


class InterpretedExecutor:
    """Implements `tandem.runtime.executor.base.Executor` over torch's memory; programs are lowered when asked for.

    Passes take programs of `buckets` alone.
    """

    entries: Sequence[Entry] = ()

    def __init__(self, composer: Composer, *, num_pages: int = 6, buckets: Sequence[int] = BUCKETS) -> None:
        g = self.geometry = composer.geometry
        self.num_pages, self.num_slots = num_pages, g.max_lanes if g.recurrent_layers else 0
        self._composer, self._layout = composer, IoLayout(g)
        self._shapes = [shape for shape in shapes(g) if shape.rows in (0, *buckets)]
        self._lowered = dict[Shape, Lowered]()
        sizes = composer.region_bytes | {"kv": num_pages * g.page_bytes, "state": self.num_slots * g.state_bytes}
        sizes |= {"draft_kv": num_pages * g.drafter.page_bytes} if g.drafter else {}
        self._regions = {name: torch.full((size,), 0xFF, dtype=torch.uint8) for name, size in sizes.items()}
        self._regions["weights"] = torch.from_numpy(np.array(composer.weights.data))
        self._io = self._layout.views(self._regions["io"].numpy())
        self._inbox = Inbox(self._io)

    def run(self, kind: Kind, rows: Rows) -> Outcome:
        self._inbox.set_rows(rows)
        self._inbox.set_table(rows.block_table)
        self._run(kind, len(rows.token), max(rows.position) + 1)
        wishes = rows.wishes() if rows.wishes is not None else None
        if wishes is not None:
            self._inbox.set_wishes(wishes)
            for lane, counts in wishes.seen:
                self._regions["seen"].numpy().view(np.int32).reshape(-1, len(counts))[lane] = counts
            self._run(Kind.SAMPLE, len(rows.output_row), 0)
        return self._inbox.outcome(len(rows.output_row), 1.0, drew=wishes is not None)

    def commit(self, moves: Moves) -> float:
        self._inbox.set_moves(moves)
        self._inbox.set_table(moves.block_table)
        self._run(Kind.COMMIT, len(moves.lane), 0)
        return 1.0

    def draft(self, kind: Kind, rows: DraftRows) -> DraftOutcome:
        self._inbox.set_draft(rows)
        self._inbox.set_table(rows.block_table)
        length, outputs = max(rows.position) + 1, len(rows.output_row)
        self._run(kind, len(rows.token), length)
        for depth in range(1, rows.chain):
            self._run(Kind.NEXT, outputs, 0)
            self._run(kind, outputs, length + depth)
        return self._inbox.guesses(outputs, 1.0, rows.chain)

    def _run(self, kind: Kind, rows: int, length: int) -> None:
        held = [shape for shape in self._shapes if kind in shape.kinds]
        which = choose([(shape.context_class, shape.rows) for shape in held], rows, length)
        assert which is not None
        if held[which] not in self._lowered:
            self._lowered[held[which]] = lower(self._composer, held[which])
        lowered = self._lowered[held[which]]
        self._regions["scratch"] = torch.full((lowered.nbytes["scratch"],), 0xFF, dtype=torch.uint8)
        with chained_dots():
            for launch in lowered.launches:
                interpret(launch, self._regions)

    def region(self, name: str) -> np.ndarray:
        """Its bytes, as they lie there."""
        return self._regions[name].numpy()

    def logits(self, output: int) -> np.ndarray:
        return self._io["logits"][output]

    def kv(self, block_table: Sequence[int], length: int) -> bytes:
        pages = self._regions["kv"].numpy().reshape(self.num_pages, -1)
        held = np.asarray(block_table[: -(-length // self.geometry.page_tokens)], np.intp)
        return kv_bytes(pages[held], self.geometry, length)

    def save(self, slot: int, position: int) -> Snapshot:
        return Snapshot("interpreted", position, self._slots[slot].copy())

    def restore(self, slot: int, snapshot: Snapshot) -> None:
        self._slots[slot] = snapshot.state

    @property
    def _slots(self) -> np.ndarray:
        return self._regions["state"].numpy().reshape(self.num_slots, -1)

    def close(self) -> None:
        self._lowered.clear()


def interpret(launch: Launch, regions: Mapping[str, Tensor]) -> None:
    """Runs a launch over `regions`, bytes by name."""
    kernel, work = interpreted("table").KERNELS[launch.kernel], launch.work
    assert work is not None
    pointers = {param.name: _tensor(launch.arguments[param.name], regions) for param in launch.signature}
    run(kernel, work, **pointers)


def _tensor(value: Any, regions: Mapping[str, Tensor]) -> Tensor | None:
    """From an operand's first byte to the end of its region, or of its buffer."""
    if not isinstance(value, Operand):
        return None
    if isinstance(value.place, Buffer):
        first, end = value.place.offset + value.offset, value.place.offset + value.place.nbytes
        region = regions["scratch"][first:end]
    else:
        region = regions[value.place][value.offset :]
    dtype = DTYPES[value.dtype]
    return region[: len(region) // dtype.itemsize * dtype.itemsize].view(dtype)
