"""The proof of a block drafter's many programs: each of them runs, and one that is wrong is found by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from tandem.keys import Kind
from tandem.runtime.checks.lab import pages_for
from tandem.runtime.checks.proof import Report
from tandem.runtime.checks.proof_block_entries import BlockEntriesProof
from tandem.runtime.checks.proof_entries import EntriesProof, text_tokens
from tandem.runtime.checks.watch import Watch
from tandem.runtime.executor.base import DraftOutcome, DraftRows, Entry, Executor
from tests.compile.models import oracle
from tests.staged import Staged, stage
from tests.tiny import make_checkpoint
from tests.tiny_drafter import BLOCK, drafter_of, make_drafter

LANES, SYNCS = (1, 2, 4, 6), (1, 2, 8, 32, 64, 100)
ENTRIES: list[Entry] = [
    *((Kind.DRAFT, 0, BLOCK * lanes) for lanes in LANES),
    *((Kind.SYNC, 0, rows) for rows in SYNCS),
]
Spoil = Callable[[Entry, DraftRows], DraftRows | None]


class Sorted(Watch):
    """An executor with a program for each of ENTRIES, which notes what ran; `spoil` changes what an entry is given."""

    def __init__(self, executor: Executor, spoil: Spoil = lambda entry, rows: rows) -> None:
        super().__init__(executor)
        self.entries = ENTRIES
        self.ran = set[Entry]()
        self._spoil = spoil

    def draft(self, kind: Kind, rows: DraftRows) -> DraftOutcome:
        entry = min((e for e in ENTRIES if e[0] is kind and e[2] >= len(rows.token)), key=lambda e: e[2])
        self.ran.add(entry)
        spoilt = self._spoil(entry, rows)
        if spoilt is None:
            return DraftOutcome(*(np.zeros(0, np.float32) for _ in range(3)), ms=0.0)
        return super().draft(kind, spoilt)


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Staged:
    folder = make_checkpoint(tmp_path_factory.mktemp("blocks") / "llama", "llama", num_hidden_layers=2)
    drafter = drafter_of(make_drafter(folder / "drafter", folder))
    config, tensors = oracle.read_config(folder), oracle.read_tensors(folder)
    return stage(config, tensors, "bf16", folder, drafter=drafter, max_rows=100, max_lanes=6, context_length=600)


@pytest.fixture(scope="module")
def executor(staged: Staged) -> Iterator[Executor]:
    g = staged.composer.geometry
    assert g.draft_lanes == 6
    opened = staged.executor(threads=1, num_pages=max(pages_for(text_tokens(g), 64, 3), g.blocks_per_lane))
    yield opened
    opened.close()


def proof_of(executor: Executor) -> Report:
    report = Report()
    BlockEntriesProof(EntriesProof(executor, report)).run()
    return report


def test_every_entry_runs_and_holds(executor: Executor) -> None:
    watch = Sorted(executor)
    report = proof_of(watch)
    assert report.differing == 0 and report.cases > 150
    assert watch.ran == set(ENTRIES)


def only(wrong: Entry, change: Callable[[DraftRows], DraftRows | None]) -> Spoil:
    return lambda entry, rows: change(rows) if entry == wrong else rows


def other_tap(rows: DraftRows) -> DraftRows:
    return replace(rows, tap=[*rows.tap[:-1], (rows.tap[-1] + 1) % 50])


def other_anchor(rows: DraftRows) -> DraftRows:
    """Of the last block."""
    token = list(rows.token)
    token[-BLOCK] = (token[-BLOCK] + 1) % 300
    return replace(rows, token=token)


def of_one_lane(rows: DraftRows) -> DraftRows:
    return replace(rows, lane=[rows.lane[0]] * len(rows.lane))


def near_ones(rows: DraftRows) -> DraftRows:
    """Blocks far out take what lies a page below."""
    far = [start > 400 for start in rows.prefix]
    position = [at - 64 * moved for at, moved in zip(rows.position, far, strict=True)]
    return replace(
        rows, position=position, prefix=[at - 64 * moved for at, moved in zip(rows.prefix, far, strict=True)]
    )


FAULTS: dict[str, tuple[Spoil, str]] = {
    "a sync of a size that writes nothing": (only((Kind.SYNC, 0, 64), lambda rows: None), "behind syncs of 64 rows"),
    "a sync that reads another tap": (only((Kind.SYNC, 0, 32), other_tap), "behind syncs of 32 rows"),
    "two lanes with another anchor": (only((Kind.DRAFT, 0, 2 * BLOCK), other_anchor), "blocks of 2 lanes"),
    "all lanes mixed up": (only((Kind.DRAFT, 0, 6 * BLOCK), of_one_lane), "blocks of 6 lanes at the beginning"),
    "four lanes that see too little": (only((Kind.DRAFT, 0, 4 * BLOCK), near_ones), "blocks of 4 lanes at the end"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named(executor: Executor, fault: str) -> None:
    spoil, words = FAULTS[fault]
    report = proof_of(Sorted(executor, spoil))
    assert 0 < report.differing < report.cases and any(words in what for what in report.first), report.first
