"""The CPU executor: a bundle's programs bound to memory and walked by the bundle's own C++ library.

Knows no model: what a pass does stands in the programs. No Python runs between launches.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tandem.artifacts.io import Geometry, IoLayout
from tandem.artifacts.program import Program
from tandem.device import this_machine
from tandem.errors import BundleMismatch, UsageError
from tandem.keys import DRAFTER_KINDS, Kind
from tandem.runtime.executor import bounds, roles
from tandem.runtime.executor.base import DraftOutcome, DraftRows, Entry, Moves, Outcome, Rows
from tandem.runtime.executor.inbox import Inbox, require_blocks
from tandem.runtime.executor.library import LAUNCH, Library
from tandem.runtime.executor.regions import check_regions, kv_bytes, scratch_bytes
from tandem.runtime.executor.snapshot import Snapshot, require_slot

ALIGNMENT = 64
POISON = 0xFF
"""Bytes that read as NaN in fp32 and bf16 alike."""


@dataclass(frozen=True, slots=True)
class Image:
    """What the executor takes from an opened bundle; `weights` is the whole file, uint8.

    `bundle` is its content id, by which snapshots know whose they are; "" before it is sealed.
    """

    geometry: Geometry
    weights: np.ndarray
    library: Library
    programs: dict[Kind, Program]
    bundle: str = ""


def aligned(nbytes: int, *, poison: bool = False) -> np.ndarray:
    """uint8 [nbytes], at least one, at a 64-byte boundary: zeros, or POISON in every byte."""
    block = np.zeros(nbytes + ALIGNMENT, np.uint8)
    start = -block.ctypes.data % ALIGNMENT
    region = block[start : start + nbytes]
    if poison:
        region[:] = POISON
    return region


def _check_memory(wanted: int) -> None:
    memory = this_machine().memory
    if wanted > memory:
        raise BundleMismatch(
            f"scratch, io, KV and states take {wanted} bytes and this machine has {memory}; ask for a shorter context"
        )


class Bound:
    """A program with its pointers filled in. The arrays stay alive as long as it does."""

    def __init__(self, program: Program, library: Library, regions: dict[str, np.ndarray]) -> None:
        self._words = program.relocate({name: region.ctypes.data for name, region in regions.items()})
        kernels = np.array([library.address(k.symbol) for k in program.kernels], np.uint64)
        self.launches = np.zeros(len(program.launches), LAUNCH)
        self.launches["kernel"] = kernels[program.launches["kernel"]]
        self.launches["args"] = self._words.ctypes.data + 8 * program.launches["first_param"].astype(np.uint64)
        self.launches["wait"] = program.launches["wait"]
        self.address, self.count = self.launches.ctypes.data, len(self.launches)


class CpuExecutor:
    """Implements `tandem.runtime.executor.base.Executor` over host memory.

    `num_pages` sizes the KV pool, `num_slots` (default: one a lane) that of recurrent states, if there are any.
    `poison` fills scratch, KV, states and factors with NaNs, so that a read of anything never written shows.
    """

    def __init__(self, image: Image, *, num_pages: int, num_slots: int | None = None, poison: bool = False) -> None:
        g = self.geometry = image.geometry
        self.num_pages, self.num_slots = num_pages, (num_slots or g.max_lanes) if g.recurrent_layers else 0
        self.entries: Sequence[Entry] = ()
        layout = IoLayout(g)
        scratch = scratch_bytes(list(image.programs.values()))
        state_bytes = self.num_slots * g.state_bytes
        draft_kv, taps = (num_pages * g.drafter.page_bytes, g.drafter.tap_bytes) if g.drafter else (0, 0)
        _check_memory(scratch + layout.nbytes + num_pages * g.pool_bytes + state_bytes + g.factor_bytes + taps)
        for kind, program in image.programs.items():
            check_regions(program, layout, image.weights.nbytes)
            signatures = [image.library.signature(k.symbol) for k in program.kernels]
            bounds.check(program, signatures, g, extends=kind in (Kind.EXTEND, *DRAFTER_KINDS))
            # Attention of every kind is handed ancestors here.
            roles.check(kind, program, layout, f"{kind} entry", but=(roles.ANCESTOR,))
        self._library, self._bundle = image.library, image.bundle
        self._regions = {
            "weights": image.weights,
            "kv": aligned(num_pages * g.page_bytes, poison=poison),
            "state": aligned(state_bytes, poison=poison),
            "factors": aligned(g.factor_bytes, poison=poison),
            "draft_kv": aligned(draft_kv, poison=poison),
            "taps": aligned(taps, poison=poison),
            "io": aligned(layout.nbytes),
            "scratch": aligned(max(scratch, ALIGNMENT), poison=poison),
        }
        self._slots = self._regions["state"].reshape(self.num_slots, g.state_bytes)
        self._io = layout.views(self._regions["io"])
        self._inbox = Inbox(self._io)
        self._bound = {kind: Bound(program, image.library, self._regions) for kind, program in image.programs.items()}

    def run(self, kind: Kind, rows: Rows) -> Outcome:
        if self.num_slots and kind is not Kind.EXTEND and len(rows.token) > self.geometry.verify_rows:
            raise ValueError(f"a verify of {len(rows.token)} rows, factors are kept of {self.geometry.verify_rows}")
        self._inbox.set_rows(rows)
        self._inbox.set_table(rows.block_table)
        ms = self._walk(kind)
        return self._inbox.outcome(len(rows.output_row), ms)

    def commit(self, moves: Moves) -> float:
        self._inbox.set_moves(moves)
        self._inbox.set_table(moves.block_table)
        return self._walk(Kind.COMMIT)

    def draft(self, kind: Kind, rows: DraftRows) -> DraftOutcome:
        if kind not in self._bound or kind not in DRAFTER_KINDS:
            raise UsageError(f"this bundle has no {kind}: it holds no drafter that is a model; draft with lookup")
        drafter = self.geometry.drafter
        if kind is Kind.DRAFT and drafter and drafter.block:
            require_blocks(rows, drafter.block)
        self._inbox.set_draft(rows)
        self._inbox.set_table(rows.block_table)
        ms = self._walk(kind)
        return self._inbox.guesses(len(rows.output_row), ms)

    def logits(self, output: int) -> np.ndarray:
        return self._io["logits"][output]

    def kv(self, block_table: Sequence[int], length: int) -> bytes:
        held = np.asarray(block_table[: -(-length // self.geometry.page_tokens)], np.intp)
        return kv_bytes(self._regions["kv"].reshape(self.num_pages, -1)[held], self.geometry, length)

    def save(self, slot: int, position: int) -> Snapshot:
        require_slot(slot, self.num_slots)
        return Snapshot(self._bundle, position, self._slots[slot].copy())

    def restore(self, slot: int, snapshot: Snapshot) -> None:
        require_slot(slot, self.num_slots)
        snapshot.require(self._bundle, self.geometry.state_bytes)
        self._slots[slot] = snapshot.state

    def _walk(self, kind: Kind) -> float:
        bound = self._bound[kind]
        start = time.perf_counter()
        self._library.run(bound.address, bound.count)
        return (time.perf_counter() - start) * 1e3

    def close(self) -> None:
        self._bound.clear()
        self._library.close()
