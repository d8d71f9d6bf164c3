"""The proof of a block drafter's entries, its probe and its prices: sound ones pass, and each fault is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from tandem.keys import Kind
from tandem.runtime.checks.draft_scenario import run
from tandem.runtime.checks.lab import Lab, pages_for
from tandem.runtime.checks.pricing import measure
from tandem.runtime.checks.probe import probe
from tandem.runtime.checks.proof import TEXT, Report
from tandem.runtime.checks.proof_blocks import BlocksProof
from tandem.runtime.checks.watch import Watch
from tandem.runtime.executor.base import DraftOutcome, DraftRows, Executor
from tests.compile.models import oracle
from tests.runtime.checks.test_drafts import Faulty, Shifted, cut, only
from tests.staged import Staged, stage
from tests.tiny import make_checkpoint
from tests.tiny_drafter import drafter_of, make_drafter


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Staged:
    folder = make_checkpoint(tmp_path_factory.mktemp("blocks") / "llama", "llama")
    drafter = drafter_of(make_drafter(folder / "drafter", folder))
    return stage(oracle.read_config(folder), oracle.read_tensors(folder), "bf16", folder, drafter=drafter)


@pytest.fixture(scope="module")
def executor(staged: Staged) -> Iterator[Executor]:
    opened = staged.executor(threads=1, num_pages=pages_for(TEXT, 64, 4))
    yield opened
    opened.close()


class Rounded(Watch):
    """One whose guesses for several lanes are an ulp off in one score of the last."""

    def draft(self, kind: Kind, rows: DraftRows) -> DraftOutcome:
        outcome = super().draft(kind, rows)
        if len(set(rows.lane)) > 1 and outcome.score is not None:
            last = outcome.score[-1, -1]
            last[-1] = np.nextafter(last[-1], np.float32(np.inf))
        return outcome


def proof_of(executor: Executor) -> Report:
    report = Report()
    BlocksProof(Lab(executor, 4), report).run()
    return report


def test_sound_blocks_are_proved_over_many_cuts(executor: Executor) -> None:
    watch = Watch(executor)
    report = proof_of(watch)
    assert report.differing == 0 and report.cases > 400
    assert {rows for kind, rows in watch.passes if kind is Kind.DRAFT} == {5, 20}
    assert {1, 2, 7, 33, 64} <= {rows for kind, rows in watch.passes if kind is Kind.SYNC}


def alone(change: Callable[[DraftRows], DraftRows]) -> Callable[[DraftRows], DraftRows]:
    """Of passes of several lanes alone."""
    return lambda rows: change(rows) if len(set(rows.lane)) > 1 else rows


FAULTS: dict[str, tuple[Callable[[Executor], Executor], str]] = {
    "syncs that write nothing": (lambda e: Faulty(e, only(Kind.SYNC, lambda rows: None)), "blocks"),
    "syncs that forget their last row": (lambda e: Faulty(e, only(Kind.SYNC, cut)), "behind syncs of"),
    "syncs of the next tap": (
        lambda e: Faulty(e, only(Kind.SYNC, lambda rows: replace(rows, tap=[*rows.tap[1:], rows.tap[0]]))),
        "behind syncs of",
    ),
    "blocks of the first lane's pages": (
        lambda e: Faulty(e, only(Kind.DRAFT, alone(lambda r: replace(r, lane=[min(r.lane)] * len(r.lane))))),
        "among lanes",
    ),
    "taps a row too late": (Shifted, "drafts over taps of chunks"),
    "an ulp in company": (Rounded, "among lanes"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named(executor: Executor, fault: str) -> None:
    wrong, words = FAULTS[fault]
    report = proof_of(wrong(executor))
    assert 0 < report.differing < report.cases and any(words in what for what in report.first), report.first


def test_a_probe_holds_against_what_it_was_sealed_with_and_against_nothing_else(executor: Executor) -> None:
    sealed = run(executor)
    assert [what for what, _ in sealed] == ["taps: logits", *(f"block, slot {i}" for i in range(1, 5))]
    held = probe(executor, sealed)
    assert held.held and str(held) == "drafter: 5 comparisons, no bit differs"
    other = [*sealed[:2], (sealed[2][0], "0" * 64), *sealed[3:]]
    assert "1 of 5 digests differ from what was sealed, first: block, slot 2" in str(probe(executor, other))


@pytest.mark.parametrize("by", [1, -1])
def test_a_shift_by_one_does_not_hold(executor: Executor, by: int) -> None:
    def shifted(kind: Kind, rows: DraftRows) -> DraftRows:
        return replace(rows, tap=[max(0, tap + by) for tap in rows.tap]) if kind is Kind.SYNC else rows

    assert not probe(Faulty(executor, shifted), run(executor)).held


def test_blocks_are_priced_by_lanes(executor: Executor) -> None:
    table = measure(executor)["256"]
    assert list(table["draft"]) == ["5", "10", "15", "20"]
    assert list(table["sync"]) == ["1", "2", "4", "8", "16", "32", "64"]
