"""The proof of a drafter's entries and the probe at load: both hold what is sound and name what is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from tandem.compile.drafters import Mtp
from tandem.keys import Kind
from tandem.runtime.checks.draft_scenario import CHAIN, run
from tandem.runtime.checks.lab import Lab, pages_for
from tandem.runtime.checks.pricing import measure, row_counts
from tandem.runtime.checks.probe import probe
from tandem.runtime.checks.proof import TEXT, Report
from tandem.runtime.checks.proof_chains import ChainsProof
from tandem.runtime.checks.watch import Watch
from tandem.runtime.executor.base import DraftOutcome, DraftRows, Executor, Outcome, Rows
from tests.compile.models import oracle
from tests.staged import Staged, stage
from tests.tiny import make_checkpoint
from tests.tiny_hybrid import add_mtp


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Staged:
    folder = make_checkpoint(tmp_path_factory.mktemp("drafts") / "qwen3_5", "qwen3_5")
    add_mtp(folder)
    return stage(oracle.read_config(folder), oracle.read_tensors(folder), "bf16", folder, drafter=Mtp())


@pytest.fixture(scope="module")
def executor(staged: Staged) -> Iterator[Executor]:
    opened = staged.executor(threads=1, num_pages=pages_for(TEXT, 64, 3))
    yield opened
    opened.close()


class Faulty(Watch):
    """An executor whose passes `spoil` changes before they are run: a drafter's rows, or the model's."""

    def __init__(self, executor: Executor, spoil: Callable[[Kind, DraftRows], DraftRows | None]) -> None:
        super().__init__(executor)
        self._spoil = spoil

    def draft(self, kind: Kind, rows: DraftRows) -> DraftOutcome:
        spoilt = self._spoil(kind, rows)
        if spoilt is None:
            return DraftOutcome(*(np.zeros(0, np.float32) for _ in range(3)), ms=0.0)
        return super().draft(kind, spoilt)


class Shifted(Watch):
    """One whose model leaves taps of many rows a row too late."""

    def run(self, kind: Kind, rows: Rows) -> Outcome:
        taps = list(rows.tap_out)
        return super().run(kind, replace(rows, tap_out=taps[1:] + taps[:1]) if len(taps) > 1 else rows)


class Rounded(Watch):
    """One whose guesses of several rows are an ulp off, with an output `of` many."""

    def draft(self, kind: Kind, rows: DraftRows) -> DraftOutcome:
        outcome = super().draft(kind, rows)
        if len(rows.token) > 1 and len(rows.output_row) > 1:
            outcome.lse[-1] = np.nextafter(outcome.lse[-1], np.float32(np.inf))
        return outcome


def proof_of(executor: Executor) -> Report:
    report = Report()
    ChainsProof(Lab(executor, 3, 1 << 28), report).run()
    return report


def test_sound_drafts_are_proved_at_many_widths(executor: Executor) -> None:
    watch = Watch(executor)
    report = proof_of(watch)
    assert report.differing == 0 and report.cases > 900
    assert {1, 2, 7, 33, 64} <= {rows for kind, rows in watch.passes if kind is Kind.DRAFT}
    assert {1, 2, 7, 33} <= {rows for kind, rows in watch.passes if kind is Kind.SYNC}


def only(kind: Kind, change: Callable[[DraftRows], DraftRows | None]) -> Callable[[Kind, DraftRows], DraftRows | None]:
    return lambda now, rows: change(rows) if now is kind else rows


FAULTS: dict[str, tuple[Callable[[Executor], Executor], str]] = {
    "syncs that write nothing": (lambda e: Faulty(e, only(Kind.SYNC, lambda rows: None)), "drafts behind syncs"),
    "syncs that forget their last row": (
        lambda e: Faulty(e, only(Kind.SYNC, cut)),
        "drafts behind syncs",
    ),
    "syncs of the next tap": (
        lambda e: Faulty(e, only(Kind.SYNC, lambda rows: replace(rows, tap=[*rows.tap[1:], rows.tap[0]]))),
        "drafts behind syncs",
    ),
    "drafts of the first lane's pages": (
        lambda e: Faulty(e, only(Kind.DRAFT, lambda rows: replace(rows, lane=[min(rows.lane)] * len(rows.lane)))),
        "beside",
    ),
    "taps a row too late": (Shifted, "drafts over taps of chunks"),
    "an ulp in company": (Rounded, "drafts of"),
}


def cut(rows: DraftRows) -> DraftRows:
    """The same without the last row."""
    end = max(1, len(rows.token) - 1)
    return replace(
        rows, token=rows.token[:end], position=rows.position[:end], lane=rows.lane[:end], slot=rows.slot[:end],
        prefix=rows.prefix[:end], tap=rows.tap[:end],
    )  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named(executor: Executor, fault: str) -> None:
    wrong, words = FAULTS[fault]
    report = proof_of(wrong(executor))
    assert 0 < report.differing < report.cases and any(words in what for what in report.first), report.first


def test_a_probe_holds_against_what_it_was_sealed_with(executor: Executor) -> None:
    found = run(executor)
    assert len(found) == 1 + CHAIN and found == run(executor)
    held = probe(executor, found)
    assert held.held and str(held) == "drafter: 5 comparisons, no bit differs"


def test_a_probe_against_other_guesses_does_not_hold(executor: Executor) -> None:
    sealed = run(executor)
    other = [*sealed[:2], (sealed[2][0], "0" * 64), *sealed[3:]]
    found = probe(executor, other)
    assert not found.held and "1 of 5 digests differ from what was sealed, first: chain, guess 2" in str(found)
    nothing = probe(executor, None)
    assert not nothing.held and "no guesses were sealed" in str(nothing)


@pytest.mark.parametrize("by", [1, -1])
def test_a_shift_by_one_does_not_hold(executor: Executor, by: int) -> None:
    def shifted(kind: Kind, rows: DraftRows) -> DraftRows:
        return replace(rows, tap=[max(0, tap + by) for tap in rows.tap])

    assert not probe(Faulty(executor, shifted), run(executor)).held


def test_drafts_have_prices(executor: Executor) -> None:
    table = measure(executor)["256"]
    assert list(table["draft"]) == ["1", "2", "4", "8", "16", "32"]
    assert list(table["sync"]) == ["1", "2", "4", "8", "16", "32", "64"]
    for kind in (Kind.DRAFT, Kind.SYNC):
        prices = [table[kind.value][str(rows)] for rows in row_counts(kind, executor)]
        assert prices == sorted(prices) and prices[0] > 0
