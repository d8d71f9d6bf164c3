"""The proof holds what is sound and names what is not."""

from __future__ import annotations

import pytest

from tandem.artifacts.reader import Bundle
from tandem.keys import Kind
from tandem.runtime.checks.lab import Lab, pages_for
from tandem.runtime.checks.proof import TEXT, Proof, Report
from tandem.runtime.checks.watch import Watch
from tandem.runtime.executor.base import Executor, Rows
from tandem.runtime.loading import open_executor
from tests.fakes import ScriptedExecutor, geometry
from tests.runtime.checks.faults import Faulty


def proof_of(executor: Executor, num_lanes: int = 4) -> Report:
    return Proof(Lab(executor, num_lanes)).run()


def test_a_sound_executor_is_proved_at_every_width() -> None:
    watch = Watch(ScriptedExecutor(capacities=geometry()))
    report = proof_of(watch)
    assert report.differing == 0 and report.first == [] and report.cases > 1000
    assert {rows for kind, rows in watch.passes if kind is Kind.VERIFY_CHAIN} == set(range(1, 33))
    assert {2, 32} <= {rows for kind, rows in watch.passes if kind is Kind.VERIFY_TREE}


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("logits", Kind.EXTEND, "extend, chunks of"),
        ("logits", Kind.VERIFY_CHAIN, "verify-chain"),
        ("argmax", Kind.VERIFY_TREE, "verify-tree"),
        ("commit", Kind.COMMIT, "state"),
    ],
)
def test_each_fault_is_named(fault: str, kind: Kind, words: str) -> None:
    def when(now: Kind, rows: Rows) -> bool:
        return now is kind and len(rows.token) > 1

    report = proof_of(Faulty(ScriptedExecutor(capacities=geometry()), fault, when))
    assert 0 < report.differing < report.cases and words in report.first[0] and len(report.first) <= 10


def test_one_width_is_enough() -> None:
    def when(kind: Kind, rows: Rows) -> bool:
        return kind is Kind.VERIFY_CHAIN and len(rows.token) == 19

    report = proof_of(Faulty(ScriptedExecutor(capacities=geometry()), "logits", when))
    assert report.differing == 19 and all("verify-chain, 19 rows" in name for name in report.first)


def test_a_bundle_is_proved_again_on_two_threads(opened: Bundle) -> None:
    g = opened.geometry
    executor = open_executor(opened, threads=2, num_pages=pages_for(TEXT, g.page_tokens, 3))
    try:
        report = proof_of(executor, 3)
    finally:
        executor.close()
    assert report.differing == 0 and report.cases > 2000
