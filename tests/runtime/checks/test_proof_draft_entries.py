"""The proof of a drafter's many programs: each of them runs, and one that is wrong is found by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tandem.compile.drafters import Mtp
from tandem.keys import DRAFTER_KINDS, Kind
from tandem.runtime.checks.lab import Lab, pages_for
from tandem.runtime.checks.proof import Report
from tandem.runtime.checks.proof_draft_entries import DraftEntriesProof
from tandem.runtime.checks.proof_entries import EntriesProof, prove, text_tokens
from tandem.runtime.checks.watch import Watch
from tandem.runtime.executor.base import DraftOutcome, DraftRows, Entry, Executor
from tests.chained import by_host
from tests.compile.models import oracle
from tests.staged import Staged, stage
from tests.tiny import make_checkpoint
from tests.tiny_hybrid import add_mtp

BUCKETS, CHUNKS, CLASSES = (1, 2, 8, 32), (64, 100), (90, 256)
ENTRIES: list[Entry] = [
    *((Kind.DRAFT, bound, rows) for bound in CLASSES for rows in BUCKETS),
    *((Kind.DRAFT, 0, rows) for rows in CHUNKS),
    *((Kind.SYNC, 0, rows) for rows in (*BUCKETS, *CHUNKS)),
]
SMALL: dict[str, Any] = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
Spoil = Callable[[Entry, DraftRows], DraftRows | None]


class Sorted(Watch):
    """An executor with a program for each of ENTRIES, which notes what ran; `spoil` changes what an entry is given.

    It makes chains of 4 by itself.
    """

    def __init__(self, executor: Executor, spoil: Spoil = lambda entry, rows: rows) -> None:
        super().__init__(executor)
        drafter = executor.geometry.drafter
        self.geometry = replace(executor.geometry, drafter=drafter and replace(drafter, chain=4))
        self.behind = False
        self.entries = ENTRIES
        self.ran = set[Entry]()
        self._spoil = spoil

    def draft(self, kind: Kind, rows: DraftRows) -> DraftOutcome:
        if rows.chain > 1:
            self.behind = True
            outcome = by_host(self.draft, rows)
            self.behind = False
            return outcome
        length, count = max(rows.position) + 1, len(rows.token)
        fitting = [e for e in ENTRIES if e[0] is kind and e[2] >= count and (not e[1] or e[1] >= length)]
        entry = min(fitting, key=lambda e: (e[2], e[1]))
        self.ran.add(entry)
        spoilt = self._spoil((Kind.NEXT, 0, 0) if self.behind and rows.tap == rows.tap_out else entry, rows)
        if spoilt is None:
            return DraftOutcome(*(np.zeros(0, np.float32) for _ in range(3)), ms=0.0)
        return super().draft(kind, spoilt)


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Staged:
    folder = make_checkpoint(tmp_path_factory.mktemp("drafts") / "qwen3_5", "qwen3_5", **SMALL)
    add_mtp(folder)
    config, tensors = oracle.read_config(folder), oracle.read_tensors(folder)
    return stage(config, tensors, "bf16", folder, drafter=Mtp(), max_rows=100)


@pytest.fixture(scope="module")
def executor(staged: Staged) -> Iterator[Executor]:
    g = staged.composer.geometry
    opened = staged.executor(threads=1, num_pages=max(pages_for(text_tokens(g), 64, 3), g.blocks_per_lane))
    yield opened
    opened.close()


def proof_of(executor: Executor) -> Report:
    report = Report()
    DraftEntriesProof(EntriesProof(executor, report)).run()
    return report


def test_every_entry_runs_and_holds(executor: Executor) -> None:
    watch = Sorted(executor)
    report = proof_of(watch)
    assert report.differing == 0 and report.cases > 600
    assert watch.ran == set(ENTRIES) and {kind for kind, *_ in ENTRIES} == set(DRAFTER_KINDS)


def only(wrong: Entry, change: Callable[[DraftRows], DraftRows | None]) -> Spoil:
    return lambda entry, rows: change(rows) if entry == wrong else rows


def other_tap(rows: DraftRows) -> DraftRows:
    return replace(rows, tap=[*rows.tap[:-1], (rows.tap[-1] + 1) % 50])


FAULTS: dict[str, tuple[Spoil, str]] = {
    "a sync of a size that writes nothing": (only((Kind.SYNC, 0, 64), lambda rows: None), "behind syncs of 64 rows"),
    "a sync of one row that reads another tap": (only((Kind.SYNC, 0, 1), other_tap), "behind syncs of 1 rows"),
    "a chunk that reads another tap": (only((Kind.DRAFT, 0, 100), other_tap), "drafts of 100 rows"),
    "a bucket of the far class": (only((Kind.DRAFT, 256, 8), other_tap), "class 256: drafts of 8 rows"),
    "a bucket of the near class": (only((Kind.DRAFT, 90, 32), other_tap), "class 90: drafts of 32 rows"),
    "a chain that stays where it is": (
        only((Kind.NEXT, 0, 0), lambda rows: replace(rows, position=[p - 1 for p in rows.position])),
        "chain by itself",
    ),
    "a chain that writes elsewhere": (
        only((Kind.NEXT, 0, 0), lambda rows: replace(rows, slot=[slot - 1 for slot in rows.slot])),
        "chain by itself",
    ),
    "lanes mixed up": (
        lambda entry, rows: replace(rows, lane=[rows.lane[0]] * len(rows.lane)) if len(set(rows.lane)) > 1 else rows,
        "joint drafts",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named(executor: Executor, fault: str) -> None:
    spoil, words = FAULTS[fault]
    report = proof_of(Sorted(executor, spoil))
    assert 0 < report.differing < report.cases and any(words in what for what in report.first), report.first


def test_it_comes_behind_the_proof_of_the_models_entries(executor: Executor) -> None:
    """Which leaves the lane somewhere far, with pages that are none of its text's."""
    watch = Sorted(executor)
    kinds = (Kind.EXTEND, Kind.VERIFY_CHAIN, Kind.VERIFY_TREE)
    watch.entries = [*((kind, bound, rows) for kind in kinds for bound in CLASSES for rows in (1, 8)), *ENTRIES]
    report = prove(Lab(watch, 1))
    assert report.differing == 0 and watch.ran == set(ENTRIES)
